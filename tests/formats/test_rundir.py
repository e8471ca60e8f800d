"""Small files of a run: whole or absent, readable while written, numbers that strict JSON can hold."""

import json
import math
import os
import stat

import pytest

from protolith.errors import NoSpaceError, NotAllowedError
from protolith.formats import rundir
from protolith.formats.rundir import RunDir, find_runs, jsonable, read_metrics, write_json


def test_values_that_json_cannot_hold_become_words():
    value = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": {"d": "x"}}
    text = json.dumps(jsonable(value), allow_nan=False)
    assert json.loads(text) == {"a": "nan", "b": ["inf", "-inf", 1.5], "c": {"d": "x"}}
    assert math.isnan(rundir.number("nan"))


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    target = tmp_path / "status.json"
    write_json(target, {"step": 1})

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(NoSpaceError) as caught:
        write_json(target, {"step": 2})
    assert caught.value.exit_code == 7
    assert json.loads(target.read_text()) == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


def test_a_refusal_is_typed():
    error = rundir.from_os_error(PermissionError(13, "Permission denied"), RunDir(rundir.Path("x")).status)
    assert isinstance(error, NotAllowedError)
    assert error.exit_code == 4
    other = rundir.from_os_error(FileNotFoundError(2, "No such file or directory"), rundir.Path("/proc/x"))
    assert isinstance(other, NotAllowedError)


def test_metrics_after_going_back_supersede_what_was_written_before(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [(1, "a"), (2, "a"), (2, "val"), (3, "a"), (4, "a"), (3, "b")]
    path.write_text("".join(json.dumps({"step": s, name: s * 10}) + "\n" for s, name in rows))
    by_step = read_metrics(path)
    assert list(by_step) == [1, 2, 3]
    assert by_step[2] == {"step": 2, "a": 20, "val": 20}
    assert by_step[3] == {"step": 3, "b": 30}


def test_a_torn_line_and_foreign_lines_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x": 2}\n[1]\n\n{"step": 2, "x"')
    assert read_metrics(path) == {1: {"step": 1, "x": 2}}
    assert read_metrics(tmp_path / "none.jsonl") == {}


def test_runs_are_found_below_a_folder_but_not_inside_runs(tmp_path):
    for name in ("b", "a", "deep/c"):
        run = tmp_path / name
        run.mkdir(parents=True)
        (run / "config.json").write_text("{}")
        (run / "status.json").write_text("{}")
    inner = tmp_path / "a" / "inner"
    inner.mkdir()
    (inner / "config.json").write_text("{}")
    (inner / "status.json").write_text("{}")
    assert [p.relative_to(tmp_path).as_posix() for p in find_runs(tmp_path)] == ["a", "b", "deep/c"]


def test_last_attempt_counts_numbers_not_names(tmp_path):
    run = RunDir(tmp_path)
    assert run.last_attempt() == 0
    for name in ("attempt_9", "attempt_10", "attempt_x", "latest"):
        (run.logs / name).mkdir(parents=True)
    assert run.last_attempt() == 10


def test_files_are_readable_by_the_group(tmp_path):
    write_json(tmp_path / "x.json", {})
    assert stat.S_IMODE((tmp_path / "x.json").stat().st_mode) & 0o400
