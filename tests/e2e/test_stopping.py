"""Signals in every phase: the last whole step is saved, exit 8, and the resume is exact (T47)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from protolith.formats.rundir import RunDir, read_json
from protolith.training.request import Request
from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopping")
    tiny.write_corpus(folder / "corpus.jsonl")
    tiny.write_corpus(folder / "val.jsonl", 300, first=50)
    tiny.write_model(folder / "model")
    return folder


LONG = {"trainer__max_steps": 4000, "trainer__checkpoint_every_n_steps": 100000}


@pytest.fixture(scope="module")
def oracle(place, tmp_path_factory):
    """Losses of the same run left alone, as far as the stopped ones get."""
    run_dir = tmp_path_factory.mktemp("oracle") / "run"
    recipe = LONG | {"trainer__scheduler": "constant"}
    tiny.train(place, output__dir=str(run_dir), **(recipe | {"trainer__max_steps": 400}))
    return tiny.losses(run_dir)


def wait_for(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def logged_steps(run_dir):
    path = RunDir(run_dir).metrics
    return path.read_bytes().count(b"loss/mean") if path.exists() else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_run(place, tmp_path, oracle, number):
    recipe = tiny.write_recipe(
        place, output__dir=str(tmp_path / "run"), trainer__scheduler="constant", **LONG
    )
    process = tiny.start("pretrain", recipe)
    wait_for(lambda: logged_steps(tmp_path / "run") >= 5)
    began = time.monotonic()
    os.kill(process.pid, number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 8, output
    assert time.monotonic() - began < 30
    status = read_json(tmp_path / "run" / "status.json")
    assert (status["state"], status["stopped_by"], status["error"]) == ("stopped", "signal", None)
    step = status["step"]
    assert (tmp_path / "run" / "checkpoints" / f"step_{step}").is_dir()
    if step < 380:
        recipe = tiny.write_recipe(
            place, output__dir=str(tmp_path / "run"), trainer__scheduler="constant", **LONG
        )
        again = tiny.start("pretrain", recipe, "--resume")
        wait_for(lambda: logged_steps(tmp_path / "run") >= step + 5)
        again.terminate()
        again.communicate(timeout=30)
        ours = tiny.losses(tmp_path / "run")
        assert sorted(ours)[: step + 5] == list(range(1, step + 6))
        assert {s: ours[s] for s in ours if s <= 400} == {s: oracle[s] for s in ours if s <= 400}


@pytest.mark.parametrize("when", ["torch is loaded", "the run has begun"])
def test_a_signal_during_startup(place, tmp_path, when):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), **LONG)
    process = tiny.start("pretrain", recipe)
    if when == "torch is loaded":
        wait_for(lambda: imports_torch(process))
    else:
        wait_for((tmp_path / "run" / "status.json").exists)
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 8, output


def imports_torch(process):
    """Whether the process is somewhere in the seconds that loading torch takes."""
    try:
        return "torch" in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


def test_a_stop_during_a_long_validation_leaves_it_and_a_resume_does_it_again(place, tmp_path):
    changes = {
        "trainer__max_steps": 6,
        "data__eval_path": str(place / "val.jsonl"),
        "eval__every_n_steps": 3,
        "output__dir": str(tmp_path / "run"),
    }
    whole = tiny.train(place, **(changes | {"output__dir": str(tmp_path / "whole")}))
    expected = values(whole.run_dir)

    from protolith.training import loop as loop_module

    asked = []

    def validate_and_stop(engine, batches, stop):
        asked.append(1)
        if len(asked) == 1:
            stop.by = "signal"
        return original(engine, batches, stop)

    original = loop_module.validate
    loop_module.validate = validate_and_stop
    try:
        state = tiny.train(place, **changes)
        assert (state.step, state.stopped_by) == (3, "signal")
        assert "val/loss" not in values(state.run_dir)[3]
        again = tiny.train(place, request=Request(resume="latest"), **changes)
    finally:
        loop_module.validate = original
    assert again.stopped_by == "steps"
    assert values(again.run_dir) == expected


def values(run_dir):
    """All metrics that do not depend on the clock or on the machine."""
    from protolith.formats.rundir import read_metrics

    kept = ("loss", "val", "optim", "progress", "perplexity")
    return {
        step: {k: v for k, v in line.items() if k.split("/")[0] in kept}
        for step, line in read_metrics(RunDir(run_dir).metrics).items()
    }


def test_the_control_file_stops_a_run_too(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), **LONG)
    process = tiny.start("pretrain", recipe, "-o", "json")
    wait_for(lambda: logged_steps(tmp_path / "run") >= 3)
    control = RunDir(tmp_path / "run").control_stop
    control.parent.mkdir(exist_ok=True)
    control.touch()
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 8, output
    assert read_json(tmp_path / "run" / "status.json")["stopped_by"] == "user"


def test_a_second_signal_ends_at_once(place, tmp_path):
    recipe = tiny.write_recipe(
        place, output__dir=str(tmp_path / "run"), **(LONG | {"trainer__gradient_accumulation": 4000})
    )
    process = tiny.start("pretrain", recipe)
    wait_for(lambda: phase(tmp_path / "run") == "training")
    time.sleep(1.0)  # now it is inside its first, very long step
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGTERM)
    began = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert time.monotonic() - began < 5


def phase(run_dir):
    try:
        return read_json(run_dir / "status.json")["phase"]
    except (OSError, json.JSONDecodeError):
        return None


def test_a_stop_at_the_last_step_is_a_stop_while_its_validation_is_left(place, tmp_path):
    changes = {
        "trainer__max_steps": 4,
        "data__eval_path": str(place / "val.jsonl"),
        "output__dir": str(tmp_path / "run"),
    }
    from protolith.training import loop as loop_module

    def stop_first(engine, batches, stop):
        stop.by = "user"
        return original(engine, batches, stop)

    original = loop_module.validate
    loop_module.validate = stop_first
    try:
        state = tiny.train(place, **changes)
    finally:
        loop_module.validate = original
    assert (state.step, state.stopped_by) == (4, "user")
    assert not (state.run_dir / "model").exists()
    again = tiny.train(place, request=Request(resume="latest"), **changes)
    assert (again.step, again.stopped_by) == (4, "steps")
    assert "val/loss" in again.metrics
    assert (state.run_dir / "model").is_dir()


def test_data_that_goes_bad_in_mid_run_costs_nothing(place, tmp_path, monkeypatch):
    """What was trained is saved before the error leaves."""
    from protolith.data.window_rows import WindowRows
    from protolith.errors import ShardError

    reads = []
    original = WindowRows.read

    def sometimes(self, numbers):
        reads.append(1)
        if len(reads) == 5:
            raise ShardError("it was cut while the run was reading it", where="00000.ds")
        return original(self, numbers)

    monkeypatch.setattr(WindowRows, "read", sometimes)
    with pytest.raises(ShardError):
        tiny.train(place, output__dir=str(tmp_path / "run"))
    assert (tmp_path / "run" / "checkpoints" / "step_4").is_dir()
    status = read_json(tmp_path / "run" / "status.json")
    assert (status["state"], status["error"]["code"]) == ("failed", "bad_shard")
    state = tiny.train(place, request=Request(resume="latest"), output__dir=str(tmp_path / "run"))
    assert state.step == 12


def test_running_out_of_memory_is_named(place, tmp_path, monkeypatch):
    import torch

    from protolith.distributed.single import SingleEngine
    from protolith.errors import OutOfMemoryError

    def full(self, *_args, **_kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(SingleEngine, "forward_backward", full)
    with pytest.raises(OutOfMemoryError, match="Tried to allocate"):
        tiny.train(place, output__dir=str(tmp_path / "run"))
    assert read_json(tmp_path / "run" / "status.json")["error"]["code"] == "out_of_memory"
