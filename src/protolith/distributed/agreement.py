"""Ranks that do something together beside training: in threads of their own, over a group of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from protolith.distributed.world import World
from protolith.errors import CheckpointError, NoSpaceError, ProtolithError

T = TypeVar("T")


class Agreement:
    """Made by all ranks together, before they part into threads; used by one thread of each."""

    def __init__(self, world: World) -> None:
        self.rank = world.rank
        self.group: dist.ProcessGroup = dist.new_group(backend="gloo")

    def of_all(self, action: Callable[[], T]) -> list[T]:
        """What ``action`` gave on each rank, in their order.

        Raises:
            Exception: what it raised here. NoSpaceError, CheckpointError: what it raised elsewhere.
        """
        failure: Exception | None = None
        answer: tuple[Any, str, str] = (None, "", "")
        try:
            answer = (action(), "", "")
        except Exception as error:  # noqa: BLE001 - the others must hear of it before it goes on
            failure = error
            answer = (None, error.code if isinstance(error, ProtolithError) else "error", str(error))
        answers: list[Any] = [None] * self.group.size()
        dist.all_gather_object(answers, answer, group=self.group)
        if failure is not None:
            raise failure
        for rank, (_, code, message) in enumerate(answers):
            if code:
                kind = NoSpaceError if code == NoSpaceError.code else CheckpointError
                raise kind(f"rank {rank}: {message}")
        return [value for value, _, _ in answers]

    def of_main(self, action: Callable[[], T]) -> T:
        """What ``action`` gave on rank 0, which alone does it; raises as ``of_all``."""
        return self.of_all(lambda: action() if self.rank == 0 else None)[0]  # type: ignore[return-value]
