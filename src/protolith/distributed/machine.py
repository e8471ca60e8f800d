"""Memory of this machine, as far as the system tells. Without torch: it is asked when torch is broken too."""

from __future__ import annotations

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> dict[str, int | None]:
    """Bytes in all and free, and the limit of the container when there is one below that; None: not known."""
    total = available = None
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            if name == "MemTotal":
                total = int(rest.split()[0]) * 1024
            elif name == "MemAvailable":
                available = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"total_bytes": total, "available_bytes": available, "limit_bytes": container_limit(total)}


def container_limit(total: int | None) -> int | None:
    """The most a container gives its processes, where that is less than ``total``."""
    for path in _LIMITS:
        try:
            limit = int(Path(path).read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue  # no such file, or "max"
        return limit if total is None or limit < total else None
    return None


def free_memory() -> int | None:
    """The most that a new process can have here: what is free, and no more than the container's limit."""
    known = machine_memory()
    return min((n for n in (known["available_bytes"], known["limit_bytes"]) if n is not None), default=None)
