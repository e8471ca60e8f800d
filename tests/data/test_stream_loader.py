"""Steps of streamed text: the same for any split, number of processes and place of interruption."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

from protolith.data.ledger import Ledger
from protolith.data.stream_loader import StreamLoader
from protolith.data.streams import TextStream
from protolith.data.tokenizer import load_tokenizer
from protolith.errors import BadRecordError, RunFailedError
from tests.data.corpora import bpe_dir, document, text_files, write_jsonl


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(bpe_dir(tmp_path_factory.mktemp("bpe")))


@pytest.fixture
def corpus(tmp_path):
    return write_jsonl(tmp_path / "corpus.jsonl", [document(n) for n in range(120)])


def stream(path, tokenizer, **options):
    settings = {"seq_len": 32, "seed": 5, "chunk_bytes": 4096, **options}
    return TextStream(text_files(path), tokenizer, **settings)


def steps(source, **options):
    with StreamLoader(
        source, **{"micro_batch_rows": 2, "accumulation": 3, "num_epochs": 2, **options}
    ) as loader:
        return list(loader)


def rows_of(step):
    return [row for batch in step.micro_batches for row in batch.inputs.tolist()]


def same(one, other):
    assert one.counts == other.counts
    assert (one.next_row, one.num_targets, one.epoch, one.position, one.last) == (
        other.next_row,
        other.num_targets,
        other.epoch,
        other.position,
        other.last,
    )
    assert len(one.micro_batches) == len(other.micro_batches)
    for ours, theirs in zip(one.micro_batches, other.micro_batches, strict=True):
        assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.targets, theirs.targets)


@pytest.mark.parametrize("packing", [True, False])
def test_any_number_of_workers_gives_the_same_steps(corpus, tokenizer, packing):
    """Once per epoch for any worker count (T19)."""
    source = stream(corpus, tokenizer, packing=packing)
    alone = steps(source)
    for num_workers in (1, 3):
        for one, other in zip(alone, steps(source, num_workers=num_workers), strict=True):
            same(one, other)
    assert [step.last for step in alone] == [False] * (len(alone) - 1) + [True]
    assert alone[-1].position["epochs"] == 2.0
    ledger = Ledger()
    for step in alone:
        ledger.add(step.counts)
        assert step.num_targets == sum(batch.num_targets for batch in step.micro_batches)
    ledger.check(sum(step.num_targets for step in alone))
    one_epoch = sum(map(len, tokenizer.encode_documents([document(n) for n in range(120)])))
    assert [counts.read for _key, counts in sorted(ledger.entries.items())] == [one_epoch, one_epoch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_run_goes_on_from_any_step(corpus, tokenizer, num_workers):
    """Nothing of what was prefetched is in the position (T12)."""
    source = stream(corpus, tokenizer)
    whole = steps(source)
    at_border = next(number for number, step in enumerate(whole) if step.epoch == 1)
    for at in (0, 4, at_border - 1, at_border, len(whole) - 2):
        position = json.loads(json.dumps(whole[at].position))
        rest = steps(source, position=position, num_workers=num_workers)
        for one, other in zip(whole[at + 1 :], rest, strict=True):
            same(one, other)
    assert steps(source, position=whole[-1].position, num_workers=num_workers) == []


def test_ranks_share_each_step_whatever_their_number(corpus, tokenizer):
    """The rows of a step are those of one process with the same global batch (T18, T20)."""
    source = stream(corpus, tokenizer)
    alone = steps(source, micro_batch_rows=8, accumulation=1)
    for world_size in (2, 4):
        ranks = [
            steps(source, micro_batch_rows=8 // world_size, accumulation=1, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for whole, *parts in zip(alone, *ranks, strict=True):
            real = [row for part in parts for row in rows_of(part) if part.micro_batches[0].num_targets]
            assert real == rows_of(whole)
            assert len({len(part.micro_batches) for part in parts}) == 1
            assert all(part.num_targets == whole.num_targets for part in parts)
            assert all(part.position == whole.position for part in parts)


def test_a_limit_of_rows_ends_it_too(corpus, tokenizer):
    source = stream(corpus, tokenizer)
    few = steps(source, stop_row=15, num_epochs=None)
    assert [step.next_row for step in few] == [6, 12, 15]
    assert few[-1].last and few[-1].position["rows"] == 15
    more = steps(source, position=few[-1].position, stop_row=21, num_epochs=None)
    assert rows_of(more[0]) == rows_of(steps(source, micro_batch_rows=21, accumulation=1)[0])[15:]


def test_leaving_early_ends_thread_and_processes(corpus, tokenizer):
    before = {thread.name for thread in threading.enumerate()}
    with StreamLoader(stream(corpus, tokenizer), micro_batch_rows=2, num_workers=2) as loader:
        steps = iter(loader)
        next(steps)
        assert "stream" in {thread.name for thread in threading.enumerate()}
    deadline = time.monotonic() + 10
    while {thread.name for thread in threading.enumerate()} - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {thread.name for thread in threading.enumerate()} == before


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_line_is_told_where_its_step_would_have_come(tmp_path, tokenizer, num_workers):
    lines = [json.dumps({"text": document(n)}) for n in range(100)]
    lines[80] = "{broken"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    seen = 0
    with StreamLoader(
        stream(path, tokenizer, shuffle=False), micro_batch_rows=1, num_workers=num_workers
    ) as loader:
        with pytest.raises(BadRecordError) as caught:
            for _step in loader:
                seen += 1
    assert caught.value.where == "a.jsonl:81"
    assert seen > 100


def test_a_killed_worker_is_loud(corpus, tokenizer, monkeypatch):
    from protolith.data import tokenize_pool

    started = []
    real = tokenize_pool._Worker.__init__

    def watched(self, *arguments):
        real(self, *arguments)
        started.append(self)

    monkeypatch.setattr(tokenize_pool._Worker, "__init__", watched)
    with StreamLoader(stream(corpus, tokenizer), micro_batch_rows=1, num_workers=1) as loader:
        with pytest.raises(RunFailedError, match="killed by signal 9"):
            for number, _step in enumerate(loader):
                if number == 3:
                    started[0]._process.kill()


_LONG = """
    import resource, sys
    from pathlib import Path
    import torch
    from protolith.data.files import DataFile
    from protolith.data.stream_loader import StreamLoader
    from protolith.data.streams import TextStream
    from protolith.data.tokenizer import load_tokenizer
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    path = Path(sys.argv[1])
    source = TextStream(
        [DataFile(path, path.name, path.stat().st_size)], load_tokenizer(sys.argv[2]), seq_len=512
    )
    with StreamLoader(source, micro_batch_rows=64, num_epochs=1, num_workers=int(sys.argv[3])) as loader:
        tokens = sum(step.num_targets for step in loader)
    print(tokens, source.num_lanes)
"""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_line_of_60_megabytes_streams_under_two_gigabytes(tmp_path, tokenizer, num_workers):
    """And one of 11 MB without a space, in this process and in one that tokenizes (which inherits the limit);
    the token count is right (T22)."""
    folder = bpe_dir(tmp_path / "tokenizer")
    words, letters = " ".join(document(n) for n in range(500)), "abcdefghij"
    repeats = 60_000_000 // (len(words) + 1)
    few = [document(n) for n in range(300)]
    path = tmp_path / "a.jsonl"
    with open(path, "w") as out:
        for text in (*few, (words + " ") * repeats, *few, letters * 1_100_000, *few):
            out.write(json.dumps({"text": text}) + "\n")

    def count(unit, times):
        once, twice = (len(tokenizer.encode(unit * n)) for n in (1, 2))
        return once + (twice - once) * (times - 1)

    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_LONG), str(path), str(folder), str(num_workers)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    tokens, lanes = map(int, result.stdout.split())
    expected = 3 * sum(map(len, tokenizer.encode_documents(few)))
    expected += count(words + " ", repeats) + 1 + count(letters * 1000, 1100) + 1
    # The first token of each lane that ever held a document has nothing before it.
    assert lanes > 2 and expected - lanes <= tokens < expected
