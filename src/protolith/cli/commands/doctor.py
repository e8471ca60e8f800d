"""``protolith doctor``: what this machine has, what is missing, and the line that installs it.

Always exits 0: it is a report, not a test. A part that cannot be looked at is reported as such.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from protolith.cli.render import Form, FormOption, facts, heading, print_json, say, table
from protolith.distributed.machine import machine_memory
from protolith.units import format_bytes
from protolith.version import __version__

_LOW_DISK_BYTES = 2 * 10**9
_DEVELOPERS_ONLY = ("dev",)
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*).*?;.*extra\s*==\s*['\"]([^'\"]+)['\"]")


def doctor(form: FormOption = Form.text) -> None:
    """Say what this machine has, which extras are missing, and what to install."""
    torch_facts = _torch()
    report = {
        "protolith": __version__,
        "python": {"version": platform.python_version(), "executable": sys.executable},
        "system": f"{platform.system()} {platform.release()} ({platform.machine()})",
        "torch": torch_facts,
        "devices": torch_facts.pop("devices", []),
        "cpu": {"cores": num_cores(), "name": _cpu_name()},
        "memory": machine_memory(),
        "disk": [_disk("working folder", Path.cwd()), _disk("PROTOLITH_HOME", home())],
        "compiler": shutil.which(os.environ.get("CXX") or "g++"),
        "home": str(home()),
        "extras": _extras(),
    }
    advice = _advice(report)
    if form is Form.json:
        print_json({**report, "advice": advice})
        return
    _show(report, advice)


def home() -> Path:
    """Where caches and client config live: ``PROTOLITH_HOME``, by default ``~/.protolith``."""
    return Path(os.environ.get("PROTOLITH_HOME") or "~/.protolith").expanduser()


def num_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _torch() -> dict[str, Any]:
    try:
        import torch

        from protolith.distributed.world import has_fast_bf16
    except Exception as error:  # noqa: BLE001 - a broken install is what this command is for
        return {"version": None, "problem": f"{type(error).__name__}: {error}"}
    devices: list[dict[str, Any]] = []
    try:
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "device": f"cuda:{index}",
                    "name": gpu.name,
                    "memory_bytes": gpu.total_memory,
                    "fast_bf16": has_fast_bf16(torch.device("cuda", index)),
                }
            )
    except Exception as error:  # noqa: BLE001 - a driver that does not fit raises what it likes
        devices.append(
            {"device": "cuda", "name": f"cannot be used: {error}", "memory_bytes": None, "fast_bf16": None}
        )
    devices.append(
        {
            "device": "cpu",
            "name": _cpu_name() or platform.machine(),
            "memory_bytes": machine_memory()["total_bytes"],
            "fast_bf16": has_fast_bf16(torch.device("cpu")),
        }
    )
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "devices": devices,
    }


def _cpu_name() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or None


def _disk(what: str, path: Path) -> dict[str, Any]:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        free = None
    return {"what": what, "path": str(path), "free_bytes": free, "writable": os.access(there, os.W_OK)}


def _extras() -> list[dict[str, Any]]:
    """The optional parts this installation declares, with what each lacks."""
    try:
        requirements = importlib.metadata.requires("protolith") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    packages: dict[str, dict[str, str | None]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match and match.group(2) not in _DEVELOPERS_ONLY:
            packages.setdefault(match.group(2), {})[match.group(1)] = _installed(match.group(1))
    return [
        {
            "name": name,
            "installed": all(found.values()),
            "packages": found,
            "install": f"pip install 'protolith[{name}]'",
        }
        for name, found in packages.items()
    ]


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _advice(report: dict[str, Any]) -> list[str]:
    advice = []
    if report["torch"]["version"] is None:
        advice.append("torch cannot be imported: pip install torch")
    gpus = [device for device in report["devices"] if device["device"] != "cpu"]
    if not gpus and any(device["fast_bf16"] is False for device in report["devices"]):
        advice.append(
            "bf16 is emulated on this CPU and slower than fp32: set trainer.mixed_precision to fp32"
        )
    if report["compiler"] is None:
        advice.append("no C++ compiler, so torch.compile stays off on the CPU: install g++ (apt install g++)")
    for disk in report["disk"]:
        if disk["free_bytes"] is not None and disk["free_bytes"] < _LOW_DISK_BYTES:
            advice.append(f"little space in {disk['path']}: {format_bytes(disk['free_bytes'])} free")
        if not disk["writable"]:
            advice.append(f"{disk['path']} cannot be written")
    advice.extend(
        f"{extra['name']}: {extra['install']}" for extra in report["extras"] if not extra["installed"]
    )
    return advice


def _show(report: dict[str, Any], advice: list[str]) -> None:
    memory, pytorch = report["memory"], report["torch"]
    cuda = f", CUDA {pytorch['cuda']}" if pytorch.get("cuda") else ""
    lines = {
        "protolith": report["protolith"],
        "python": f"{report['python']['version']} ({report['python']['executable']})",
        "system": report["system"],
        "torch": f"{pytorch['version']}{cuda}"
        if pytorch["version"]
        else f"cannot be imported: {pytorch['problem']}",
        "cores": f"{report['cpu']['cores']}"
        + (f" ({report['cpu']['name']})" if report["cpu"]["name"] else ""),
        "memory": _bytes(memory["total_bytes"])
        + (f", {_bytes(memory['available_bytes'])} free" if memory["available_bytes"] else "")
        + (f", limited to {_bytes(memory['limit_bytes'])} here" if memory["limit_bytes"] else ""),
        "compiler": report["compiler"] or "none found",
        "home": report["home"],
    }
    facts(lines)
    for title, columns, rows in (
        (
            "devices",
            ("device", "name", "memory", "bf16"),
            [_device_row(device) for device in report["devices"]],
        ),
        (
            "disk",
            ("where", "free", "path"),
            [(d["what"], _bytes(d["free_bytes"]), d["path"]) for d in report["disk"]],
        ),
        ("extras", ("extra", "state", "install"), [_extra_row(extra) for extra in report["extras"]]),
    ):
        if rows:
            say()
            heading(title)
            table(columns, rows)
    say()
    heading("advice")
    for line in advice or ["nothing is missing"]:
        say(f"  {line}")


def _device_row(device: dict[str, Any]) -> tuple[str, str, str, str]:
    bf16 = {True: "fast", False: "emulated", None: "-"}[device["fast_bf16"]]
    return device["device"], device["name"], _bytes(device["memory_bytes"]), bf16


def _extra_row(extra: dict[str, Any]) -> tuple[str, str, str]:
    found = ", ".join(f"{name} {version}" for name, version in extra["packages"].items() if version)
    return (
        extra["name"],
        found if extra["installed"] else "missing",
        "" if extra["installed"] else extra["install"],
    )


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)
