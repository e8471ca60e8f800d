"""What a rank leaves for the launcher that started it: how it ended, in files of a folder the two share.

    FOLDER/rank_<r>.pid        the rank lives, or lived
    FOLDER/rank_<r>.json       how it ended: {"exit_code", "time"} and, when it failed, {"error"}
    FOLDER/stop                present: somebody asked a rank, or the launcher, to stop
    FOLDER/restart.txt         why this is another attempt

A rank that ends in order (done, or stopped on request) ends its process with 0, whatever its command ends
with, because torchrun takes any other code for a failure and ends its neighbours. What the command ends with
is in the file, and the launcher ends with it.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.errors import EXIT_DONE, EXIT_STOPPED, ProtolithError
from protolith.formats.rundir import read_json, write_json

FOLDER = "PROTOLITH_LAUNCH_DIR"
LAUNCHER = "PROTOLITH_LAUNCHER_PID"
#: Exit codes that are no failure.
ORDERLY = (EXIT_DONE, EXIT_STOPPED)


@dataclass(frozen=True)
class Meeting:
    """The folder that the launcher and its ranks share."""

    folder: Path

    @property
    def stop(self) -> Path:
        return self.folder / "stop"

    @property
    def restart(self) -> Path:
        return self.folder / "restart.txt"

    def pid(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.pid"

    def outcome(self, rank: int) -> Path:
        return self.folder / f"rank_{rank}.json"

    def outcomes(self, size: int) -> dict[int, dict[str, Any]]:
        """By rank, of those that left one."""
        found = {}
        for rank in range(size):
            with suppress(OSError, ValueError):
                found[rank] = read_json(self.outcome(rank))
        return found


def is_a_rank() -> bool:
    """Whether somebody started this process as one of several, or torchrun as the only one."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_rank() -> bool:
    """Whether this is the process that prints."""
    return not is_a_rank() or own_rank() == 0


def own_rank() -> int:
    return int(os.environ["RANK"])


def restart_reason() -> tuple[str, ...]:
    """Why this is another attempt, in one sentence; nothing on the first."""
    place = meeting()
    try:
        return (place.restart.read_text(encoding="utf-8"),) if place else ()
    except OSError:
        return ()


def meeting() -> Meeting | None:
    """Where this process meets its launcher; None when it is no rank, or somebody else started it."""
    folder = os.environ.get(FOLDER)
    return Meeting(Path(folder)) if folder and is_a_rank() else None


def hand_in(code: int) -> int:
    """Note the exit code of this rank's command; returns that of its process."""
    place = meeting()
    if place is None or code not in ORDERLY:
        return code
    _write(place, {"exit_code": code})
    return EXIT_DONE


def hand_in_error(error: ProtolithError) -> bool:
    """Leave an error to the launcher, which shows it; False when there is none and it must be shown here."""
    place = meeting()
    if place is None:
        return False
    _write(place, {"exit_code": error.exit_code, "error": error.to_dict()})
    return True


def _write(place: Meeting, value: dict[str, Any]) -> None:
    with suppress(ProtolithError, OSError):
        write_json(place.outcome(own_rank()), {**value, "time": time.time()})


class ReportedError(ProtolithError):
    """An error that a rank left, as it was there."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        error = outcome["error"]
        super().__init__(error["message"], hint=error["hint"], where=error["where"])
        self._error = error
        self.code = error["code"]  # type: ignore[misc]  # of the class elsewhere; here it is any error's
        self.exit_code = int(outcome["exit_code"])  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        return dict(self._error)
