"""The place of this machine among those that train one run together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Nodes:
    """Machines of a run, as this one sees them.

    Attributes:
        num: how many.
        rank: of this one, from 0; rank 0 holds the meeting point.
        rdzv: the meeting point, ``HOST:PORT``, an address of machine 0 that all others reach; empty for one.
        run_id: the same on all machines of a run and on no others.
        local_addr: this machine's own address, where its name does not lead to it; empty: found out.
    """

    num: int = 1
    rank: int = 0
    rdzv: str = ""
    run_id: str = ""
    local_addr: str = ""

    @property
    def is_host(self) -> bool:
        return self.rank == 0


ONE_MACHINE = Nodes()
