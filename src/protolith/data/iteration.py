"""What loaders have in common: one iteration at a time, whose threads and processes end with it."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import Generic, Self, TypeVar

Step = TypeVar("Step")


class OneIteration(ABC, Generic[Step]):
    """An iterable and context manager. Beginning anew, leaving the ``with`` or ``close`` ends what went on.

    Args:
        ahead: read ahead in the background, rather than when asked.
    """

    def __init__(self, *, ahead: bool) -> None:
        self._ahead = ahead
        self._iteration: weakref.ref[Generator[Step, None, None]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Step]:
        self.close()
        steps = self._prefetched() if self._ahead else self._read_when_asked()
        # Weak, so that an iteration nobody holds any more ends at once, with its threads and processes.
        self._iteration = weakref.ref(steps)
        return steps

    def close(self) -> None:
        """End the iteration in progress. Steps that are being read are waited for."""
        steps = self._iteration() if self._iteration is not None else None
        if steps is not None:
            steps.close()
        self._iteration = None

    @abstractmethod
    def _read_when_asked(self) -> Generator[Step, None, None]:
        """Steps, each read when it is asked for."""

    @abstractmethod
    def _prefetched(self) -> Generator[Step, None, None]:
        """The same steps, read ahead; its ``finally`` ends whoever reads."""
