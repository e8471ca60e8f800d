"""The launcher with real processes: signals to anyone, kills of anyone, one voice, no one left behind."""

from __future__ import annotations

import json
import os
import signal
import time
from types import SimpleNamespace

import psutil
import pytest

from protolith.distributed import launch
from protolith.distributed.outcome import Meeting, ReportedError
from protolith.errors import RunFailedError, UsageError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir, read_json, write_json
from tests.support import ranks, tiny

SETTINGS = {
    "trainer__max_steps": 3000,
    "trainer__scheduler": "constant",
    "trainer__batch_size": 1,
    "trainer__checkpoint_every_n_steps": 20,
    "trainer__keep_last": 3,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_model(folder / "model")
    return folder


def wait_for(condition, timeout_s=60.0):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("waited in vain")


def newest_step(run_dir):
    return max(tiny.losses(run_dir), default=0)


def rank_processes(launcher):
    """By rank."""
    found = {}
    for child in psutil.Process(launcher.pid).children():
        try:
            found[int(child.environ()["RANK"])] = child
        except (KeyError, psutil.Error):
            continue
    return found


def test_a_run_whose_processes_are_stopped_and_killed(place, tmp_path):
    """SIGTERM to one rank, kill -9 of one, SIGTERM to the launcher: in the end the curve of one process."""
    run_dir = tmp_path / "run"
    recipe = tiny.write_recipe(place, output__dir=str(run_dir), **SETTINGS)
    command = ("pretrain", recipe, "--nproc", 2)
    process = tiny.start(*command, env=ranks.ENVIRONMENT)
    wait_for(lambda: newest_step(run_dir) >= 5)
    os.kill(rank_processes(process)[1].pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 8, output
    assert output.count("init: scratch") == 1 and "Traceback" not in output
    stopped = read_json(run_dir / "status.json")
    assert (stopped["state"], stopped["stopped_by"]) == ("stopped", "signal")
    assert (run_dir / "checkpoints" / f"step_{stopped['step']}").is_dir()
    logs = [(run_dir / "logs/attempt_1" / f"rank_{rank}.log").read_text() for rank in (0, 1)]
    assert all(f"stopped by signal after step {stopped['step']};" in log for log in logs)

    process = tiny.start(*command, "--resume", env=ranks.ENVIRONMENT)
    wait_for(lambda: newest_step(run_dir) >= stopped["step"] + 25)
    before = rank_processes(process)
    before[0].kill()
    saved = wait_for(lambda: (run_dir / "logs/attempt_3").is_dir() and newest_checkpoint(run_dir))
    wait_for(lambda: newest_step(run_dir) >= saved + 45)
    assert not any(is_running(rank) for rank in before.values())
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 8, output
    assert "rank 0 was killed by SIGKILL: started again (1 of 3 times)" in output
    assert "SIGTERM received: finishing the step and saving" in output
    last = read_json(run_dir / "status.json")["step"]
    alone = {"trainer__batch_size": 2, "trainer__max_steps": last, "output__dir": str(tmp_path / "one")}
    oracle = tiny.train(place, **(SETTINGS | alone))
    ours, theirs = tiny.losses(run_dir), tiny.losses(oracle.run_dir)
    assert ours == pytest.approx({step: theirs[step] for step in range(1, last + 1)}, rel=1e-4)


def newest_checkpoint(run_dir):
    return max((f.step for f in checkpoint_files.list_checkpoints(run_dir / "checkpoints")), default=0)


def is_running(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_no_rank_outlives_its_launcher_and_no_error_is_tried_again(place, tmp_path):
    run_dir = tmp_path / "run"
    reading = {"data__streaming": True, "data__num_workers": 1}  # with a process of their own for each rank
    recipe = tiny.write_recipe(place, output__dir=str(run_dir), **SETTINGS, **reading)
    process = tiny.start("pretrain", recipe, "--nproc", 2, env=ranks.ENVIRONMENT)
    wait_for(lambda: newest_step(run_dir) >= 5)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 4
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: not any(is_running(child) for child in family), timeout_s=5.0)

    done = tiny.cli("pretrain", recipe, "--nproc", 2, "-o", "json", env=ranks.ENVIRONMENT)
    assert done.returncode == 5
    assert json.loads(done.stdout)["error"]["code"] == "output_in_use"
    assert "init:" not in done.stderr


class Place:
    """What two ranks left, and how their processes ended."""

    def __init__(self, folder, outcomes, exitcodes):
        self.meeting = Meeting(folder)
        for rank, outcome in outcomes.items():
            write_json(self.meeting.outcome(rank), {"time": float(rank), **outcome})
        self.failures = {
            rank: SimpleNamespace(exitcode=code, timestamp=number)
            for number, (rank, code) in enumerate(exitcodes.items())
        }

    def verdict(self):
        return launch._verdict(self.meeting, self.failures, 2)


def error(code, exit_code=1):
    return {"exit_code": exit_code, "error": {"code": code, "message": code, "hint": "", "where": ""}}


@pytest.mark.parametrize(
    ("outcomes", "exitcodes", "verdict"),
    [
        ({0: {"exit_code": 0}, 1: {"exit_code": 0}}, {}, 0),
        ({0: {"exit_code": 8}, 1: {"exit_code": 8}}, {}, 8),
        ({0: {"exit_code": 8}, 1: error("worker_lost")}, {1: 1}, 8),
        ({0: error("worker_lost")}, {1: -9, 0: 1}, "rank 1 was killed by SIGKILL"),
        ({}, {0: -15, 1: -11}, "rank 1 was killed by SIGSEGV"),
        ({0: error("worker_lost"), 1: error("worker_lost")}, {0: 1, 1: 1}, "worker_lost"),
        ({0: error("worker_lost")}, {0: 1, 1: 130}, 130),
    ],
)
def test_what_ranks_left_says_how_the_run_ended(tmp_path, outcomes, exitcodes, verdict):
    assert Place(tmp_path, outcomes, exitcodes).verdict() == verdict


@pytest.mark.parametrize("code", ["bad_shard", "non_finite", "internal"])
def test_an_error_of_the_run_is_never_tried_again(tmp_path, code):
    place = Place(tmp_path, {0: error("worker_lost"), 1: error(code, 2)}, {0: 1, 1: 2})
    with pytest.raises(ReportedError) as caught:
        place.verdict()
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    assert caught.value.to_dict()["code"] == code


def test_a_rank_that_ends_unheard_is_named_with_its_last_words(tmp_path):
    place = Place(tmp_path, {}, {1: 1})
    (tmp_path / "x/attempt_0/1").mkdir(parents=True)
    (tmp_path / "x/attempt_0/1/stderr.log").write_text("Traceback\nImportError: no torch\n")
    with pytest.raises(RunFailedError, match=r"rank 1 ended with code 1 .*ImportError: no torch"):
        place.verdict()


def test_more_processes_than_gpus_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "num_devices", lambda: 2)
    with pytest.raises(UsageError, match="3 processes are asked for, and there are 2 GPUs"):
        launch.launch(["c.yaml"], [], tmp_path, num_ranks=3, max_restarts=0, stop=Asked())


class Asked:
    requested = False

    def pass_on(self, shared):
        self.shared = shared


@pytest.mark.parametrize(
    ("phase", "words"), [("tokenizing", ["--overwrite"]), ("evaluating", ["--resume", "latest"])]
)
def test_another_attempt_goes_on_when_there_is_something_to_go_on_from(tmp_path, monkeypatch, phase, words):
    """And repeats what was said otherwise; when the budget is used up, the run's folder says so."""
    tried = []

    def attempt(place, command, num_ranks):
        tried.append(command)
        write_json(RunDir(tmp_path).status, {"attempt": len(tried), "phase": phase, "state": "running"})
        return {0: SimpleNamespace(exitcode=-9, timestamp=0)}

    monkeypatch.setattr(launch, "_attempt", attempt)
    with pytest.raises(RunFailedError, match="rank 0 was killed by SIGKILL, and 2 restarts were used up"):
        launch.launch(["c.yaml"], ["--overwrite"], tmp_path, num_ranks=2, max_restarts=2, stop=Asked())
    assert tried == [["c.yaml", "--overwrite"], ["c.yaml", *words], ["c.yaml", *words]]
    status = read_json(RunDir(tmp_path).status)
    assert (status["state"], status["error"]["code"]) == ("failed", "worker_lost")
