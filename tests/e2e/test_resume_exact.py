"""A resumed run is the uninterrupted one: every loss equal to the last digit (T12).

One uninterrupted run is the oracle of each setting; every resumed run is compared with it for equality,
and at the end the final weights are compared too.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file

from protolith.errors import CheckpointError, NotFoundError, ResumeMismatchError
from protolith.formats.rundir import read_json
from protolith.training.request import Request
from tests.support import tiny

SETTINGS = {
    "windows": {},
    "dropout": {"model__overrides": {"attention_dropout": 0.1}},
    "documents": {"data__packing": False},
    "accumulation": {"trainer__gradient_accumulation": 3, "trainer__batch_size": 1},
    "workers": {"data__num_workers": 2},
    "small epochs": {"data__path": "few.jsonl", "data__max_seq_length": 32},
    "in order": {"data__shuffle": False},
    "untied llama": {"model__name": "llama"},
    "bf16": {"trainer__mixed_precision": "bf16", "trainer__max_steps": 6},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    tiny.write_corpus(folder / "corpus.jsonl")
    tiny.write_corpus(folder / "few.jsonl", 4)
    tiny.write_model(folder / "model")
    tiny.write_model(folder / "llama", "llama")
    return folder


def placed(place, changes):
    """Names of files in a setting, made absolute."""
    return {
        key: str(place / value) if key in ("data__path", "model__name") else value
        for key, value in changes.items()
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_every_later_loss_is_equal(place, tmp_path, name):
    """Stop by checkpoint at steps 3, 5 and 8 of 12 and go on each time."""
    changes = placed(place, SETTINGS[name]) | {"trainer__checkpoint_every_n_steps": 1}
    total = changes.get("trainer__max_steps", 12)
    whole = tiny.train(place, output__dir=str(tmp_path / "whole"), **changes)
    assert whole.step == total
    expected = tiny.losses(whole.run_dir)
    assert sorted(expected) == list(range(1, total + 1))
    for at in (s for s in (3, 5, 8) if s < total):
        copy = tmp_path / f"from_{at}"
        shutil.copytree(whole.run_dir, copy, symlinks=True)
        again = tiny.train(place, request=Request(resume=str(at)), output__dir=str(copy), **changes)
        assert again.step == total
        assert tiny.losses(copy) == expected
        assert again.tokens == whole.tokens
        assert read_json(copy / "ledger.json") == read_json(whole.run_dir / "ledger.json")
        ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (copy, whole.run_dir))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_going_back_sets_later_checkpoints_aside_and_says_so(place, tmp_path):
    state = tiny.train(place, output__dir=str(tmp_path / "run"))
    tiny.train(place, request=Request(resume="5"), output__dir=str(tmp_path / "run"))
    names = {p.name for p in (state.run_dir / "checkpoints").iterdir()}
    assert {"step_5", "step_10", "step_12", "step_10.superseded", "step_12.superseded"} == names


def test_resuming_a_finished_run_changes_nothing(place, tmp_path):
    first = tiny.train(place, output__dir=str(tmp_path / "run"))
    before = (first.run_dir / "model" / "model.safetensors").read_bytes()
    again = tiny.train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"))
    assert (again.step, again.tokens, again.stopped_by) == (first.step, first.tokens, first.stopped_by)
    assert again.metrics["loss"] == first.metrics["loss"]
    assert (again.run_dir / "model" / "model.safetensors").read_bytes() == before


def test_a_run_can_go_on_from_another_runs_checkpoint(place, tmp_path):
    first = tiny.train(place, output__dir=str(tmp_path / "first"))
    source = first.run_dir / "checkpoints" / "step_5"
    second = tiny.train(place, request=Request(resume=str(source)), output__dir=str(tmp_path / "second"))
    expected = tiny.losses(first.run_dir)
    assert tiny.losses(second.run_dir) == {step: expected[step] for step in range(6, 13)}


def test_another_schedule_is_shown_and_needs_its_name(place, tmp_path):
    """More steps change the rate of every step: nothing goes on until that is accepted (T59)."""
    tiny.train(place, output__dir=str(tmp_path / "run"))
    more = {"trainer__max_steps": 20, "output__dir": str(tmp_path / "run")}
    with pytest.raises(ResumeMismatchError) as caught:
        tiny.train(place, request=Request(resume="latest"), **more)
    assert "schedule: total_steps was 12, is 20" in caught.value.differences
    assert "schedule: total_steps was 12, is 20" in str(caught.value)
    assert "--accept-changes schedule" in caught.value.hint
    assert caught.value.exit_code == 5
    state = tiny.train(place, request=Request(resume="latest", accept_changes=("schedule",)), **more)
    assert state.step == 20


def test_another_seed_and_size_are_shown_together(place, tmp_path):
    tiny.train(place, output__dir=str(tmp_path / "run"))
    changes = {
        "data__seed": 8,
        "model__overrides": {"num_hidden_layers": 3},
        "output__dir": str(tmp_path / "run"),
    }
    with pytest.raises(ResumeMismatchError) as caught:
        tiny.train(place, request=Request(resume="latest"), **changes)
    text = "\n".join(caught.value.differences)
    assert "data: seed was 7, is 8" in text
    assert "model: num_hidden_layers was 2, is 3" in text


def test_damage_is_passed_over_for_latest_and_loud_by_name(place, tmp_path):
    """One file cut short: latest falls back with a reason, an explicit step is refused (T40)."""
    whole = tiny.train(place, output__dir=str(tmp_path / "run"))
    expected = tiny.losses(whole.run_dir)
    for step in (10, 12):
        target = whole.run_dir / "checkpoints" / f"step_{step}" / "optimizer.safetensors"
        target.write_bytes(target.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors has"):
        tiny.train(place, request=Request(resume="10"), output__dir=str(tmp_path / "run"))
    with pytest.raises(NotFoundError, match="no checkpoint of step 7") as missing:
        tiny.train(place, request=Request(resume="7"), output__dir=str(tmp_path / "run"))
    assert missing.value.exit_code == 3
    tiny.train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"))
    assert tiny.losses(whole.run_dir) == expected
    log = (whole.run_dir / "logs" / "latest" / "rank_0.log").read_text()
    assert "step_12 is passed over: optimizer.safetensors has" in log
    assert "step_10 is passed over" in log
    assert "resumed from step_5" in log


def test_when_every_checkpoint_is_damaged_nothing_starts_over_by_itself(place, tmp_path):
    state = tiny.train(place, output__dir=str(tmp_path / "run"))
    for folder in (state.run_dir / "checkpoints").iterdir():
        (folder / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="none of the 3 checkpoints is complete"):
        tiny.train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"))


def test_a_tensor_missing_from_the_file_is_loud(place, tmp_path):
    """Even with a manifest that was made to agree (T37)."""
    from safetensors.torch import save_file

    from protolith.formats import checkpoint_files

    whole = tiny.train(place, output__dir=str(tmp_path / "run"))
    folder = whole.run_dir / "checkpoints" / "step_12"
    weights = load_file(folder / "model.safetensors")
    weights.pop(sorted(weights)[3])
    save_file(weights, folder / "model.safetensors")
    (folder / "manifest.json").unlink()
    aside = folder.rename(folder.parent / ".saving-step_12-00000000")
    checkpoint_files.commit(aside, 12)
    with pytest.raises(CheckpointError, match="missing"):
        tiny.train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"))


def test_a_refused_resume_leaves_the_run_as_it_was(place, tmp_path):
    """Status, config and plan are those of the run, not those of the request that was refused."""
    state = tiny.train(place, output__dir=str(tmp_path / "run"))
    names = ("status.json", "config.json", "plan.json", "ledger.json")
    before = {name: read_json(state.run_dir / name) for name in names}
    with pytest.raises(ResumeMismatchError):
        tiny.train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"), data__seed=9)
    with pytest.raises(NotFoundError):
        tiny.train(place, request=Request(resume="77"), output__dir=str(tmp_path / "run"))
    assert {name: read_json(state.run_dir / name) for name in names} == before
    assert "ERROR" in (state.run_dir / "logs" / "latest" / "rank_0.log").read_text()
