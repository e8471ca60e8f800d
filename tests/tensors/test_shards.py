"""Tensors cut over processes, written by all of them, read whole and in other cuts."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from protolith.errors import CheckpointError
from protolith.tensors import shards
from protolith.tensors.shards import shard_files, write_shards
from protolith.tensors.stored import StoredTensors, optimizer_of, weights_of
from tests.support.ranks import together


def whole_tensors():
    draw = torch.Generator().manual_seed(3)
    shapes = {"embed.weight": (11, 4), "norm.weight": (4,), "short.weight": (2, 5), "one.weight": (1,)}
    tensors = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    tensors |= {f"exp_avg/{name}": 2 * value for name, value in list(tensors.items())}
    return {**tensors, "step/embed.weight": torch.tensor(7.0)}


def cut(tensors, mesh, placements):
    return {
        name: distribute_tensor(value, mesh, placements, src_data_rank=None) if value.ndim else value
        for name, value in tensors.items()
    }


def write(folder, size, hybrid=False):
    folder.mkdir(parents=True)

    def action(_rank):
        dist.init_process_group("gloo")
        shape = (2, size // 2) if hybrid else (size,)
        placements = [Replicate(), Shard(0)] if hybrid else [Shard(0)]
        mesh = init_device_mesh("cpu", shape)
        write_shards(cut(whole_tensors(), mesh, placements), folder, dist.group.WORLD)
        dist.barrier()
        dist.destroy_process_group()

    ended = together(size, action)
    assert not any(rank.error for rank in ended), ended
    return folder


@pytest.mark.parametrize(("size", "hybrid"), [(1, False), (2, False), (4, False), (4, True)])
def test_what_was_cut_is_read_whole(tmp_path, size, hybrid):
    folder = write(tmp_path / "step_1" / "shards", size, hybrid)
    assert sorted(path.suffix for path in folder.iterdir()) == [".safetensors"] * len(shard_files(folder))
    stored = StoredTensors(shard_files(folder))
    expected = whole_tensors()
    assert list(stored) == sorted(expected)
    for name, value in expected.items():
        assert stored.shape(name) == value.shape
        assert torch.equal(stored[name], value)
    weights, optimizer = weights_of(folder.parent), optimizer_of(folder.parent)
    assert {*weights, *optimizer} == set(expected) and not {*weights} & {*optimizer}
    if hybrid:  # a copy is not written twice
        held = sum(path.stat().st_size for path in folder.iterdir())
        single = write(tmp_path / "other", 2)
        assert held < 1.5 * sum(path.stat().st_size for path in single.iterdir())


def test_another_number_of_processes_reads_its_own_part(tmp_path):
    folder = write(tmp_path / "shards", 4)

    def action(_rank):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (3,))
        expected = cut(whole_tensors(), mesh, [Shard(0)])
        targets = {name: torch.zeros_like(value) for name, value in expected.items()}
        StoredTensors(shard_files(folder)).read_into(targets)
        same = all(
            torch.equal(*(t.to_local() if hasattr(t, "to_local") else t for t in (targets[name], value)))
            for name, value in expected.items()
        )
        dist.barrier()
        dist.destroy_process_group()
        return same

    assert [rank.value for rank in together(3, action)] == [True] * 3


def test_many_files_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_MOST_IN_A_FILE", 100)
    folder = write(tmp_path / "shards", 2)
    assert len(shard_files(folder, 0)) > 1
    stored = StoredTensors(shard_files(folder))
    assert all(torch.equal(stored[name], value) for name, value in whole_tensors().items())


def test_what_fails_on_one_process_fails_on_all(tmp_path):
    place = tmp_path / "shards"
    place.mkdir()

    def action(rank):
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        folder = place if rank == 0 else tmp_path / "file"
        (tmp_path / "file").write_text("no folder")
        try:
            write_shards(cut(whole_tensors(), mesh, [Shard(0)]), folder, dist.group.WORLD)
        finally:
            dist.barrier()
            dist.destroy_process_group()

    assert [rank.error for rank in together(2, action)] == ["FileExistsError"] * 2


def test_whole_files_are_read_the_same_way(tmp_path):
    expected = {name: value for name, value in whole_tensors().items() if "/" not in name}
    save_file(expected, tmp_path / "model.safetensors")
    stored = weights_of(tmp_path)
    assert {name: value.tolist() for name, value in stored.items()} == {
        name: value.tolist() for name, value in expected.items()
    }


def test_a_file_that_is_gone_or_damaged_is_told(tmp_path):
    file = tmp_path / "model.safetensors"
    with pytest.raises(CheckpointError, match="cannot be read"):
        weights_of(tmp_path)
    file.write_bytes(b"\x07" * 40)
    with pytest.raises(CheckpointError, match="cannot be read"):
        weights_of(tmp_path)
    save_file({"a": torch.ones(1000)}, file)
    stored = weights_of(tmp_path)
    os.truncate(file, 500)
    with pytest.raises(CheckpointError, match="cannot be read"):
        stored["a"]
