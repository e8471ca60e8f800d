"""``protolith doctor``: a report that never fails."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest

from protolith.cli.commands import doctor
from protolith.distributed import machine


def test_says_what_there_is_and_exits_0(protolith, tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOLITH_HOME", str(tmp_path / "home" / "deeper"))
    report = protolith("doctor", "-o", "json")
    assert report.code == 0 and report.err == ""
    value = report.json
    assert value["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert value["torch"]["version"] and value["devices"][-1]["device"] == "cpu"
    assert value["cpu"]["cores"] >= 1 and value["memory"]["total_bytes"] > 10**8
    assert value["home"] == str(tmp_path / "home" / "deeper")
    assert all(disk["free_bytes"] > 0 and disk["writable"] for disk in value["disk"])
    assert not (tmp_path / "home").exists()
    assert {extra["name"] for extra in value["extras"]} >= {"tensorboard", "wandb"}
    text = protolith("doctor").out
    for said in ("python:", "torch:", "cores:", "devices", "extras", "advice"):
        assert said in text


def test_a_missing_extra_comes_with_its_pip_line(protolith, monkeypatch):
    real = importlib.metadata.version

    def version(package: str) -> str:
        if package == "wandb":
            raise importlib.metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    value = protolith("doctor", "-o", "json").json
    wandb = next(extra for extra in value["extras"] if extra["name"] == "wandb")
    assert not wandb["installed"] and wandb["install"] == "pip install 'protolith[wandb]'"
    assert "wandb: pip install 'protolith[wandb]'" in value["advice"]


def test_no_compiler_and_a_broken_torch_are_advice_not_failures(protolith, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "protolith.distributed.world", None)
    report = protolith("doctor")
    assert report.code == 0
    assert "torch cannot be imported" in report.out and "install g++" in report.out


@pytest.mark.parametrize(("limit", "seen"), [("max", None), ("1000000", 1_000_000), ("9" * 18, None)])
def test_a_container_limit_counts_only_below_the_memory_there_is(monkeypatch, limit, seen):
    monkeypatch.setattr(machine.Path, "read_text", lambda self, **_: limit)
    assert machine.container_limit(2_000_000) == seen


def test_free_memory_is_within_the_containers_limit(monkeypatch):
    def told(available, limit):
        known = {"total_bytes": 10, "available_bytes": available, "limit_bytes": limit}
        monkeypatch.setattr(machine, "machine_memory", lambda: known)
        return machine.free_memory()

    assert (told(8, None), told(8, 5), told(3, 5), told(None, None)) == (8, 5, 3, None)
