"""What keeps a rank from living on alone: a thread that looks around twice a second.

Without its launcher a rank ends at once; on Linux the kernel sees to it too, even when Python cannot run.
When a neighbour on this machine is gone and did not end in order, this rank has a few seconds to notice by
itself (gloo sees a closed connection, NCCL does not) and is then ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress

from protolith.distributed.outcome import LAUNCHER, ORDERLY, Meeting, hand_in_error, meeting, own_rank
from protolith.errors import EXIT_FAILED, WorkerLostError
from protolith.formats.rundir import read_json

_LOOK_S = 0.5
_GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1


def guard() -> None:
    """Start to look around, when a launcher of ours started this process."""
    place = meeting()
    if place is None:
        return
    launcher = int(os.environ[LAUNCHER])
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    place.pid(own_rank()).write_text(str(os.getpid()))
    neighbours = [rank for rank in range(int(os.environ["WORLD_SIZE"])) if rank != own_rank()]
    threading.Thread(
        target=_look_around, args=(place, launcher, neighbours), name="guard", daemon=True
    ).start()


def _look_around(place: Meeting, launcher: int, neighbours: list[int]) -> None:
    lost_since: float | None = None
    while True:
        if os.getppid() != launcher:
            os._exit(EXIT_FAILED)
        lost = [rank for rank in neighbours if _is_lost(place, rank)]
        if lost and lost_since is None:
            lost_since = time.monotonic()
        if lost_since is not None and time.monotonic() - lost_since > _GRACE_S:
            hand_in_error(WorkerLostError("another rank is gone, and this one waited for it"))
            os._exit(EXIT_FAILED)
        time.sleep(_LOOK_S)


def _is_lost(place: Meeting, rank: int) -> bool:
    """Whether a neighbour lived, is gone, and did not end in order."""
    try:
        os.kill(int(place.pid(rank).read_text()), 0)
    except ProcessLookupError:
        pass
    except (OSError, ValueError):  # not there yet, or not ours to ask
        return False
    else:
        return False
    try:
        return read_json(place.outcome(rank))["exit_code"] not in ORDERLY
    except (OSError, ValueError, KeyError):
        return True
