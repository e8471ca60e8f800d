"""Which process this is among how many, the device it computes on, and how processes speak to one another.

A process learns its place from the environment that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT), whoever started it. ``joined`` opens the process group for as long as a run lasts:
gloo for tensors on the CPU and, where there are GPUs, NCCL for those on a GPU.

Two ways to speak, for two kinds of waiting:

    total      a sum over all ranks: everybody comes to it at about the same time (seconds, not hours)
    tell       a value of rank 0 through the store: the others look for it again and again, for as long as it
               takes (text is tokenized, a checkpoint is written), and stay able to notice a stop
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from protolith.config.schema import TrainConfig
from protolith.errors import UsageError, WorkerLostError

#: How long ranks may be apart at a sum before the run is given up.
GROUP_TIMEOUT = timedelta(minutes=30)
_LOOK_S = 0.02
_PARTING_S = 10.0
_PARTING_FAILED_S = 2.0
_SETTLE_S = 0.1
#: There when rank 0 has left the run, in whatever way.
_LEFT = "left"
#: How many ranks have left.
_GONE = "gone"


@dataclass(frozen=True)
class World:
    """One process's place. ``rank`` counts from 0; ``device`` is where its tensors live.

    Attributes:
        size: processes that share a step.
        local_rank, local_size: place on this machine, and how many are on it (1 where nobody says).
        backend: of the process group; empty for one process.
    """

    rank: int
    size: int
    device: torch.device
    local_rank: int = 0
    backend: str = ""
    local_size: int = 1
    store: dist.Store | None = field(default=None, repr=False, compare=False)
    _told: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks, in fp64; every rank must come here with as many values."""
        if self.size == 1:
            return [float(value) for value in values]
        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()  # type: ignore[no-any-return]

    def tell(self, name: str, value: Any = None, *, poll: Callable[[], None] | None = None) -> Any:
        """Rank 0's ``value`` (JSON types) on every rank; every rank must come here in the same order.

        Args:
            value: looked at on rank 0 only.
            poll: called while waiting for rank 0; may raise to leave.
        """
        if self.store is None:
            return value
        key = f"told/{next(self._told)}/{name}"
        if self.is_main:
            self.store.set(key, json.dumps(value))
            return value
        try:
            while True:
                main_left = self.store.check([_LEFT])  # asked first: it tells before it leaves
                if self.store.check([key]):
                    return json.loads(self.store.get(key))
                if main_left:
                    raise WorkerLostError("rank 0 has ended, and this one waited for it")
                if poll is not None:
                    poll()
                time.sleep(_LOOK_S)
        except RuntimeError as error:  # rank 0 holds the store, where no launcher does
            raise lost_contact(error) from error

    @contextmanager
    def main_first(self, name: str, poll: Callable[[], None]) -> Iterator[None]:
        """Rank 0 does what is inside; when it is done, the others do it too, and find its work."""
        if not self.is_main:
            self.tell(name, poll=poll)
        yield
        if self.is_main:
            self.tell(name, True)

    def gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The CPU tensors of all ranks, of one shape and kind everywhere, in the order of ranks."""
        if self.size == 1:
            return [value]
        values = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(values, value)
        return values


def single_process() -> World:
    """The world of one process: the first GPU, or the CPU."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return World(rank=0, size=1, device=device)


def num_devices() -> int:
    """GPUs of this machine; 0 where it computes on the CPU."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def ranks_wanted(config: TrainConfig, asked: int | None = None) -> int:
    """Processes to start on this machine: as asked, or as the config says, or one for each device."""
    return asked or config.trainer.num_gpus or num_devices() or 1


@contextmanager
def joined(timeout: timedelta = GROUP_TIMEOUT) -> Iterator[World]:
    """The world this process was started into; alone when nobody started it as one of several.

    Raises:
        UsageError: the environment that says so is incomplete, or there is no GPU for this process.
        WorkerLostError: the others cannot be reached.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield single_process()
        return
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"this process was started as one of several, and {error} is missing or no number",
            hint="start it with protolith pretrain --nproc, or with torchrun",
        ) from error
    device = _device_of(local_rank)
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        store, rank, size = next(dist.rendezvous("env://", rank, size, timeout=timeout))
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise lost_contact(error) from error
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    world = World(rank, size, device, local_rank, backend, local_size, dist.PrefixStore("run", store))
    patience_s = _PARTING_FAILED_S
    try:
        yield world
        patience_s = _PARTING_S
    finally:
        _part(world, patience_s)
        dist.destroy_process_group()


def _part(world: World, patience_s: float) -> None:
    """Leave. Rank 0 may hold the store: it stays a little until nobody needs it."""
    assert world.store is not None
    # Threads of gloo that still let go of a tensor need Python's lock, which the end of the group would hold.
    time.sleep(_SETTLE_S)
    end = time.monotonic() + patience_s
    with suppress(RuntimeError):
        gone = world.store.add(_GONE, 1)
        if world.is_main:
            world.store.set(_LEFT, "")
        while world.is_main and gone < world.size and time.monotonic() < end:
            time.sleep(_LOOK_S)
            gone = world.store.add(_GONE, 0)


def _device_of(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"process {local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}",
            hint="start as many processes as there are GPUs, or hide them with CUDA_VISIBLE_DEVICES=",
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def is_lost_contact(error: BaseException) -> bool:
    """Whether an error of torch means that another process, or the way to it, is gone."""
    if isinstance(error, dist.DistError):
        return True
    words = ("gloo", "connection closed by peer", "connection reset", "nccl")
    return type(error) is RuntimeError and any(word in str(error).lower() for word in words)


def lost_contact(error: BaseException) -> WorkerLostError:
    """The typed form of such an error."""
    return WorkerLostError(
        "lost contact with the other processes of this run: " + " ".join(str(error).split())[:200],
        hint="the log of each process says what became of it; --resume goes on from the last checkpoint",
    )


def device_name(device: torch.device) -> str:
    """What a person calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({torch.get_num_threads()} threads)"


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 arithmetic is done by hardware here. Emulated, it is slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as info:
            flags = next((line for line in info if line.startswith(("flags", "Features"))), "")
    except OSError:
        return True
    return not flags or any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16"))
