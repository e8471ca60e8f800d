"""``protolith runs``: read from files alone, whatever state they are in."""

from __future__ import annotations

import fcntl
import json
import os
from datetime import UTC, datetime, timedelta

import pytest


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.fixture
def runs(protolith, tmp_path):
    def call(*words: object):
        return protolith("runs", tmp_path / "output", *words)

    return call


def test_lists_state_step_losses_tokens_and_last_checkpoint(runs, make_run, add_checkpoint):
    run = make_run(
        "big/one",
        metrics=[
            {"step": 10, "time": "t", "loss/mean": 3.5},
            {"step": 20, "time": "t", "loss/mean": 2.25},
            {"step": 20, "time": "t", "val/loss": 2.5, "val/perplexity": "inf"},
        ],
    )
    add_checkpoint(run, 10)
    add_checkpoint(run, 20)
    answer = runs()
    assert answer.code == 0
    header, line = answer.out.splitlines()
    assert header.split() == [
        "run",
        "state",
        "step",
        "loss",
        "val",
        "loss",
        "tokens",
        "checkpoint",
        "last",
        "sign",
    ]
    assert line.split()[:7] == ["big/one", "completed", "20/20", "2.2500", "2.5000", "5.12k", "20"]
    value = runs("-o", "json").json["runs"][0]
    assert value["path"] == str(run)
    assert (value["loss"], value["val_loss"], value["last_checkpoint"]) == (2.25, 2.5, 20)
    assert (value["state"], value["step"], value["total"]) == ("completed", 20, 20)


def test_a_killed_run_is_interrupted_a_frozen_one_stalled_and_a_living_one_running(runs, make_run):
    make_run("a-lives", status={"state": "running", "heartbeat": ago(1)})
    make_run("b-killed", status={"state": "running", "heartbeat": ago(300)})
    frozen = make_run("c-frozen", status={"state": "running", "heartbeat": ago(300)})
    (frozen / ".lock").touch()
    handle = os.open(frozen / ".lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        states = [run["state"] for run in runs("-o", "json").json["runs"]]
    finally:
        os.close(handle)
    assert states == ["running", "interrupted", "stalled"]


def test_a_torn_checkpoint_is_not_the_last_one(runs, make_run, add_checkpoint):
    run = make_run()
    add_checkpoint(run, 10)
    (add_checkpoint(run, 20) / "config.json").unlink()
    assert runs("-o", "json").json["runs"][0]["last_checkpoint"] == 10


def test_a_loss_of_a_run_that_went_back_is_that_of_the_later_attempt(runs, make_run):
    make_run(metrics=[{"step": s, "loss/mean": 9.0} for s in (1, 2, 3)] + [{"step": 2, "loss/mean": 1.0}])
    assert runs("-o", "json").json["runs"][0]["loss"] == 1.0


def test_damaged_files_are_problems_of_that_run_not_the_end_of_the_listing(runs, make_run):
    bad = make_run("bad", metrics=['{"step": 1, "loss', '{"step": "one"}', '{"step": 2, "loss/mean": "nan"}'])
    (bad / "config.json").write_text("{]")
    (bad / "status.json").write_text("[1]")
    make_run("good")
    answer = runs()
    assert answer.code == 0
    assert "config.json is damaged" in answer.err and "status.json is damaged" in answer.err
    assert [line.split()[:2] for line in answer.out.splitlines()[1:]] == [
        ["bad", "unknown"],
        ["good", "completed"],
    ]


def test_names_cannot_steer_the_terminal(runs, make_run):
    make_run("evil\x1b[2J\rname")
    out = runs().out
    assert "\x1b" not in out and "\r" not in out
    assert "evil\\x1b[2J\\x0dname" in out


def test_no_folder_is_exit_3_and_an_empty_one_is_no_runs(protolith, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert protolith("runs").out == "no runs under output\n"
    assert protolith("runs", "-o", "json").json == {"root": "output", "runs": []}
    missing = protolith("runs", "nowhere")
    assert missing.code == 3 and "nowhere" in missing.err


def test_the_default_folder_is_output_and_a_run_can_be_named_in_it(
    protolith, make_run, tmp_path, monkeypatch
):
    make_run("mine")
    make_run("show")
    monkeypatch.chdir(tmp_path)
    assert "mine" in protolith("runs").out
    assert protolith("runs", "show", "mine", "-o", "json").json["run"]["path"] == "output/mine"
    assert protolith("runs", "./output/show", "-o", "json").json["runs"][0]["path"] == "output/show"


def test_show_prints_config_plan_ledger_checkpoints_and_last_numbers(protolith, make_run, add_checkpoint):
    run = make_run(metrics=[{"step": 20, "time": "t", "loss/mean": 2.25, "optim/lr": 3e-4}])
    (run / "plan.json").write_text('{"total_steps": 20, "warnings": []}')
    line = {"epoch": 1, "read": 5200, "trained": 5120}
    (run / "ledger.json").write_text(json.dumps({"sources": {"data": {"epochs": [line]}}}))
    add_checkpoint(run, 10)
    (add_checkpoint(run, 20) / "model.safetensors").write_bytes(b"short")
    text = protolith("runs", "show", run)
    assert text.code == 0
    for said in ("completed", "max_seq_length: 16", "total_steps: 20", "5,200    5,120", "valid", "optim/lr"):
        assert said in text.out
    assert "not valid: model.safetensors has 5 bytes" in text.out
    value = protolith("runs", "show", run, "-o", "json").json
    assert value["config"]["data"]["max_seq_length"] == 16
    assert value["ledger"]["sources"]["data"]["epochs"][0]["trained"] == 5120
    assert [(c["step"], c["valid"]) for c in value["checkpoints"]] == [(10, True), (20, False)]
    assert value["metrics"]["loss/mean"] == 2.25


def test_show_verify_finds_a_flipped_byte(protolith, make_run, add_checkpoint):
    run = make_run()
    weights = add_checkpoint(run, 10) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert protolith("runs", "show", run, "-o", "json").json["checkpoints"][0]["valid"]
    found = protolith("runs", "show", run, "--verify", "-o", "json").json["checkpoints"][0]
    assert not found["valid"] and "digest" in found["problem"]


def test_show_tells_the_error_of_a_failed_run(protolith, make_run):
    run = make_run(
        status={
            "state": "failed",
            "error": {
                "code": "non_finite",
                "message": "loss is nan",
                "hint": "lower the rate",
                "where": "step 7",
            },
        }
    )
    out = protolith("runs", "show", run).out
    for said in ("failed", "loss is nan", "step 7", "lower the rate"):
        assert said in out


def test_show_of_something_else_is_exit_3(protolith, tmp_path):
    assert protolith("runs", "show", tmp_path).code == 3
    assert protolith("runs", "show", "no-such-run", "-o", "json").json["error"]["code"] == "not_found"


def test_the_ledger_is_a_table_that_adds_up(capsys):
    from protolith.cli.ledger_table import show_ledger
    from protolith.data.ledger import Ledger
    from protolith.data.packing import RowCounts
    from protolith.data.rows import CountKey

    ledger = Ledger()
    ledger.add({CountKey("web", 0): RowCounts(read=1200, trained=1190, masked=10, padded=3)})
    ledger.add({CountKey("web", 1): RowCounts(read=50, trained=49, masked=1)})
    ledger.leave_out({CountKey("code", 0): RowCounts(read=64, trained=64)}, "--skip-rows")
    ledger.set_skipped({"null": 2}, "web")
    show_ledger(ledger.to_dict())
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "web 1 1,200 1,190 10 0 0 3" in lines and "web 2 50 49 1 0 0 0" in lines
    assert "code 1 64 0 0 0 64 0" in lines and "all 1,314 1,239 11 0 64 3" in lines
    assert "49 of the trained tokens had been trained on before (epochs after the first)" in lines
    assert "code, epoch 1: 64 tokens skipped: --skip-rows" in lines and "web: 2 left out: null" in lines
    show_ledger({"sources": {"x": {"epochs": [{"epoch": 1, "read": "many"}]}}})
