"""Tensors in safetensors files, whole or cut into shards, read when somebody asks for them.

torch's distributed checkpoint reads: whoever asks gets just the bytes it wants, whatever number of processes
cut the tensors when they were written. Headers are read once, here; nothing is unpickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from protolith.errors import CheckpointError
from protolith.formats.checkpoint_files import OPTIMIZER, SHARDS, WEIGHTS
from protolith.tensors.shards import shard_files


class StoredTensors(Mapping[str, Tensor]):
    """Name -> whole tensor in CPU memory, read anew at each ``[name]``.

    Args:
        files: safetensors files; a tensor that is cut has a part in several.
        wanted: of all names in the files, those that are meant.

    Raises:
        CheckpointError: a file is no safetensors file.
    """

    def __init__(self, files: Sequence[Path], wanted: Callable[[str], bool] = lambda name: True) -> None:
        self._reader = _Reader(files)
        try:
            found = self._reader.read_metadata().state_dict_metadata
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"the tensors cannot be read: {error}", where=str(files[0].parent)
            ) from error
        self._about: dict[str, TensorStorageMetadata] = {
            name: about
            for name, about in sorted(found.items())
            if isinstance(about, TensorStorageMetadata) and wanted(name)
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._about)

    def __len__(self) -> int:
        return len(self._about)

    def __contains__(self, name: object) -> bool:
        return name in self._about

    def __getitem__(self, name: str) -> Tensor:
        about = self._about[name]
        value = torch.empty(about.size, dtype=about.properties.dtype)
        self.read_into({name: value})
        return value

    def shape(self, name: str) -> torch.Size:
        return self._about[name].size

    def dtype(self, name: str) -> torch.dtype:
        return self._about[name].properties.dtype

    def read_into(self, targets: Mapping[str, Tensor]) -> None:
        """Fill tensors of the same names and shapes in place; of a sharded one, this process's shard.

        Raises:
            CheckpointError: a file is gone or damaged.
        """
        if not targets:
            return
        try:
            with torch.no_grad(), _no_word_of_one_process():
                dcp.load(dict(targets), storage_reader=self._reader, no_dist=True)
        except (dcp.CheckpointException, OSError, SafetensorError) as error:
            raise CheckpointError(f"the tensors cannot be read: {_first(error)}") from error


def weights_of(checkpoint: Path) -> StoredTensors:
    """The weights in a checkpoint's folder, by transformers' names."""
    return _of(checkpoint, WEIGHTS, lambda name: "/" not in name)


def optimizer_of(checkpoint: Path) -> StoredTensors:
    """The optimizer's tensors in a checkpoint's folder, ``<moment>/<name>``."""
    return _of(checkpoint, OPTIMIZER, lambda name: "/" in name)


def shape_of(tensors: Mapping[str, Tensor], name: str) -> torch.Size:
    """Of a tensor in memory, or of a stored one without reading it."""
    return tensors.shape(name) if isinstance(tensors, StoredTensors) else tensors[name].shape


def dtype_of(tensors: Mapping[str, Tensor], name: str) -> torch.dtype:
    """As ``shape_of``."""
    return tensors.dtype(name) if isinstance(tensors, StoredTensors) else tensors[name].dtype


def _of(checkpoint: Path, file: str, wanted: Callable[[str], bool]) -> StoredTensors:
    return StoredTensors(shard_files(checkpoint / SHARDS) or [checkpoint / file], wanted)


class _Reader(HuggingFaceStorageReader):
    """Of named files, not of all in a folder; their headers are read once."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(path=str(files[0].parent))
        self.fs = _These(files)
        self._metadata: Metadata | None = None

    def read_metadata(self) -> Metadata:
        if self._metadata is None:
            self._metadata = super().read_metadata()
        return self._metadata


class _These(FileSystem):
    def __init__(self, files: Sequence[Path]) -> None:
        self._files = [str(file) for file in files]

    def ls(self, path: object) -> list[str]:
        return self._files


@contextmanager
def _no_word_of_one_process() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _first(error: BaseException) -> BaseException:
    """The cause, out of what was gathered from all processes."""
    if isinstance(error, dcp.CheckpointException) and error.failures:
        return next(iter(error.failures.values()))[0]
    return error
