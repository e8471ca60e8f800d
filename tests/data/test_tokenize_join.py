"""Parts to shards: nothing lost at any border, closed where asked, also after an interruption."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest

from protolith.data.tokenize_join import is_joined, join_parts, publish
from protolith.data.tokenize_report import JOB_DIR, JobDir, TaskReport
from protolith.data.tokenizer import load_tokenizer
from protolith.errors import RunFailedError, ShardError
from protolith.formats.shard_files import ShardWriter
from protolith.formats.shard_manifest import read_manifest
from tests.data.corpora import bpe_dir


class _Stop(Exception):
    pass


def write_parts(job: JobDir, chance: random.Random) -> tuple[list[TaskReport], list[list[int]]]:
    """Tasks of several parts, some of them empty; and their documents."""
    results, documents = [], []
    for task in range(chance.randint(1, 5)):
        report = TaskReport()
        for number in range(chance.randint(1, 3)):
            made = [
                [chance.randint(0, 399) for _ in range(chance.choice((1, 2, 9, 60)))]
                for _ in range(chance.randint(0, 12))
            ]
            with ShardWriter(job.parts(task) / f"{number:05d}.ds", 2, "part") as shard:
                for ids in made:
                    shard.write(ids)
            report.parts.append((sum(map(len, made)), len(made)))
            report.documents += len(made)
            documents += made
        results.append(report)
    return results, documents


def closed_where_asked(documents: list[list[int]], shard_tokens: int) -> list[list[list[int]]]:
    shards: list[list[list[int]]] = []
    for ids in documents:
        if not shards or sum(map(len, shards[-1])) >= shard_tokens:
            shards.append([])
        shards[-1].append(ids)
    return shards


@pytest.mark.parametrize("seed", range(25))
def test_shards_hold_all_documents_in_order(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    tokenizer = load_tokenizer(bpe_dir(tmp_path / "tok"))
    job = JobDir(tmp_path / "out" / JOB_DIR)
    job.make()
    results, documents = write_parts(job, chance)
    shard_tokens = chance.choice((1, 7, 50, 200, 10**6))
    calls, stop_at = 0, chance.randint(0, 30)

    def dying(done: int, total: int) -> None:
        nonlocal calls
        assert 0 <= done <= total
        calls += 1
        if calls == stop_at:
            raise _Stop

    for _ in range(2):
        try:
            join_parts(job, results, tokenizer, shard_tokens, {"n": 1}, dying)
            break
        except _Stop:
            assert not is_joined(job)
    assert is_joined(job)
    assert not [path for path in (job.root / "parts").rglob("*.ds") if path.stat().st_size]
    publish(job, tmp_path / "out")
    expected = closed_where_asked(documents, shard_tokens)
    paths = sorted((tmp_path / "out").glob("*.ds"))
    assert [path.name for path in paths] == [f"{n:05d}.ds" for n in range(len(expected))]
    for path, group in zip(paths, expected, strict=True):
        assert np.fromfile(path, "<u2").tolist() == [i for ids in group for i in ids]
        ends = np.fromfile(path.with_name(path.name + ".index"), "<u8")
        assert ends.tolist() == np.cumsum([len(ids) for ids in group]).tolist()
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.job == {"n": 1}
    assert (manifest.num_documents, manifest.num_tokens) == (len(documents), sum(map(len, documents)))
    for name, entry in manifest.files.items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == entry.sha256
    assert not job.root.exists()


def test_damaged_parts_and_counts_that_differ_are_told(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bpe_dir(tmp_path / "tok"))
    job = JobDir(tmp_path / "out" / JOB_DIR)
    job.make()
    path = job.parts(0) / "00000.ds"
    with ShardWriter(path, 2, "part") as shard:
        shard.write([1, 2, 0])
    report = TaskReport(documents=2, parts=[(3, 1)])
    with pytest.raises(RunFailedError, match="1 documents and 3 tokens, tasks made 2 and 3"):
        join_parts(job, [report], tokenizer, 100, {}, lambda done, total: None)
    with ShardWriter(path, 2, "part") as shard:
        shard.write([1, 2, 0])
    path.write_bytes(b"1234")
    (job.shards / "00000.ds").unlink()
    with pytest.raises(ShardError):
        join_parts(job, [report], tokenizer, 100, {}, lambda done, total: None)
    assert not is_joined(job)
