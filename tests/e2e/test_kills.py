"""kill -9 at random moments of saving, and a disk that fills up: nothing complete is lost (T40, T42, T43)."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from protolith.errors import NoSpaceError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir, read_json
from protolith.training.request import Request
from tests.support import tiny

STEPS = 120


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    # a large embedding makes saving the longest part of a step: about 20 MB a checkpoint
    tiny.write_model(folder / "model", vocab_size=26_000)
    return folder


def settings(run_dir):
    return {
        "output__dir": str(run_dir),
        "trainer__max_steps": STEPS,
        "trainer__checkpoint_every_n_steps": 1,
        "trainer__keep_last": 3,
        "trainer__batch_size": 1,
        "data__max_seq_length": 16,
    }


def in_child(folder, run_dir, resume):
    """The run in a forked process: no second import of torch for each of thirty kills."""
    tiny.train(folder, request=Request(resume=resume), **settings(run_dir))


def test_thirty_kills_thirty_good_resumes(place, tmp_path):
    run_dir = RunDir(tmp_path / "run")
    fork = multiprocessing.get_context("fork")
    draw = random.Random(0)
    resumed_from = []
    for _ in range(30):
        before = [f.step for f in checkpoint_files.list_checkpoints(run_dir.checkpoints) if not f.problem]
        child = fork.Process(target=in_child, args=(place, run_dir.root, "latest"))
        child.start()
        wait_for_save(run_dir, newest=max(before, default=0), child=child)
        time.sleep(draw.uniform(0.0, 0.06))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        complete = [
            f.step
            for f in checkpoint_files.list_checkpoints(run_dir.checkpoints, digests=True)
            if not f.problem
        ]
        assert max(complete, default=0) >= max(before, default=0), "the newest one never disappears"
        assert len(complete) <= 4
        resumed_from.append(max(complete, default=0))
    child = fork.Process(target=in_child, args=(place, run_dir.root, "latest"))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert resumed_from[-1] < STEPS, "the kills came too late to mean anything"
    whole = tiny.train(
        place, **(settings(tmp_path / "whole") | {"trainer__checkpoint_every_n_steps": 10_000})
    )
    assert tiny.losses(run_dir.root) == tiny.losses(whole.run_dir)
    assert read_json(run_dir.ledger) == read_json(RunDir(whole.run_dir).ledger)


def wait_for_save(run_dir, newest, child):
    """Until a step after ``newest`` is being saved or was saved."""
    end = time.monotonic() + 60
    while time.monotonic() < end and child.is_alive():
        names = os.listdir(run_dir.checkpoints) if run_dir.checkpoints.is_dir() else []
        if any(name.startswith(".saving-") for name in names):
            return
        if any(name.startswith("step_") and int(name[5:]) > newest for name in names):
            return
        time.sleep(0.001)


def test_retention_by_number_and_foreign_entries_stay(place, tmp_path):
    """keep_last 2, with entries of somebody else beside (T42)."""
    changes = settings(tmp_path / "run") | {"trainer__keep_last": 2, "trainer__max_steps": 12}
    tiny.train(place, **(changes | {"trainer__max_steps": 12}))
    folder = tmp_path / "run" / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["step_11", "step_12"]
    for name in ("step_final_mine", "step_7.bak"):
        (folder / name).mkdir()
    (folder / "step_5").symlink_to(folder / "step_12")
    future = time.time() + 1e6
    os.utime(folder / "step_11", (future, future))
    more = changes | {"trainer__max_steps": 15}
    tiny.train(place, request=Request(resume="latest", accept_changes=("schedule",)), **more)
    assert sorted(p.name for p in folder.iterdir()) == [
        "step_14",
        "step_15",
        "step_5",
        "step_7.bak",
        "step_final_mine",
    ]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 60 MB."""
    target = tmp_path / "disk"
    target.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(target)], capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting a small file system needs root")
    yield target
    subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_disk_that_fills_up(place, small_disk):
    """A warning at the start; a failed save leaves no partial folder and the old checkpoint loads (T43)."""
    changes = settings(small_disk / "run") | {"trainer__max_steps": 6, "trainer__keep_last": 2}
    (small_disk / "ballast").write_bytes(b"x" * 15_000_000)
    with pytest.raises(NoSpaceError) as caught:
        tiny.train(place, **changes)
    assert caught.value.exit_code == 7
    run_dir = RunDir(small_disk / "run")
    log = (run_dir.logs / "latest" / "rank_0.log").read_text()
    assert "the run needs up to" in log
    complete = [
        f for f in checkpoint_files.list_checkpoints(run_dir.checkpoints, digests=True) if not f.problem
    ]
    assert complete
    assert not [p for p in run_dir.checkpoints.iterdir() if p.name.startswith(".saving")]
    assert read_json(run_dir.status)["error"]["code"] == "no_space"
    (small_disk / "ballast").unlink()
    expected = tiny.train(place, **(changes | {"output__dir": str(small_disk.parent / "whole")}))
    again = tiny.train(place, request=Request(resume="latest"), **(changes | {"trainer__keep_last": 1}))
    assert again.step == 6
    assert tiny.losses(again.run_dir) == tiny.losses(expected.run_dir)


def test_a_disk_too_small_for_one_checkpoint_is_refused_at_the_start(place, small_disk):
    (small_disk / "ballast").write_bytes(b"x" * 50_000_000)
    with pytest.raises(NoSpaceError, match="one checkpoint takes"):
        tiny.train(place, **settings(small_disk / "run"))


def test_metrics_wait_for_room(tmp_path):
    """Lines that a full disk refuses are written when there is room again, in order."""
    from protolith.training.monitors import builtin

    said = []
    metrics = builtin.MetricsFile(tmp_path / "metrics.jsonl", said.append)
    metrics.log(1, {"x": 1.0})
    original, builtin._append = builtin._append, full
    try:
        metrics.log(2, {"x": 2.0})
        metrics.log(3, {"x": float("nan")})
    finally:
        builtin._append = original
    metrics.log(4, {"x": 4.0})
    steps = [line.split(",")[0] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == ['{"step": 1', '{"step": 2', '{"step": 3', '{"step": 4']
    assert len(said) == 1


def full(*_args):
    raise OSError(28, "No space left on device")


def test_a_copy_of_a_run_is_a_run(place, tmp_path):
    """Nothing in a run's folder knows where it lies."""
    changes = settings(tmp_path / "run") | {"trainer__max_steps": 4}
    tiny.train(place, **changes)
    shutil.move(tmp_path / "run", tmp_path / "moved")
    state = tiny.train(
        place, request=Request(resume="2"), **(changes | {"output__dir": str(tmp_path / "moved")})
    )
    assert state.step == 4
