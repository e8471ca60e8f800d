"""Runs over several sources: shares as asked, stages, epochs and validation by source (T23)."""

from __future__ import annotations

import json

import pytest

from protolith.config.load import load_config
from protolith.errors import ConfigError, ResumeMismatchError
from protolith.formats.rundir import read_json, read_metrics
from protolith.training.request import Request
from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two texts: source a says one word for ever, source b another. They fill 50 and 17 rows of 64."""
    folder = tmp_path_factory.mktemp("mixture")
    tiny.write_model(folder / "model")
    for name, word, documents in (("a", "kaa", 97), ("b", "peb", 33)):
        text = " ".join([word] * 32)
        (folder / f"{name}.jsonl").write_text((json.dumps({"text": text}) + "\n") * documents)
    return folder


def sources(place, *weights, **extra):
    return [
        {"path": str(place / f"{name}.jsonl"), "weight": weight, **extra}
        for name, weight in zip("ab", weights, strict=True)
    ]


def ledger(state):
    return read_json(state.run_dir / "ledger.json")


def mixed(place, run, weights, **changes):
    changes = {"data__path": None, "data__sources": sources(place, *weights), **changes}
    return tiny.train(place, output__dir=str(run), trainer__learning_rate=0.0, **changes)


@pytest.mark.parametrize(("weights", "share"), [((3, 1), 0.75), ((1, 0), 1.0)])
def test_shares_of_the_tokens_are_as_asked(place, tmp_path, weights, share, capfd):
    state = mixed(place, tmp_path / "run", weights, trainer__max_steps=40)
    found = ledger(state)["sources"]
    tokens = {name: found[name]["trained"] for name in found}
    assert tokens["a"] / sum(tokens.values()) == pytest.approx(share, abs=0.02)
    assert sum(tokens.values()) == state.tokens == 40 * 2 * 64
    assert all(found[name]["trained"] % 64 == 0 for name in found)
    said = capfd.readouterr().out
    if share == 1.0:
        assert set(tokens) == {"a"} and "source b has weight 0 and is never read" in said
    else:
        assert "source a: 75 % of the tokens" in said


def test_a_source_that_is_read_often_is_named(place, tmp_path, capfd):
    state = mixed(place, tmp_path / "run", (1, 9), trainer__max_steps=150)
    assert "warning: source b is read" in capfd.readouterr().out.replace("WARNING", "warning")
    epochs = [line["epoch"] for line in ledger(state)["sources"]["b"]["epochs"]]
    assert epochs == list(range(1, len(epochs) + 1)) and len(epochs) >= 12
    assert ledger(state)["sources"]["b"]["repeated"] > 0


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2)])
def test_impossible_weights_are_refused(place, weights):
    with pytest.raises(ConfigError):
        load_config(tiny.write_recipe(place, data__path=None, data__sources=sources(place, *weights)))


def test_weights_of_paths_are_the_same_mixture(place, tmp_path):
    one = mixed(place, tmp_path / "one", (3, 1))
    paths = [str(place / "a.jsonl"), str(place / "b.jsonl")]
    other = tiny.train(
        place,
        output__dir=str(tmp_path / "other"),
        trainer__learning_rate=0.0,
        data__path=paths,
        data__weights=[3, 1],
    )
    assert tiny.losses(one.run_dir) == tiny.losses(other.run_dir)


def test_stages_change_the_shares_and_validation_is_by_source(place, tmp_path, capfd):
    state = mixed(
        place,
        tmp_path / "run",
        (1, 0),
        data__stages=[{"from_step": 11, "weights": [0, 1]}],
        data__eval_path=[str(place / "a.jsonl"), str(place / "b.jsonl")],
        trainer__max_steps=20,
        eval__every_n_steps=20,
    )
    found = ledger(state)["sources"]
    assert found["a"]["trained"] == found["b"]["trained"] == 10 * 2 * 64
    losses = tiny.losses(state.run_dir)
    early, late = ({round(losses[step], 2) for step in steps} for steps in (range(2, 11), range(12, 21)))
    assert not early & late
    values = read_metrics(state.run_dir / "monitors" / "metrics.jsonl")[20]
    assert {"val/loss", "val/a/loss", "val/b/loss"} <= set(values)
    low, high = sorted((values["val/a/loss"], values["val/b/loss"]))
    assert low < values["val/loss"] < high
    assert "val/a/loss" in capfd.readouterr().out


def test_resumed_at_any_step_it_is_the_same_run(place, tmp_path):
    changes = {
        "data__stages": [{"from_step": 7, "weights": [1, 3]}],
        "data__num_workers": 2,
        "trainer__max_steps": 16,
        "trainer__checkpoint_every_n_steps": 3,
    }
    whole = mixed(place, tmp_path / "whole", (3, 1), **changes)
    expected = tiny.losses(whole.run_dir)
    for step in (3, 6, 9):
        target = tmp_path / f"from{step}"
        checkpoint = whole.run_dir / "checkpoints" / f"step_{step}"
        again = mixed(place, target, (3, 1), request=Request(resume=str(checkpoint)), **changes)
        assert tiny.losses(again.run_dir) == {s: loss for s, loss in expected.items() if s > step}
        assert ledger(again) == ledger(whole)


def test_changed_weights_need_consent_and_keep_each_sources_place(place, tmp_path):
    first = ledger(mixed(place, tmp_path / "run", (3, 1), trainer__max_steps=10))
    more = {"trainer__max_steps": 20}
    with pytest.raises(ResumeMismatchError, match="data"):
        mixed(place, tmp_path / "run", (1, 1), request=Request(resume="latest"), **more)
    state = mixed(
        place,
        tmp_path / "run",
        (1, 1),
        request=Request(resume="latest", accept_changes=("data", "schedule")),
        **more,
    )
    after = ledger(state)["sources"]
    assert first["sources"]["a"]["trained"] == 15 * 64
    # 20 rows as 3:1, then 20 as 1:1
    assert after["a"]["trained"] == (15 + 10) * 64 and after["b"]["trained"] == (5 + 10) * 64


def test_sources_that_read_the_same_files_are_named(place, tmp_path, capfd):
    twice = [{"path": str(place / "a.jsonl"), "name": name} for name in ("x", "y")]
    tiny.train(place, output__dir=str(tmp_path / "run"), data__path=None, data__sources=twice)
    assert "sources x and y read the same files" in capfd.readouterr().out


def test_the_toml_spelling_has_weights_stages_and_packing(place, tmp_path):
    path = tmp_path / "pretrain.toml"
    path.write_text(
        f"""
mode = "pretrain"
max_steps = 4
output_dir = "{tmp_path}/run"
[model]
name = "{place}/model"
[data]
paths = ["x", "y"]
weights = [3, 1]
packing = "best_fit"
document_mask = true
shuffle = "blocks"
stages = [{{ from_step = 3, weights = [1, 1] }}]
"""
    )
    data = load_config(path).config.data
    assert (data.weights, data.packing, data.document_mask, data.shuffle) == (
        (3, 1),
        "best_fit",
        True,
        "blocks",
    )
    assert data.stages is not None and data.stages[0].from_step == 3


def test_streamed_mixtures_have_the_same_shares_and_resume_anywhere(place, tmp_path):
    changes = {
        "data__streaming": True,
        "data__stages": [{"from_step": 7, "weights": [1, 3]}],
        "trainer__max_steps": 16,
        "trainer__checkpoint_every_n_steps": 3,
    }
    whole = mixed(place, tmp_path / "whole", (3, 1), **changes)
    found = ledger(whole)["sources"]
    assert found["a"]["trained"] == (9 + 5) * 64 and found["b"]["trained"] == (3 + 15) * 64
    expected = tiny.losses(whole.run_dir)
    for step in (3, 9):
        again = mixed(
            place,
            tmp_path / f"from{step}",
            (3, 1),
            request=Request(resume=str(whole.run_dir / "checkpoints" / f"step_{step}")),
            data__num_workers=step % 2 + 1,
            **changes,
        )
        assert tiny.losses(again.run_dir) == {s: loss for s, loss in expected.items() if s > step}
        assert ledger(again) == ledger(whole)


def test_a_streamed_mixture_ends_after_as_many_rows_as_its_sources_have(place, tmp_path):
    state = mixed(
        place,
        tmp_path / "run",
        (1, 1),
        data__streaming=True,
        data__packing="best_fit",
        data__document_mask=True,
        trainer__max_steps=None,
        trainer__num_epochs=1,
    )
    assert state.stopped_by == "epochs"
    found = ledger(state)["sources"]
    assert abs(found["a"]["trained"] - found["b"]["trained"]) <= 2 * 64
