"""A stop that all ranks know of at the same place of their work.

Each rank is asked to stop for itself, and not at the same moment. What they know together changes only in
``agree``, to which all of them come before each step and before each batch of a validation; so all end with
the same step, save the same state, and none waits for another that has left. It costs one sum of two numbers.
"""

from __future__ import annotations

from protolith.distributed.world import World
from protolith.training.stop import StopFlag

#: By who asked. A sum of these says which kind came: a signal counts more than all files together.
_WEIGHT = {None: 0.0, "user": 1.0, "signal": 1e6}


class AgreedStop(StopFlag):
    """``own``: what this rank was told."""

    def __init__(self, own: StopFlag, world: World) -> None:
        super().__init__()
        self._own = own
        self._world = world

    def agree(self, *, failed: bool = False) -> bool:
        weight = _WEIGHT[self._own.by if self._own.requested else None]
        asked, failures = self._world.total([weight, float(failed)])
        if asked and self.by is None:
            self.by = "signal" if asked >= _WEIGHT["signal"] else "user"
        return failures > 0
