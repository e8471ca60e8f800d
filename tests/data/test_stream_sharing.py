"""Ranks of one machine tokenize each block once between them, and see the same rows as alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from protolith.data import tokenize_pool
from protolith.data.stream_loader import StreamLoader
from protolith.data.stream_sharing import SharedWork, Sharing
from protolith.data.tokenize_block import BlockTokens, tokenize_block
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.errors import NoSpaceError
from tests.data.corpora import word_level_dir, write_jsonl
from tests.data.test_streams import stream, texts


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(word_level_dir(tmp_path_factory.mktemp("words"), 2000))


def steps_of(source, rank, size, sharing, workers):
    with StreamLoader(
        source,
        micro_batch_rows=8 // size,
        rank=rank,
        world_size=size,
        num_epochs=2,
        num_workers=workers,
        sharing=sharing,
    ) as loader:
        return [
            (
                [row for batch in step.micro_batches for row in batch.inputs.tolist()],
                step.next_row,
                step.counts,
            )
            for step in loader
        ]


@pytest.mark.parametrize("workers", [0, 1])
def test_each_block_is_tokenized_once_and_rows_are_the_same(tmp_path, tokenizer, workers, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", texts([9] * 80))
    source = stream(path, tokenizer)
    alone = steps_of(source, 0, 1, None, 0)
    done: list[int] = []
    original = tokenize_block

    def counted(data, *rest):
        done.append(len(data))
        return original(data, *rest)

    monkeypatch.setattr(tokenize_pool, "tokenize_block", counted)
    size, found = 2, {}

    def work(rank):
        found[rank] = steps_of(source, rank, size, Sharing(tmp_path / "shared", rank, size), workers)

    ranks = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(60)
    assert sorted(found) == list(range(size))
    assert [step[1:] for step in found[0]] == [step[1:] for step in found[1]] == [step[1:] for step in alone]
    for at, (rows, _next, _counts) in enumerate(alone[:-1]):
        assert found[0][at][0] + found[1][at][0] == rows
    if not workers:
        assert len(done) == 2 * sum(1 for chunk in range(source.text.num_chunks) if has_lines(source, chunk))
    assert not (tmp_path / "shared").exists()


def has_lines(source, chunk):
    return any(block.data for block in source.text.parts(chunk))


def test_a_disk_that_is_full_is_said(tmp_path: Path, monkeypatch, tokenizer) -> None:
    work = SharedWork(Sharing(tmp_path / "s", 0, 2), lambda data: done(data, tokenizer))

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protolith.data.stream_sharing.os.link", full)
    work.submit(b'{"text": "w1"}\n')
    with pytest.raises(NoSpaceError):
        work.submit(b'{"text": "w2"}\n')


def done(data, tokenizer):
    from concurrent.futures import Future

    from protolith.data.tokenize_block import BlockOptions

    future: Future[BlockTokens] = Future()
    future.set_result(tokenize_block(data, tokenizer, BlockOptions()))
    return future
