"""The checkpoint with the lowest validation loss: saved when it comes, kept, and found by name."""

from __future__ import annotations

import json
import math

import pytest

from protolith.errors import NotFoundError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir, read_json, read_metrics
from protolith.training import loop
from protolith.training.request import Request
from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("best")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_corpus(folder / "val.jsonl", 10, first=100)
    tiny.write_model(folder / "model")
    return folder


def settings(place, name, **changes):
    return {
        "data__eval_path": str(place / "val.jsonl"),
        "eval__every_n_steps": 2,
        "trainer__checkpoint_every_n_steps": 5,
        "trainer__save_best": True,
        "trainer__keep_last": 1,
        "output__dir": str(place / name),
        **changes,
    }


@pytest.fixture
def worse_after(monkeypatch):
    """Validation losses as they are until a step, then far above."""

    def arrange(step, value=99.0):
        original = loop.validate
        calls = iter(range(2, 10_000, 2))

        def validate(*arguments):
            numbers = original(*arguments)
            return {**numbers, "val/loss": value} if next(calls) > step else numbers

        monkeypatch.setattr(loop, "validate", validate)

    return arrange


def steps(run):
    return [f.step for f in checkpoint_files.list_checkpoints(run.checkpoints) if not f.problem]


@pytest.mark.parametrize("value", [99.0, math.nan])
def test_the_best_is_kept_beside_the_newest(place, worse_after, value):
    worse_after(4, value)
    run = RunDir(place / f"run-{value}")
    tiny.train(place, **settings(place, run.root.name))
    assert steps(run) == [4, 12], "best by validation and newest, nothing else"
    state = read_json(run.checkpoints / "step_12" / "state.json")
    expected = read_metrics(run.metrics)[4]["val/loss"]
    assert state["best"] == {"step": 4, "loss": expected}
    assert checkpoint_files.best_step(run.checkpoints) == 4
    shown = json.loads(tiny.cli("runs", "show", run.root, "-o", "json").stdout)
    assert [(c["step"], c["best"]) for c in shown["checkpoints"]] == [(4, True), (12, False)]
    done = tiny.cli("export", run.root / "best", "--output", place / f"best-{value}", "-o", "json")
    assert json.loads(done.stdout)["step"] == 4, done.stderr


def test_it_is_remembered_by_a_resume_and_gone_back_to(place, worse_after):
    changes = settings(place, "again")
    run = RunDir(place / "again")
    tiny.train(place, **changes, trainer__max_steps=6)
    best = checkpoint_files.best_step(run.checkpoints)
    assert best == 6
    worse_after(0)
    tiny.train(place, request=Request(resume="latest", accept_changes=("schedule",)), **changes)
    assert steps(run) == [6, 12]
    again = Request(resume="best", accept_changes=("schedule",))
    tiny.train(place, request=again, **changes, trainer__max_steps=8)
    assert steps(run) == [6, 8]
    assert (run.checkpoints / "step_12.superseded").is_dir()


def test_no_best_is_said(place):
    run = tiny.train(place, **settings(place, "none", trainer__save_best=False, trainer__max_steps=4))
    with pytest.raises(NotFoundError, match="no checkpoint is known as the best"):
        tiny.train(place, request=Request(resume="best"), **settings(place, "none"))
    assert steps(RunDir(run.run_dir)) == [4]


def test_without_a_last_save_the_best_is_saved_all_the_same(place):
    tiny.train(
        place,
        **settings(place, "only", trainer__save_last=False, trainer__checkpoint_every_n_steps=None),
    )
    assert steps(RunDir(place / "only")) == [12]
