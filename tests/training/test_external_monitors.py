"""Trackers: complete when they work, and without any effect on training when they do not."""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from protolith.errors import InvalidValueError, MissingExtraError
from protolith.formats.rundir import RunDir
from protolith.training.monitors import external
from protolith.training.monitors.external import ExternalMonitors, _Feed
from protolith.training.monitors.wandb_link import WandbLink
from tests.training.wandb_server import KEY, WandbServer, recorded, recorded_ids, recorded_rows


@pytest.fixture(autouse=True)
def _no_account(monkeypatch, tmp_path):
    """Nobody's W&B account, settings or key is used."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "wandb-cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch) -> Path:
    """Where temporary files go here; whatever a test does to W&B's process, nothing of it may stay."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    loaded_before = "wandb" in sys.modules
    yield folder
    gc.collect()  # a monitor that was never closed lets go with its last reference
    ours = not loaded_before and "wandb" in sys.modules  # a test that reads records: gone when pytest ends

    def left() -> list[Path]:
        return [path for path in folder.iterdir() if not (ours and path.name.startswith("tmp"))]

    end = time.monotonic() + 5
    while left() and time.monotonic() < end:
        time.sleep(0.05)
    assert left() == []


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def monitors(tmp_path, said):
    """``monitors("wandb", resume=10)``; closed at the end of the test."""
    made: list[ExternalMonitors] = []

    def make(*backends: str, resume: int | None = None, **more) -> ExternalMonitors:
        made.append(
            ExternalMonitors(
                backends,
                RunDir(tmp_path / "run"),
                config_dict={"trainer": {"learning_rate": 3e-4}},
                resume_step=resume,
                warn=said.append,
                **more,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close(5.0)


def log_steps(monitors: ExternalMonitors, first: int, last: int) -> float:
    """Log some steps; returns the longest time one call took."""
    longest = 0.0
    for step in range(first, last + 1):
        before = time.perf_counter()
        monitors.log(step, {"loss/mean": 4.0 / step, "progress/num_tokens": step * 128})
        longest = max(longest, time.perf_counter() - before)
    return longest


# --- TensorBoard ---------------------------------------------------------------------------------------


def curve(folder: Path, name: str = "loss/mean") -> dict[int, float]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    points = [(event.step, event.value) for event in reader.Scalars(name)]
    assert len(points) == len({step for step, _ in points}), f"a step stands twice: {points}"
    return dict(points)


def test_each_step_is_there_once_after_a_resume_from_an_earlier_step(monitors, tmp_path, said):
    """Points above the step that is resumed are superseded (T51)."""
    first = monitors("tensorboard")
    log_steps(first, 1, 17)
    first.log(10, {"val/loss": 9.0})
    first.close(20.0)
    second = monitors("tensorboard", resume=10)
    log_steps(second, 11, 20)
    second.log(20, {"val/loss": 2.0, "state": "text is no point", "flag": True})
    second.close(20.0)
    loss = curve(RunDir(tmp_path / "run").tensorboard)
    assert sorted(loss) == list(range(1, 21))
    assert loss[17] == pytest.approx(4 / 17)
    assert curve(RunDir(tmp_path / "run").tensorboard, "val/loss") == {10: 9.0, 20: 2.0}
    assert said == []


def test_a_run_begun_again_without_a_checkpoint_supersedes_everything(monitors, tmp_path):
    folder = RunDir(tmp_path / "run").tensorboard
    for last in (5, 3):
        again = monitors("tensorboard")
        log_steps(again, 1, last)
        again.close(20.0)
    assert sorted(curve(folder)) == [1, 2, 3]


def test_events_of_a_killed_process_are_readable_up_to_the_last_flush(tmp_path):
    """SIGKILL at step 17, resumed from 10, with a torn end in the first file (T51)."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from protolith.formats.rundir import RunDir\n"
        "from protolith.training.monitors import external\n"
        "external._IDLE_FLUSH_S = 0.1\n"
        "m = external.ExternalMonitors(['tensorboard'], RunDir(Path(sys.argv[1])), warn=print)\n"
        "for s in range(1, 18): m.log(s, {'loss/mean': 99.0})\n"
        "print('logged', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "logged\n"
    folder = RunDir(tmp_path).tensorboard
    end = time.monotonic() + 60
    while not (folder.is_dir() and 17 in _steps_so_far(folder)):
        assert time.monotonic() < end, "the events are not flushed in time"
        time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open(next(folder.iterdir()), "ab") as torn:
        torn.write(b"\x18\x00\x00")
    second = ExternalMonitors(["tensorboard"], RunDir(tmp_path), resume_step=10, warn=pytest.fail)
    log_steps(second, 11, 20)
    second.close(20.0)
    loss = curve(folder)
    assert sorted(loss) == list(range(1, 21))
    assert loss[10] == 99.0 and loss[11] == pytest.approx(4 / 11)


def _steps_so_far(folder: Path) -> list[int]:
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return (
        [event.step for event in reader.Scalars("loss/mean")]
        if "loss/mean" in reader.Tags()["scalars"]
        else []
    )


def test_a_folder_that_cannot_be_written_is_one_warning(monitors, tmp_path, said):
    (tmp_path / "run" / "monitors").mkdir(parents=True)
    (tmp_path / "run" / "monitors" / "tensorboard").write_text("in the way")
    broken = monitors("tensorboard")
    log_steps(broken, 1, 20)
    broken.close(20.0)
    log_steps(broken, 21, 25)
    assert len(said) == 1
    assert said[0].startswith("TensorBoard: stopped (") and "metrics.jsonl has every number" in said[0]


# --- W&B -----------------------------------------------------------------------------------------------


def test_offline_a_resumed_run_keeps_its_id_and_marks_the_rewound_steps(
    monitors, tmp_path, said, monkeypatch, capfd
):
    """The real library, offline: one id, a curve without a gap, the second attempt told apart (T50)."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "run" / "monitors"
    first = monitors("wandb", project="stones", run_name="granite")
    assert log_steps(first, 1, 17) < 0.1
    first.log(17, {"val/loss": math.nan, "perplexity": math.inf})
    first.close(30.0)
    second = monitors("wandb", project="stones", run_name="granite", resume=10)
    log_steps(second, 11, 20)
    second.close(30.0)
    assert said == []
    kept = json.loads((folder / "wandb.json").read_text())
    assert recorded_ids(folder / "wandb") == [kept["run_id"], kept["run_id"]]
    assert [attempt["resume_step"] for attempt in kept["attempts"]] == [0, 10]
    rows = recorded_rows(folder / "wandb")
    steps = [(row["attempt"], row["step"]) for row in rows if "loss/mean" in row]
    assert steps == [(1, step) for step in range(1, 18)] + [(2, step) for step in range(11, 21)]
    assert rows[0]["loss/mean"] == 4.0
    assert capfd.readouterr() == ("", "")


def test_nothing_but_rows_and_config_is_recorded(monitors, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    m = monitors("wandb")
    log_steps(m, 1, 3)
    m.close(30.0)
    folder = tmp_path / "run" / "monitors" / "wandb"
    records = list(recorded(folder))
    kinds = {kind for kind, _ in records}
    assert kinds.isdisjoint({"output", "output_raw", "stats", "environment", "files", "alert"}), kinds
    for _, record in records:
        assert str(tmp_path) not in str(record)
        assert os.uname().nodename not in str(record).split('"')
    assert not list(folder.rglob("requirements.txt")) and not list(folder.rglob("wandb-metadata.json"))


def test_another_project_is_another_run_and_a_damaged_record_a_new_one(tmp_path):
    def remembered(project: str) -> dict:
        link = WandbLink(RunDir(tmp_path), project, None, {}, 0)
        link._folder.mkdir(parents=True, exist_ok=True)
        return link._remember()

    first, again, other = remembered("a"), remembered("a"), remembered("b")
    assert first["run_id"] == again["run_id"] != other["run_id"]
    assert len(again["attempts"]) == 2 and len(other["attempts"]) == 1
    (tmp_path / "monitors" / "wandb.json").write_text("{torn")
    assert remembered("b")["run_id"] != other["run_id"]


@pytest.fixture
def server(monkeypatch):
    made: list[WandbServer] = []

    def make(mode: str) -> WandbServer:
        made.append(WandbServer(mode))
        monkeypatch.setenv("WANDB_BASE_URL", made[-1].url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        return made[-1]

    yield make
    for each in made:
        each.die()


@pytest.mark.parametrize("trouble", ["refuses", "error", "silent", "no key"])
def test_a_server_that_cannot_be_had_is_one_warning_and_an_offline_record(
    monitors, server, tmp_path, said, monkeypatch, trouble
):
    """A refused connection, 500 to everything, no answer at all, no key (T50)."""
    there = server("error" if trouble in ("refuses", "no key") else trouble)
    if trouble == "refuses":
        there.die()
    if trouble == "no key":
        monkeypatch.delenv("WANDB_API_KEY")
    m = monitors("wandb")
    assert log_steps(m, 1, 20) < 0.1
    before = time.monotonic()
    m.close(20.0)
    assert time.monotonic() - before < 20.0
    assert len(said) == 1, said
    assert "recorded offline" in said[0] and "metrics.jsonl has every number" in said[0]
    assert f"wandb sync {tmp_path}/run/monitors/wandb/" in said[0]
    assert KEY not in said[0]
    rows = recorded_rows(tmp_path / "run" / "monitors" / "wandb")
    assert [row["step"] for row in rows] == list(range(1, 21))


def test_online_rows_arrive_and_a_resume_goes_on_in_the_same_run(monitors, server, said):
    there = server("works")
    first = monitors("wandb")
    log_steps(first, 1, 17)
    first.close(30.0)
    second = monitors("wandb", resume=10)
    log_steps(second, 11, 20)
    second.close(30.0)
    assert said == []
    assert len(there.run_ids) == 1
    arrived = [(row["attempt"], row["step"]) for row in there.rows]
    assert arrived == [(1, step) for step in range(1, 18)] + [(2, step) for step in range(11, 21)]


def test_a_server_that_dies_in_the_middle_is_one_warning_and_nothing_is_lost_for_later(
    monitors, server, tmp_path, said
):
    """It works, then dies at step 10 (T50)."""
    there = server("works")
    m = monitors("wandb")
    log_steps(m, 1, 10)
    there.wait_until_streaming()
    there.die()
    assert log_steps(m, 11, 20) < 0.1
    before = time.monotonic()
    m.close(4.0)
    assert time.monotonic() - before < 4.5
    assert len(said) == 1, said
    assert "did not take everything in time" in said[0] and "wandb sync" in said[0]
    rows = recorded_rows(tmp_path / "run" / "monitors" / "wandb")
    assert [row["step"] for row in rows] == list(range(1, 21))


def test_its_process_killed_in_the_middle_is_one_warning(monitors, said, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    m = monitors("wandb")
    link = m._feeds[0]._sink
    end = time.monotonic() + 30
    while link._process is None and time.monotonic() < end:
        time.sleep(0.01)
    link._process.kill()
    link._process.wait()
    log_steps(m, 1, 20)
    m.close(10.0)
    log_steps(m, 21, 22)
    assert len(said) == 1
    assert "its process has ended" in said[0]


def test_signals_of_the_terminal_reach_the_trainer_alone_and_rows_outlive_it(tmp_path):
    """Ctrl-C goes to the trainer only; a trainer killed outright still has its rows recorded."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from protolith.formats.rundir import RunDir\n"
        "from protolith.training.monitors.external import ExternalMonitors\n"
        "m = ExternalMonitors(['wandb'], RunDir(Path(sys.argv[1])), warn=print)\n"
        "m.log(1, {'loss/mean': 1.0})\n"
        "while not list(Path(sys.argv[1]).rglob('*.wandb')): time.sleep(0.05)\n"
        "try: print('begun', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt: m.log(2, {'loss/mean': 0.5}); time.sleep(0.5)\n"
        "print('caught', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "WANDB_MODE": "offline"},
    )
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    assert process.stdout.readline() == "caught\n"
    process.kill()
    process.wait()
    end = time.monotonic() + 30
    while len(recorded_rows(tmp_path / "monitors" / "wandb")) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_library_stays_out_of_the_training_process():
    code = (
        "import sys; from protolith.training.monitors.external import ExternalMonitors;"
        "print([name for name in ('wandb', 'tensorboard', 'torch') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


# --- queues, deadlines, missing packages ---------------------------------------------------------------


class Hanging:
    """A tracker that stops answering after some rows."""

    later = "Later."

    def __init__(self, after: int = 0) -> None:
        self.after = after
        self.written: list[int] = []
        self.killed = threading.Event()

    def open(self) -> None:
        pass

    def write(self, step: int, numbers) -> None:
        if len(self.written) >= self.after:
            self.killed.wait(60)
            raise ConnectionError("killed")
        self.written.append(step)

    def flush(self) -> None:
        pass

    def close(self, deadline_s: float) -> None:
        pass

    def kill(self) -> None:
        self.killed.set()

    def complaint(self) -> str | None:
        return None


def feeding(sink, said: list[str], capacity: int) -> ExternalMonitors:
    monitors = ExternalMonitors([], RunDir(Path("unused")), warn=said.append)
    monitors._feeds.append(_Feed("Tracker", sink, capacity))
    return monitors


def test_a_tracker_that_hangs_stalls_nobody_and_is_left_at_the_deadline(said):
    sink = Hanging(after=5)
    m = feeding(sink, said, capacity=100)
    assert log_steps(m, 1, 2000) < 0.1
    before = time.monotonic()
    m.close(1.0)
    assert time.monotonic() - before < 1.3
    assert sink.killed.is_set()
    assert len(said) == 1
    assert "1994 rows were not sent" in said[0] or "1995 rows were not sent" in said[0]
    m.close(1.0)
    assert len(said) == 1


def test_a_full_queue_drops_the_oldest_rows_and_counts_them(said):
    sink = Hanging(after=10**9)
    gate = threading.Event()
    sink.open = gate.wait
    m = feeding(sink, said, capacity=10)
    log_steps(m, 1, 25)
    gate.set()
    m.close(5.0)
    assert sink.written == list(range(16, 26))
    assert len(said) == 1 and "15 rows were not sent" in said[0]


def test_one_tracker_that_hangs_takes_nothing_from_another(said):
    good, bad = Hanging(after=10**9), Hanging()
    m = feeding(good, said, capacity=1000)
    m._feeds.append(_Feed("Bad", bad, 10))
    log_steps(m, 1, 100)
    m.close(1.0)
    assert good.written == list(range(1, 101))
    assert len(said) == 1 and said[0].startswith("Bad:")


def test_warnings_are_given_on_the_thread_of_the_caller(said):
    threads: list[str] = []
    sink = Hanging(after=0)
    sink.killed.set()  # writing raises at once
    m = ExternalMonitors(
        [], RunDir(Path("unused")), warn=lambda text: threads.append(threading.current_thread().name)
    )
    m._feeds.append(_Feed("Tracker", sink, 10))
    m.log(1, {})
    m.close(2.0)
    assert threads == [threading.current_thread().name]


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_missing_package_is_an_error_at_construction_with_the_install_line(name, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        external.importlib.util,
        "find_spec",
        lambda asked, *more: None if asked == name else real(asked, *more),
    )
    with pytest.raises(MissingExtraError) as caught:
        ExternalMonitors(["console", name], RunDir(tmp_path), warn=print)
    assert f"pip install 'protolith[{name}]'" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tracker_is_refused_and_none_at_all_is_fine(tmp_path, said):
    with pytest.raises(InvalidValueError):
        ExternalMonitors(["mlflow"], RunDir(tmp_path), warn=print)
    nothing = ExternalMonitors(["console"], RunDir(tmp_path), warn=said.append)
    nothing.log(1, {"loss/mean": 1.0})
    nothing.close(0.0)
    assert said == [] and list(tmp_path.iterdir()) == []
