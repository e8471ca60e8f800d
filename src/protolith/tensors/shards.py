"""Writing tensors that are cut over processes: each writes its own shards, into files of its own.

    FOLDER/shard-<rank + 1>-model-<i>-of-<n>.safetensors

torch's distributed checkpoint decides who writes what: a tensor, or a shard, that several processes hold is
written by one of them. The files are safetensors with the place of each shard in the header; there is no
file of metadata beside them, and nothing is pickled into any file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

#: A file is put together in memory before it is written.
_MOST_IN_A_FILE = 2 * 1024**3


def write_shards(tensors: Mapping[str, Tensor], folder: Path, group: dist.ProcessGroup) -> None:
    """Write what this process holds of ``tensors``; all processes of ``group`` come here together.

    Args:
        tensors: the same names everywhere, on the CPU; DTensors, or tensors that are equal everywhere.
        folder: is there already, on a file system that all processes share.

    Raises:
        Exception: what went wrong in one process is raised in all of them.
    """
    writer = HuggingFaceStorageWriter(
        str(folder), fqn_to_index_mapping=_files_of(tensors, group.size()), save_distributed=True
    )
    try:
        dcp.save(dict(tensors), storage_writer=writer, process_group=group)
    except dcp.CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def shard_files(folder: Path, rank: int | None = None) -> list[Path]:
    """The files in ``folder``, of one process or of all."""
    whose = "*" if rank is None else f"{rank + 1:05d}"
    return sorted(folder.glob(f"shard-{whose}-model-*.safetensors"))


def _files_of(tensors: Mapping[str, Tensor], num_processes: int) -> dict[str, int]:
    """Name -> number of the file, from 1; decided from whole sizes, so alike in all processes."""
    files, filled, number = {}, 0, 1
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() // num_processes
        if filled and filled + size > _MOST_IN_A_FILE:
            number, filled = number + 1, 0
        files[name] = number
        filled += size
    return files
