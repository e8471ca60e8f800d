"""Whether ``torch.compile`` earns its time back, decided from the plan alone.

The decision must be the same for a run and for its resumption, so it is a function of the planned
work, never of a measured speed. Compiling costs about half a minute and saves about a fifth of a step
on a CPU and more on a GPU; it is turned on when the planned run saves at least three times its cost.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

#: Planned floating-point operations from which compiling pays: about 5 minutes of work at the rates
#: seen for small models (1e11 a second on two CPU cores, 1e14 on a GPU).
_WORTH_FLOPS = {"cpu": 3e13, "cuda": 3e16}

_Module = TypeVar("_Module", bound=nn.Module)


def decide(setting: str | bool, *, planned_flops: float, device: torch.device) -> tuple[bool, str]:
    """(compile or not, the sentence that says why). ``setting``: auto, true/on or false/off."""
    if setting in (False, "off", "false"):
        return False, "compile: off"
    if device.type == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
        why = "no C++ compiler was found"
        return False, f"compile: off, {why}"
    if setting in (True, "on", "true"):
        return True, "compile: on"
    enough = planned_flops >= _WORTH_FLOPS.get(device.type, 3e13)
    amount = f"the planned run ({planned_flops:.1e} FLOPs)"
    if enough:
        return True, f"compile: on (auto: {amount} is long enough to earn the compile time back)"
    return False, f"compile: off (auto: {amount} is too short to earn the compile time back)"


def compiled(module: _Module, warn: Callable[[str], None]) -> _Module:
    """The compiled module. The names of its weights are read from the module inside, never from this."""
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, 32)
    try:
        return torch.compile(module)  # type: ignore[return-value]
    except RuntimeError as error:
        warn(f"compile: off, torch.compile refused: {error}")
        return module
