"""Is there room on the disk for what the plan will write?"""

from __future__ import annotations

import shutil
from pathlib import Path

from protolith.config.plan import Plan
from protolith.errors import NoSpaceError
from protolith.units import format_bytes


def check_space(folder: Path, plan: Plan) -> str:
    """A warning when the run will need more than is free, "" when all is well.

    Raises:
        NoSpaceError: not even one checkpoint fits, so nothing of the run could be kept.
    """
    free = shutil.disk_usage(folder).free
    if free < plan.checkpoint_bytes:
        raise NoSpaceError(
            f"one checkpoint takes {format_bytes(plan.checkpoint_bytes)}, {format_bytes(free)} are free",
            where=str(folder),
            hint="free space, choose another output folder, or a smaller model",
        )
    if free < plan.disk_bytes:
        return (
            f"the run needs up to {format_bytes(plan.disk_bytes)} on disk and {format_bytes(free)} are free; "
            "set trainer.keep_last, or free space"
        )
    return ""
