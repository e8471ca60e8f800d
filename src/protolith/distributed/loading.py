"""Saved tensors into those of an engine, in place: whole or sharded on either side.

From files (``StoredTensors``) a process reads its own shards only; of tensors in memory it takes them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from protolith.errors import CheckpointError
from protolith.tensors.stored import StoredTensors, dtype_of, shape_of


def check_fit(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Compare names and shapes; nothing is read.

    Raises:
        CheckpointError: they are of another model.
    """
    missing, surplus = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
    if missing or surplus:
        raise CheckpointError(
            f"weights do not fit this model: missing {missing[:5]}, surplus {surplus[:5]}",
            hint="was the checkpoint saved from the same architecture?",
        )
    for name, tensor in own.items():
        _check_shape(name, shape_of(weights, name), tensor.shape)


def room_for(
    saved: Mapping[str, Tensor], full_name: str, parameter: Tensor, *, counts_on_device: bool
) -> Tensor:
    """Memory for one tensor of an optimizer's state, lying as its parameter does.

    Args:
        counts_on_device: single numbers (of steps) lie beside the parameter, not in CPU memory.

    Raises:
        CheckpointError: it has another shape than its parameter.
    """
    shape = shape_of(saved, full_name)
    if not shape:
        device = parameter.device if counts_on_device else torch.device("cpu")
        return torch.zeros((), dtype=dtype_of(saved, full_name), device=device)
    _check_shape(full_name, shape, parameter.shape)
    return torch.zeros_like(parameter, dtype=dtype_of(saved, full_name))


def fill(targets: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy the tensors of the same names and shapes."""
    bare = {name: target.detach() for name, target in targets.items()}
    if isinstance(source, StoredTensors):
        source.read_into(bare)
        return
    for name, target in bare.items():
        _local(target).copy_(_local(_laid_like(source[name], target)))


def _laid_like(value: Tensor, target: Tensor) -> Tensor:
    if not isinstance(target, DTensor) or isinstance(value, DTensor):
        return value
    return distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)  # nothing sent


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _check_shape(name: str, saved: torch.Size, wanted: torch.Size) -> None:
    if saved != wanted:
        raise CheckpointError(f"{name} has shape {tuple(saved)}, the model wants {tuple(wanted)}")
