"""What the command prints, and to whom: plain lines in a file, one JSON document for programs (T52)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_model(folder / "model")
    return folder


def test_a_log_file_has_plain_lines(place, tmp_path):
    """200 steps, a line every 20: no carriage return, no escape byte, numbers a script can read."""
    recipe = tiny.write_recipe(
        place,
        output__dir=str(tmp_path / "run"),
        trainer__max_steps=200,
        trainer__checkpoint_every_n_steps=1000,
        data__max_seq_length=16,
        logging__log_every_n_steps=20,
    )
    with open(tmp_path / "log.txt", "wb") as out:
        code = subprocess.run(
            [sys.executable, "-m", "protolith", "pretrain", str(recipe)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=tiny.environment(),
            check=False,
        ).returncode
    data = (tmp_path / "log.txt").read_bytes()
    assert code == 0, data
    assert b"\r" not in data
    assert b"\x1b" not in data
    text = data.decode()
    lines = [line for line in text.splitlines() if line.startswith("step ") and "loss" in line]
    assert len(lines) == 11  # the first step and every twentieth
    step, loss = lines[-1].split()[1], float(lines[-1].split()[3])
    assert step == "200/200"
    assert 0 < loss < 10
    assert text.splitlines()[0].startswith("init: scratch")


def test_without_the_console_backend_a_run_still_says_how_it_ended(place, tmp_path):
    recipe = tiny.write_recipe(
        place,
        output__dir=str(tmp_path / "run"),
        trainer__max_steps=2,
        eval__every_n_steps=1,
        logging__backends=[],
    )
    result = tiny.cli("pretrain", recipe)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1].startswith("done: 2 steps")
    assert len(lines) > 1 and all(line.startswith("warning: ") for line in lines[:-1])


def test_a_terminal_gets_a_bar_and_no_color_is_respected(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), data__max_seq_length=16)
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "protolith", "pretrain", str(recipe)],
        stdout=follower,
        stderr=follower,
        env=tiny.environment(TERM="xterm-256color", COLUMNS="120"),
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    os.close(leader)
    assert process.wait() == 0, seen
    assert b"training" in seen
    assert "━".encode() in seen


def test_json_is_one_document_and_progress_goes_to_stderr(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), trainer__max_steps=3)
    result = tiny.cli("pretrain", recipe, "-o", "json")
    value = json.loads(result.stdout)
    assert (value["step"], value["stopped_by"]) == (3, "steps")
    assert value["metrics"]["loss"] == value["metrics"]["loss/mean"]
    assert "step 3/3" in result.stderr


def test_a_dry_run_shows_config_and_plan_and_touches_nothing(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"))
    result = tiny.cli("pretrain", recipe, "--dry-run", "-o", "json", "--set", "trainer.batch_size=4")
    value = json.loads(result.stdout)
    assert value["config"]["trainer"]["batch_size"] == 4
    assert value["plan"]["total_steps"] == 12
    assert value["plan"]["num_parameters"] == 103_040
    assert not (tmp_path / "run").exists()
    for words in (("--nproc", 3), ("--set", "trainer.num_gpus=3")):
        planned = json.loads(tiny.cli("plan", recipe, *words, "-o", "json").stdout)["plan"]
        assert (planned["batch"]["world_size"], planned["batch"]["global_rows"]) == (3, 6)
    text = tiny.cli("plan", recipe).stdout
    assert "103,040 parameters" in text
    assert "12 steps" in text


def test_resume_alone_means_the_latest_wherever_it_stands(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), trainer__max_steps=3)
    assert tiny.cli("pretrain", recipe).returncode == 0
    result = tiny.cli("pretrain", "--resume", recipe)
    assert result.returncode == 0, result.stderr
    assert "resumed from step_3" in result.stdout


def test_resume_fills_its_own_value():
    from protolith.cli.commands.pretrain import fill_resume

    assert fill_resume(["--resume"]) == ["--resume", "latest"]
    assert fill_resume(["--resume", "r.yaml"]) == ["--resume", "latest", "r.yaml"]
    assert fill_resume(["r.yaml", "--resume", "400"]) == ["r.yaml", "--resume", "400"]
    assert fill_resume(["r.yaml", "--resume", "--overwrite"]) == [
        "r.yaml",
        "--resume",
        "latest",
        "--overwrite",
    ]
    assert fill_resume(["--resume=4", "r.yaml"]) == ["--resume=4", "r.yaml"]
    gone = ["r.yaml", "--resume", "out/checkpoints/step_9"]
    assert fill_resume(gone) == gone, "the refusal can name it"
