"""Several ranks in forked processes: a real process group over gloo, without a second import of torch."""

from __future__ import annotations

import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protolith.training.request import Request
from tests.support import tiny

#: What ranks of a test inherit, here and in commands.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its value, or the class and text of what it raised."""

    value: Any = None
    error: str = ""
    message: str = ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def together(size: int, action: Callable[[int], Any], timeout_s: float = 60.0) -> list[Ended]:
    """``action(rank)`` in ``size`` processes that find one another; what each came to."""
    fork = multiprocessing.get_context("fork")
    port = free_port()
    pipes, children = [], []
    for rank in range(size):
        receive, send = fork.Pipe(duplex=False)
        child = fork.Process(target=_as_rank, args=(rank, size, port, action, send))
        child.start()
        send.close()
        pipes.append(receive)
        children.append(child)
    ended = []
    try:
        for pipe in pipes:
            if not pipe.poll(timeout_s):
                raise AssertionError(f"a rank did not end within {timeout_s} seconds")
            try:
                ended.append(pipe.recv())
            except EOFError:
                ended.append(Ended(error="killed"))
    finally:
        for child in children:
            child.join(5.0)
            child.kill()
            child.join()
    return ended


def _as_rank(rank: int, size: int, port: int, action: Callable[[int], Any], send: Any) -> None:
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ.update(ENVIRONMENT, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **place)
    try:
        send.send(Ended(value=action(rank)))
    except BaseException as error:
        traceback.print_exc()
        send.send(Ended(error=type(error).__name__, message=str(error)))
    finally:
        send.close()


def train(
    folder: Path, size: int, *, request: Request | None = None, timeout_s: float = 60.0, **changes: Any
) -> list[Ended]:
    """A recipe on ``size`` ranks; each gives its ``TrainState``."""
    return together(size, lambda _rank: tiny.train(folder, request=request, **changes), timeout_s)
