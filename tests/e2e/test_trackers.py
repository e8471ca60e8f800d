"""Trackers during real runs: one axis, each step once, and a dead tracker costs nothing (T50, T51)."""

from __future__ import annotations

import shutil
import socket

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from protolith.formats.rundir import RunDir, metrics_lines
from protolith.training.request import Request
from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trackers")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_corpus(folder / "val.jsonl", 10, first=200)
    tiny.write_model(folder / "model")
    return folder


def events(run_dir, tag):
    found = EventAccumulator(str(RunDir(run_dir).tensorboard), size_guidance={"scalars": 0})
    found.Reload()
    return [event.step for event in found.Scalars(tag)]


def test_tensorboard_after_going_back(place, tmp_path):
    """Accumulation 4, validation every 6: after a resume from step 10 of 20 every step is there once."""
    changes = {
        "output__dir": str(tmp_path / "run"),
        "trainer__gradient_accumulation": 4,
        "trainer__batch_size": 1,
        "trainer__max_steps": 20,
        "trainer__checkpoint_every_n_steps": 10,
        "data__eval_path": str(place / "val.jsonl"),
        "eval__every_n_steps": 6,
        "logging__backends": ["console", "tensorboard"],
    }
    whole = tiny.train(place, **changes)
    shutil.rmtree(whole.run_dir / "model")
    again = tiny.train(place, request=Request(resume="10"), **changes)
    assert events(again.run_dir, "loss/mean") == list(range(1, 21))
    assert events(again.run_dir, "val/loss") == [6, 12, 18, 20]
    steps = [line["step"] for line in metrics_lines(RunDir(again.run_dir).metrics) if "loss/mean" in line]
    assert steps == [*range(1, 21), *range(11, 21)]
    assert sorted(tiny.losses(again.run_dir)) == list(range(1, 21))


def test_a_tracker_that_refuses_is_one_warning(place, tmp_path, monkeypatch, capfd):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    state = tiny.train(
        place, output__dir=str(tmp_path / "run"), logging__backends=["console", "wandb"], trainer__max_steps=5
    )
    assert sorted(tiny.losses(state.run_dir)) == [1, 2, 3, 4, 5]
    log = (state.run_dir / "logs" / "latest" / "rank_0.log").read_text()
    warnings = [line for line in log.splitlines() if "WARNING" in line and "W&B" in line]
    assert len(warnings) == 1, log
