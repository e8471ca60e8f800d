"""The pool: many shards as one line of tokens, mapped lazily, and what goes wrong said with its place."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.shards import TokenPool
from protolith.errors import DataError, NotFoundError, ShardError
from protolith.formats.shard_files import ShardInfo
from tests.data.shard_fixtures import EOS, counting_pool, pool_of, random_documents, write_shard


def flat(*shards):
    return [token for documents in shards for document in documents for token in document]


def test_shards_of_both_widths_read_as_one_line(tmp_path):
    """2-byte and 4-byte ids mix, and ids above 65,535 keep their value (T4)."""
    first, second, third = [[1, 2], [65535, 2]], [[70_000, 4_000_000_000, 2]], [[7, 2]]
    pool = pool_of(tmp_path, first, second, third, token_bytes=(2, 4))
    assert pool.num_tokens == 9
    assert pool.num_documents == 4
    tokens = pool.read(0, 9)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == flat(first, second, third)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(lambda s: sum(s) > 0),
    data=st.data(),
)
def test_any_range_across_any_borders_is_read(tmp_path_factory, sizes, data):
    folder = tmp_path_factory.mktemp("pool")
    ids = iter(range(10_000))
    shards = [[[next(ids) for _ in range(size)]] for size in sizes]
    pool = pool_of(folder, *shards, token_bytes=(2, 4))
    start = data.draw(st.integers(0, pool.num_tokens))
    stop = data.draw(st.integers(start, pool.num_tokens))
    assert pool.read(start, stop).tolist() == list(range(start, stop))
    length = data.draw(st.integers(1, pool.num_tokens))
    starts = data.draw(st.lists(st.integers(0, pool.num_tokens - length), max_size=5))
    windows = pool.read_windows(starts, length)
    assert windows.tolist() == [list(range(at, at + length)) for at in starts]


def test_a_token_is_found_in_its_shard_and_empty_shards_hold_none(tmp_path):
    pool = pool_of(tmp_path, [[1, 2]], [], [[3, 4, 2]], [])
    assert [pool.shard_of(token) for token in range(5)] == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert pool.read(0, 5).tolist() == [1, 2, 3, 4, 2]
    with pytest.raises(IndexError):
        pool.shard_of(5)


def test_reads_outside_the_pool_are_refused(tmp_path):
    pool = pool_of(tmp_path, [[1, 2, 3]])
    for start, stop in ((-1, 2), (0, 4), (3, 5)):
        with pytest.raises(IndexError):
            pool.read(start, stop)
    assert pool.read(3, 3).tolist() == []


def test_document_ends_are_mapped_signed_and_read_only(tmp_path):
    pool = pool_of(tmp_path, [[1, 2], [3, 2]], [[4, 5, 2]])
    ends = pool.document_ends(0)
    assert ends.tolist() == [2, 4]
    assert ends.dtype == np.int64
    assert not ends.flags.writeable
    assert not ends.flags.owndata
    assert pool.document_ends(1).tolist() == [3]


def test_document_ends_of_a_shard_without_index_are_an_error_that_names_it(tmp_path):
    pool = TokenPool.open([write_shard(tmp_path / "bare.ds", [[1, 2]], index=False)])
    with pytest.raises(ShardError) as caught:
        pool.document_ends(0)
    assert caught.value.where == "bare.ds"


def test_a_pool_without_tokens_is_refused(tmp_path):
    with pytest.raises(DataError):
        TokenPool.open([])
    with pytest.raises(DataError):
        pool_of(tmp_path, [], [])


def test_only_a_bounded_number_of_files_is_open_however_many_shards_there_are(tmp_path):
    shards = [write_shard(tmp_path / f"{n:03}.ds", [[n, EOS]]) for n in range(60)]
    pool = TokenPool.open(shards, max_open_files=4)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    for number in [*range(60), *range(0, 60, 7)]:
        assert pool.read(2 * number, 2 * number + 2).tolist() == [number, EOS]
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) - before <= 4
        pool.close()
        assert len(os.listdir("/proc/self/fd")) <= before
    assert pool.read(0, 120).tolist() == flat(*([[n, EOS]] for n in range(60)))


def test_an_array_outlives_its_place_among_the_open_files(tmp_path):
    pool = TokenPool.open(
        [write_shard(tmp_path / f"{n}.ds", [[n + 10, EOS]] * (n + 1)) for n in range(3)], max_open_files=1
    )
    held = pool.document_ends(1)
    pool.document_ends(0), pool.document_ends(2), pool.close()
    gc.collect()
    assert held.tolist() == [2, 4]


def test_a_shard_and_its_document_ends_are_read_in_pieces(tmp_path):
    pool = pool_of(tmp_path, [[1, 2], [3, 2], [4, 5, 6, 2]], [[70_000, 2]], token_bytes=(2, 4))
    assert pool.read_shard(0, 1, 4).tolist() == [2, 3, 2]
    assert pool.read_shard(0, 1, 4).dtype == np.uint16
    assert pool.read_shard(1, 0, 2).tolist() == [70_000, 2]
    assert pool.read_shard(1, 2, 2).tolist() == []
    assert pool.read_document_ends(0, 1, 3).tolist() == [4, 8]
    assert pool.read_document_ends(0, 0, 0).tolist() == []
    for read, stop in ((pool.read_shard, 9), (pool.read_document_ends, 4)):
        with pytest.raises(IndexError):
            read(0, 0, stop)


def test_the_system_may_give_less_than_was_asked_for(tmp_path, monkeypatch):
    pool = counting_pool(tmp_path, 50)
    whole = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda file, buffers, at: whole(file, [memoryview(buffers[0]).cast("B")[:7]], at)
    )
    assert pool.read(3, 50).tolist() == list(range(3, 50))


def test_ten_thousand_shards_open_at_once_without_touching_a_file(tmp_path):
    shards = [
        ShardInfo(tmp_path / f"{n:05}.ds", f"{n:05}.ds", 100_000_000, 50_000, 4, "tiny", None)
        for n in range(10_000)
    ]
    began = time.perf_counter()
    pool = TokenPool.open(shards)
    assert time.perf_counter() - began < 1
    assert pool.num_tokens == 10**12
    assert pool.starts.nbytes <= 8 * 10_001
    assert pool.shard_of(123_456_789_012) == (1234, 56_789_012)


def test_a_large_sparse_shard_is_read_at_its_end(tmp_path):
    """8 GB of zeros that take no room: only the pages that are read are touched."""
    path, num_tokens = tmp_path / "big.ds", 2 * 10**9
    with open(path, "wb") as file:
        file.truncate(4 * num_tokens)
        file.seek(4 * (num_tokens - 2))
        file.write(np.array([77, EOS], dtype="<u4").tobytes())
    pool = TokenPool.open([ShardInfo(path, "big.ds", num_tokens, 0, 4, "tiny", None)])
    assert pool.read(num_tokens - 3, num_tokens).tolist() == [0, 77, EOS]


def test_an_id_beyond_the_vocabulary_names_shard_and_token(tmp_path):
    """Met only while training: still a clean error with its place, not an index far from here (T38)."""
    shards = [
        write_shard(tmp_path / f"{n}.ds", docs) for n, docs in enumerate([[[5, 6, EOS]], [[7, 100, EOS]]])
    ]
    pool = TokenPool.open(shards, vocab_size=100)
    assert pool.read(0, 4).tolist() == [5, 6, EOS, 7]
    with pytest.raises(ShardError) as caught:
        pool.read_windows([0, 2], 3)
    assert caught.value.where == "1.ds"
    assert "id 100" in str(caught.value)
    assert "token 1 " in str(caught.value)
    assert TokenPool.open(shards, vocab_size=101).read(0, 6).max() == 100
    assert TokenPool.open(shards).read(0, 6).max() == 100


def test_a_file_that_changed_or_went_since_it_was_proved_is_named(tmp_path):
    pool = pool_of(tmp_path, [[1, 2, 3, EOS]], [[1, EOS]])
    assert pool.read(0, 2).tolist() == [1, 2]
    with open(tmp_path / "000.ds", "r+b") as file:
        file.truncate(5)
    with pytest.raises(ShardError, match="ends at byte 5 now"):
        pool.read(0, 4)
    pool.close()
    with pytest.raises(ShardError, match="5 bytes now, not 8"):
        pool.read(0, 2)
    (tmp_path / "001.ds").unlink()
    with pytest.raises(NotFoundError) as caught:
        pool.read(4, 6)
    assert caught.value.where == "001.ds"


def test_threads_may_read_at_once(tmp_path):
    pool = counting_pool(tmp_path, 4000, num_shards=16)
    small = TokenPool.open(pool.shards, max_open_files=2)
    wrong: list[int] = []

    def read(seed: int) -> None:
        for start in np.random.default_rng(seed).integers(0, 3900, 300).tolist():
            if small.read(start, start + 100).tolist() != list(range(start, start + 100)):
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_pool_gives_its_identity(tmp_path):
    pool = pool_of(tmp_path, random_documents(5), random_documents(5, seed=1))
    assert [entry["name"] for entry in pool.identity()] == ["000.ds", "001.ds"]
    assert pool.identity() == TokenPool.open(pool.shards).identity()
