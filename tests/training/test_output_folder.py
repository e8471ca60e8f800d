"""Nobody's work is overwritten, continued or removed without a word (T59)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protolith.errors import ConflictError, NotAllowedError, OutputInUseError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir, write_json
from protolith.training.output_folder import claim, foresee, is_alive, strangers
from tests.support import tiny


def a_run(root, step):
    root.mkdir(parents=True, exist_ok=True)
    write_json(root / "status.json", {"heartbeat": "2026-01-01", "step": step})
    write_json(root / "config.json", {})
    return RunDir(root)


def a_checkpoint(run_dir, step):
    aside = checkpoint_files.begin(run_dir.checkpoints, step)
    (aside / "x").write_text("x")
    return checkpoint_files.commit(aside, step)


def test_an_empty_folder_is_taken_and_released(tmp_path):
    run_dir = RunDir(tmp_path / "new" / "run")
    with claim(run_dir, resume=False, overwrite=False) as notes:
        assert notes == []
        assert is_alive(run_dir)
    assert not is_alive(run_dir)


def test_a_run_that_trained_needs_a_word(tmp_path):
    run_dir = a_run(tmp_path, 40)
    a_checkpoint(run_dir, 40)
    with pytest.raises(OutputInUseError) as caught, claim(run_dir, resume=False, overwrite=False):
        pass
    assert caught.value.exit_code == 5
    assert "--resume" in caught.value.hint
    assert "step 40" in caught.value.message
    with claim(run_dir, resume=True, overwrite=False):
        assert (run_dir.checkpoints / "step_40").is_dir()


def test_overwrite_removes_our_own_names_only(tmp_path):
    run_dir = a_run(tmp_path, 40)
    a_checkpoint(run_dir, 40)
    (tmp_path / "notes.txt").write_text("mine")
    (run_dir.checkpoints / "step_final_mine").mkdir()
    with claim(run_dir, resume=False, overwrite=True) as notes:
        assert "removed" in notes[0]
        left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    assert left == [".lock", "checkpoints", "checkpoints/step_final_mine", "notes.txt"]


def test_a_run_that_ended_before_its_first_step_is_in_nobodys_way(tmp_path):
    run_dir = a_run(tmp_path, 0)
    with claim(run_dir, resume=False, overwrite=False):
        assert not run_dir.config.exists()


def test_a_folder_that_is_no_run_is_never_taken(tmp_path):
    """A model's folder has a config.json too; even --overwrite must not touch it."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    for overwrite in (False, True):
        with pytest.raises(ConflictError, match=r"config\.json"):
            with claim(RunDir(tmp_path), resume=False, overwrite=overwrite):
                pass
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "qwen3"}


def test_two_living_runs_never_share_a_folder(tmp_path):
    run_dir = RunDir(tmp_path / "run")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from protolith.formats.rundir import RunDir\n"
        "from protolith.training.output_folder import claim\n"
        f"with claim(RunDir(Path({str(run_dir.root)!r})), resume=False, overwrite=False):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        for resume, overwrite in ((False, False), (True, False), (False, True)):
            with pytest.raises(OutputInUseError, match="another run"):
                with claim(run_dir, resume=resume, overwrite=overwrite):
                    pass
    finally:
        holder.kill()
        holder.wait()
    with claim(run_dir, resume=False, overwrite=False):
        pass  # the kernel freed the lock of the killed holder


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(ConflictError):
        with claim(RunDir(tmp_path / "run"), resume=False, overwrite=False):
            pass
    with pytest.raises(ConflictError):
        with claim(RunDir(tmp_path / "run" / "deeper"), resume=False, overwrite=False):
            pass


def test_an_unwritable_folder_is_a_typed_refusal(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(NotAllowedError) as caught:
        with claim(RunDir(tmp_path / "run"), resume=False, overwrite=False):
            pass
    assert caught.value.exit_code == 4


def test_half_written_checkpoints_are_swept_and_an_old_stop_is_forgotten(tmp_path):
    run_dir = a_run(tmp_path, 5)
    a_checkpoint(run_dir, 5)
    checkpoint_files.begin(run_dir.checkpoints, 6)
    run_dir.control_stop.parent.mkdir()
    run_dir.control_stop.touch()
    with claim(run_dir, resume=True, overwrite=False) as notes:
        assert "half-written" in notes[0]
        assert not run_dir.control_stop.exists()
        assert [p.name for p in run_dir.checkpoints.iterdir()] == ["step_5"]


def test_a_folder_that_cannot_be_made_is_a_typed_refusal():
    """A place where the system makes no folders."""
    with pytest.raises(NotAllowedError):
        with claim(RunDir(Path("/proc/nobody/run")), resume=False, overwrite=False):
            pass


def test_a_folder_with_other_peoples_files_is_taken_with_a_word(tmp_path):
    """Also one that holds only a lock or hidden files is empty; a run is no stranger to itself."""
    run_dir = RunDir(tmp_path / "out")
    assert strangers(run_dir) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").touch()
    assert strangers(run_dir) == []
    for name in ("b.txt", "a.txt", "photos", "z"):
        (tmp_path / "out" / name).mkdir()
    (said,) = strangers(run_dir)
    assert "is not empty and no run: it holds a.txt, b.txt, photos and 1 more" in said
    assert foresee(run_dir) == [said]
    a_run(tmp_path / "out", 0)
    assert strangers(run_dir) == []


def test_the_run_itself_warns_of_a_folder_that_is_not_empty(tmp_path):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 30)
    tiny.write_model(tmp_path / "model")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "diary.txt").write_text("mine")
    state = tiny.train(tmp_path, trainer__max_steps=1)
    log = (state.run_dir / "logs" / "latest" / "rank_0.log").read_text()
    assert "WARNING warning: the output folder" in log and "diary.txt" in log
    assert (tmp_path / "run" / "diary.txt").read_text() == "mine"


def test_what_a_claim_would_say_is_foreseen_and_nothing_made(tmp_path):
    assert foresee(RunDir(tmp_path / "new" / "run")) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConflictError, match="the output folder is a file"):
        foresee(RunDir(tmp_path / "file"))
    with pytest.raises(ConflictError, match="a part of the output path is a file"):
        foresee(RunDir(tmp_path / "file" / "deeper"))
    run_dir = a_run(tmp_path / "run", 40)
    a_checkpoint(run_dir, 40)
    (said,) = foresee(run_dir)
    assert "already holds a run (step 40, last checkpoint at step 40)" in said and "--resume" in said
    with claim(run_dir, resume=True, overwrite=False):
        assert foresee(run_dir) == [f"another run is working in {run_dir.root} right now"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConflictError, match="not a run"):
        foresee(RunDir(tmp_path / "model"))
