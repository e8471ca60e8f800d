"""Streamed text in whole runs: the same numbers for any workers and any interruption, and an honest end."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from protolith.config.load import load_config
from protolith.errors import BadRecordError, NotAvailableError, ResumeMismatchError
from protolith.formats.rundir import RunDir, read_json, read_metrics
from protolith.training.planning import plan_run
from protolith.training.request import Request
from tests.support import tiny

SETTINGS = {
    "windows": {},
    "documents": {"data__packing": False},
    "compressed": {"data__path": "corpus.jsonl.gz"},
    "in order": {"data__shuffle": False},
    "small epochs": {"data__path": "few.jsonl", "data__max_seq_length": 32},
    "to the end of two epochs": {
        "data__path": "some.jsonl",
        "trainer__max_steps": None,
        "trainer__num_epochs": 2,
    },
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streaming")
    tiny.write_corpus(folder / "corpus.jsonl")
    tiny.write_corpus(folder / "few.jsonl", 4)
    tiny.write_corpus(folder / "some.jsonl", 12)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes()))
    tiny.write_model(folder / "model")
    return folder


def train(place, **changes):
    path = changes.get("data__path")
    if isinstance(path, str):
        changes["data__path"] = str(place / path)
    return tiny.train(place, data__streaming=True, **changes)


def log_of(run_dir):
    return (run_dir / "logs" / "latest" / "rank_0.log").read_text()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_later_loss_is_equal(place, tmp_path, name):
    """Interrupted at several steps, with other numbers of processes, mid-epoch and later (T12, T19)."""
    changes = SETTINGS[name] | {"trainer__checkpoint_every_n_steps": 1}
    whole = train(place, output__dir=str(tmp_path / "whole"), **changes)
    expected = tiny.losses(whole.run_dir)
    total = whole.step
    assert sorted(expected) == list(range(1, total + 1)) and total >= 10
    for at, num_workers in ((3, 0), (total // 2, 3), (total - 1, 1)):
        copy = tmp_path / f"from_{at}"
        shutil.copytree(whole.run_dir, copy, symlinks=True)
        again = train(
            place,
            request=Request(resume=str(at)),
            output__dir=str(copy),
            **changes,
            data__num_workers=num_workers,
        )
        assert tiny.losses(copy) == expected
        assert (again.step, again.tokens, again.epoch, again.stopped_by) == (
            whole.step,
            whole.tokens,
            whole.epoch,
            whole.stopped_by,
        )
        assert read_json(copy / "ledger.json") == read_json(whole.run_dir / "ledger.json")
        ours, theirs = (load_file(folder / "model" / "model.safetensors") for folder in (copy, whole.run_dir))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_without_shuffle_it_trains_as_on_the_tokenized_corpus(place, tmp_path):
    changes = {"data__shuffle": False}
    streamed = train(place, output__dir=str(tmp_path / "streamed"), **changes)
    cached = tiny.train(place, output__dir=str(tmp_path / "cached"), **changes)
    assert tiny.losses(streamed.run_dir) == tiny.losses(cached.run_dir)
    assert streamed.tokens == cached.tokens


def test_epochs_end_with_the_text_and_differ_in_order(place, tmp_path):
    """With rate 0 the losses are a fingerprint of the order; documents are the same ones (T11)."""
    state = train(
        place,
        output__dir=str(tmp_path / "run"),
        data__path="some.jsonl",
        data__packing=False,
        trainer__batch_size=1,
        trainer__learning_rate=0.0,
        trainer__max_steps=None,
        trainer__num_epochs=3,
    )
    assert (state.step, state.stopped_by, state.epoch) == (36, "epochs", 3.0)
    seen = list(tiny.losses(state.run_dir).values())
    epochs = [seen[:12], seen[12:24], seen[24:]]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]
    ledger = read_json(state.run_dir / "ledger.json")
    assert [line["read"] for line in ledger["sources"]["data"]["epochs"]] == [ledger["read"] // 3] * 3
    assert ledger["trained"] == state.tokens


@pytest.mark.parametrize("estimated", [0.5, 2.0])
def test_a_wrong_estimate_moves_the_rate_and_not_the_end(place, tmp_path, monkeypatch, estimated):
    from dataclasses import replace

    from protolith.training import datasets

    real = datasets.estimate_rows

    def wrong(stream, poll):
        found = real(stream, poll)
        return replace(found, num_rows=int(found.num_rows * estimated), exact=False)

    monkeypatch.setattr(datasets, "estimate_rows", wrong)
    changes = {"data__path": "some.jsonl", "trainer__max_steps": None, "trainer__num_epochs": 1}
    first = train(place, output__dir=str(tmp_path / "run"), **changes)
    monkeypatch.setattr(datasets, "estimate_rows", real)
    exact = train(place, output__dir=str(tmp_path / "exact"), **changes)
    assert (first.step, first.tokens, first.stopped_by, first.epoch) == (
        exact.step,
        exact.tokens,
        "epochs",
        1.0,
    )
    rates = {step: line["optim/lr"] for step, line in read_metrics(RunDir(first.run_dir).metrics).items()}
    assert sorted(rates) == list(range(1, first.step + 1))
    if estimated < 1:
        assert rates[first.step] == rates[first.step - 1] == 0.0
    else:
        assert rates[first.step] > 0
    assert (first.run_dir / "checkpoints" / f"step_{first.step}").is_dir()
    assert (first.run_dir / "model" / "model.safetensors").is_file()
    assert read_json(first.run_dir / "status.json")["state"] == "completed"
    monkeypatch.setattr(datasets, "estimate_rows", wrong)
    again = train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"), **changes)
    assert (again.step, again.stopped_by) == (first.step, "epochs")


def test_a_changed_corpus_is_shown_and_goes_on_only_when_accepted(place, tmp_path):
    """Touching and moving the text are no changes (T17)."""
    for name in "ab":
        tiny.write_corpus(tmp_path / "text" / f"{name}.jsonl", 100, first=100 * ("ab".index(name)))
    changes = {"output__dir": str(tmp_path / "run"), "trainer__checkpoint_every_n_steps": 6}
    train(place, data__path=[str(tmp_path / "text")], **changes)
    (tmp_path / "text" / "a.jsonl").touch()
    (tmp_path / "text").rename(tmp_path / "moved")
    changes["data__path"] = [str(tmp_path / "moved")]
    train(place, request=Request(resume="6"), **changes)
    tiny.write_corpus(tmp_path / "moved" / "c.jsonl", 20, first=300)
    with pytest.raises(ResumeMismatchError, match=r"file added: c\.jsonl") as caught:
        train(place, request=Request(resume="6"), **changes)
    assert "--accept-changes data" in caught.value.hint
    state = train(place, request=Request(resume="6", accept_changes=("data",)), **changes)
    assert (state.step, state.stopped_by) == (12, "steps")
    assert "epoch 1 begins anew, at row 12" in log_of(state.run_dir)


def test_skipped_records_are_said_and_in_the_ledger(place, tmp_path):
    lines = (place / "corpus.jsonl").read_text().splitlines()
    lines[200:202] = ['{"text": null}', '{"text": ""}']
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    state = train(
        place,
        data__path=str(tmp_path / "c.jsonl"),
        output__dir=str(tmp_path / "run"),
        trainer__max_steps=3,
    )
    assert read_json(state.run_dir / "ledger.json")["sources"]["data"]["skipped"] == {"null": 1, "empty": 1}
    assert "null (first at c.jsonl:201)" in log_of(state.run_dir)
    lines[300] = '{"text": "w'
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    with pytest.raises(BadRecordError) as caught:
        train(
            place,
            data__path=str(tmp_path / "c.jsonl"),
            output__dir=str(tmp_path / "broken"),
            data__num_workers=2,
        )
    assert caught.value.where == "c.jsonl:301"


def test_held_out_text_has_a_path_of_its_own(place, tmp_path):
    tiny.write_corpus(tmp_path / "held.jsonl", 10, first=380)
    state = train(
        place,
        output__dir=str(tmp_path / "run"),
        data__eval_path=str(tmp_path / "held.jsonl"),
        eval__every_n_steps=6,
    )
    assert state.metrics["val/loss"] > 0
    with pytest.raises(NotAvailableError, match="streamed text") as caught:
        train(place, output__dir=str(tmp_path / "other"), data__eval_split=0.1)
    assert "data.eval_path" in caught.value.hint


def test_a_plan_says_that_it_is_an_estimate(place, tmp_path):
    path = tiny.write_recipe(
        place, data__streaming=True, data__path=str(place / "corpus.jsonl"), output__dir=str(tmp_path / "run")
    )
    report = plan_run(load_config(path))
    assert report.plan.streamed
    assert not (tmp_path / "run").exists()


def test_a_stopped_stream_goes_on_where_it_was(place, tmp_path):
    """SIGTERM in a real process with tokenizing processes; nothing is left behind (T12)."""
    changes = {
        "data__streaming": True,
        "data__num_workers": 2,
        "trainer__max_steps": 4000,
        "trainer__learning_rate": 0.0,
        "trainer__checkpoint_every_n_steps": 4000,
        "logging__log_every_n_steps": 1,
    }
    recipe = tiny.write_recipe(tmp_path, **changes, model__name=str(place / "model"))
    shutil.copy(place / "corpus.jsonl", tmp_path / "corpus.jsonl")
    process = tiny.start("pretrain", recipe)
    metrics = RunDir(tmp_path / "run").metrics
    deadline = time.monotonic() + 60
    while (not metrics.exists() or metrics.read_text().count("\n") < 15) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 8, output
    stopped = max(tiny.losses(tmp_path / "run"))
    changes["trainer__max_steps"] = stopped + 10
    tiny.train(
        tmp_path,
        request=Request(resume="latest", accept_changes=("schedule",)),
        model__name=str(place / "model"),
        **changes,
    )
    whole = tiny.train(
        tmp_path, model__name=str(place / "model"), output__dir=str(tmp_path / "whole"), **changes
    )
    assert tiny.losses(tmp_path / "run") == tiny.losses(whole.run_dir)


def test_a_long_line_of_content_is_no_matter(place, tmp_path):
    """A document far longer than a chunk, between others (T22)."""
    lines = (place / "corpus.jsonl").read_text().splitlines()
    lines.insert(7, json.dumps({"text": " ".join(tiny.WORDS * 20_000)}))
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    state = train(
        place,
        data__path=str(tmp_path / "c.jsonl"),
        output__dir=str(tmp_path / "run"),
        data__max_seq_length=512,
        data__num_workers=1,
    )
    assert state.step == 12 and state.tokens == 12 * 2 * 512
