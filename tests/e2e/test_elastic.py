"""The same run on another number of ranks after each stop, and what a sharded checkpoint is good for."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

from protolith.distributed.world import joined  # noqa: F401  # loaded before ranks are forked
from protolith.errors import CheckpointError
from protolith.formats import checkpoint_files
from protolith.formats.rundir import RunDir, read_json
from protolith.tensors.shards import shard_files
from protolith.tensors.stored import weights_of
from protolith.training.checkpoint_read import newest_checkpoint
from protolith.training.request import Request
from tests.e2e.test_two_processes import check_ended, check_near, stopping_after
from tests.support import ranks, tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elastic")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    tiny.write_model(folder / "model")
    return folder


def settings(size, strategy, run_dir):
    """Global batches of 4 rows, whatever the number of ranks."""
    return {
        "trainer__batch_size": 1,
        "trainer__gradient_accumulation": 4 // size,
        "trainer__strategy": strategy,
        "output__dir": str(run_dir),
    }


@pytest.fixture(autouse=True)
def _put_back(monkeypatch):
    from protolith.training import loop

    monkeypatch.setattr(loop.Loop, "_advance", loop.Loop._advance)


@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_four_ranks_then_two_then_one_then_four(place, tmp_path, strategy):
    """Rows, losses, norms, ledger and weights are those of the run that was never stopped (T37)."""
    whole = tiny.train(place, **settings(1, "auto", tmp_path / "whole"))
    resume = None
    for size, stop in ((4, 3), (2, 5), (1, 8), (4, None)):
        request = stopping_after(stop, resume=resume) if stop else Request(resume=resume)
        changes = settings(size, strategy if size > 1 else "auto", tmp_path / "run")
        if size == 1:
            assert tiny.train(place, request=request, **changes).step == stop
        else:
            check_ended(ranks.train(place, size, request=request, **changes), step=stop or 12)
        resume = "latest"
        folder = tmp_path / f"run/checkpoints/step_{stop or 12}"
        assert len(shard_files(folder / "shards")) == (size if strategy == "fsdp" and size > 1 else 0)
        rng = load_file(folder / "rng.safetensors")
        assert sorted(rng) == ["cpu", *(f"cpu/{rank}" for rank in range(1, size))]
    check_near(tmp_path / "run", whole.run_dir)
    assert read_json(RunDir(tmp_path / "run").ledger) == read_json(RunDir(whole.run_dir).ledger)


@pytest.fixture(scope="module")
def sharded(place):
    """A finished run of two ranks with shards, checkpoints 5, 10 and 12."""
    changes = settings(2, "fsdp", place / "sharded")
    check_ended(ranks.train(place, 2, **changes), step=12)
    return RunDir(place / "sharded")


def test_every_file_of_a_sharded_checkpoint_is_in_its_manifest(sharded, tmp_path):
    folder = sharded.checkpoints / "step_5"
    manifest = checkpoint_files.read_manifest(folder)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"}
    assert sum(name.startswith("shards/") for name in manifest["files"]) == 2
    assert not list(folder.rglob(".metadata")), "no pickle"
    assert checkpoint_files.problem_of(folder, digests=True) == ""


@pytest.mark.parametrize("damage", ["gone", "short", "flipped"])
def test_a_damaged_shard_is_seen_and_passed_over(sharded, tmp_path, damage):
    root = tmp_path / "checkpoints"
    for step in (5, 10):
        shutil.copytree(sharded.checkpoints / f"step_{step}", root / f"step_{step}")
    shard = shard_files(root / "step_10" / "shards")[1]
    if damage == "gone":
        shard.unlink()
    elif damage == "short":
        os.truncate(shard, shard.stat().st_size - 1)
    else:
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(content)
    said = []
    assert newest_checkpoint(root, said.append) == root / "step_5"
    assert "step_10 is passed over: shards/shard-00002" in said[0]
    (root / "step_5" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="none of the 2"):
        newest_checkpoint(root, said.append)


def test_export_sampling_evaluation_and_a_new_run_read_it(sharded, place, tmp_path):
    checkpoint = sharded.checkpoints / "step_12"
    out = tmp_path / "model"
    done = tiny.cli("export", checkpoint, "--output", out)
    assert done.returncode == 0, done.stderr
    exported = load_file(out / "model.safetensors")
    final = load_file(sharded.model / "model.safetensors")
    assert exported.keys() == final.keys()
    stored = weights_of(checkpoint)
    assert "lm_head.weight" not in exported, "tied tensors once"
    assert all(torch.equal(exported[name], final[name]) for name in exported)
    assert all(torch.equal(exported[name], stored[name]) for name in exported)
    losses = []
    for model in (checkpoint, out):
        answer = tiny.cli(
            "eval", model, "--data", place / "corpus.jsonl", "--max-seq-length", 64, "-o", "json"
        )
        assert answer.returncode == 0, answer.stderr
        losses.append(answer.stdout)
    assert losses[0].split('"loss"')[1][:20] == losses[1].split('"loss"')[1][:20]
    again = tiny.train(
        place,
        model__name=str(checkpoint),
        model__init="pretrained",
        trainer__max_steps=1,
        trainer__learning_rate=0.0,
        output__dir=str(tmp_path / "again"),
    )
    begun = load_file(again.run_dir / "model" / "model.safetensors")
    assert all(torch.equal(begun[name], final[name]) for name in final)


def test_a_full_disk_on_one_rank_fails_the_save_on_all_and_training_goes_on(place, tmp_path):
    """The checkpoint before stands, the next one is saved, nothing of the failed one stays."""
    from protolith.training import checkpoint_write

    def action(rank):
        original = checkpoint_write.write_shards

        def full(tensors, folder, group):
            def refuse(*_args, **_kwargs):
                raise OSError(28, "No space left on device")

            from torch.distributed.checkpoint.filesystem import FileSystem

            kept = FileSystem.create_stream
            if rank == 1 and "step_6" in str(folder):
                FileSystem.create_stream = refuse
            try:
                return original(tensors, folder, group)
            finally:
                FileSystem.create_stream = kept

        checkpoint_write.write_shards = full
        changes = settings(2, "fsdp", tmp_path / "run") | {"trainer__checkpoint_every_n_steps": 3}
        return tiny.train(place, **changes)

    check_ended(ranks.together(2, action), step=12)
    root = tmp_path / "run" / "checkpoints"
    assert [f.step for f in checkpoint_files.list_checkpoints(root) if not f.problem] == [3, 9, 12]
    assert not [path for path in root.iterdir() if path.name.startswith(".saving")]
    log = (tmp_path / "run/logs/latest/rank_0.log").read_text()
    assert "checkpoint not saved:" in log and "no space left while writing" in log


def test_kill_of_a_rank_while_shards_are_written(place, tmp_path):
    """What was complete before stands, and the run comes back from it with the same losses (T40)."""
    from protolith.training import checkpoint_write

    whole = tiny.train(place, **settings(1, "auto", tmp_path / "whole"))

    def action(rank):
        original = checkpoint_write.write_shards

        def dying(tensors, folder, group):
            if rank == 1 and "step_10" in str(folder):
                os.kill(os.getpid(), signal.SIGKILL)
            return original(tensors, folder, group)

        checkpoint_write.write_shards = dying
        return tiny.train(place, **settings(2, "fsdp", tmp_path / "run"))

    ended = ranks.together(2, action)
    assert ended[1].error == "killed" and ended[0].error in ("WorkerLostError", "CheckpointError"), ended
    root = tmp_path / "run" / "checkpoints"
    assert [f.step for f in checkpoint_files.list_checkpoints(root) if not f.problem] == [5]
    back = ranks.train(place, 2, request=Request(resume="latest"), **settings(2, "fsdp", tmp_path / "run"))
    check_ended(back, step=12)
    check_near(tmp_path / "run", whole.run_dir)
    assert not [path for path in root.iterdir() if path.name.startswith(".saving")]
