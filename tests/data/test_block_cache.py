"""Blocks are right, each is fetched once, and no more are kept than was said."""

from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from protolith.data import block_cache
from protolith.data.block_cache import BlockCache, shared_cache
from protolith.errors import NotFoundError, UnreachableError

CONTENT = random.Random(3).randbytes(100_003)


class Source:
    """A reader that counts what is asked of it."""

    def __init__(self, content=CONTENT, pause=0.0, fault=None):
        self.content, self.pause, self.fault = content, pause, fault
        self.size, self.version = len(content), "v"
        self.asked: list[tuple[int, int]] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()

    def read_into(self, buffer, start):
        with self.lock:
            self.asked.append((start, len(buffer)))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        time.sleep(self.pause)
        with self.lock:
            self.at_once -= 1
        if self.fault is not None:
            raise self.fault
        buffer[:] = self.content[start : start + len(buffer)]


@pytest.fixture
def cache(tmp_path):
    made = BlockCache(tmp_path / "blocks", limit_bytes=20 * 1000, block_bytes=1000)
    yield made
    made.close()


def read(cache, source, start, count, file="f"):
    buffer = bytearray(count)
    cache.read_into(source, file, memoryview(buffer), start)
    return bytes(buffer)


def test_bytes_are_those_of_the_file(cache):
    source, draw = Source(), random.Random(1)
    for _ in range(500):
        start = draw.randrange(len(CONTENT))
        count = draw.randrange(min(3500, len(CONTENT) - start) + 1)
        assert read(cache, source, start, count) == CONTENT[start : start + count]
    assert read(cache, source, len(CONTENT) - 3, 3) == CONTENT[-3:]


def test_a_block_is_fetched_once(cache):
    source = Source()
    for start in (0, 10, 990, 500):
        read(cache, source, start, 10)
    assert source.asked == [(0, 1000)]


def test_a_block_on_its_way_is_waited_for(cache):
    source = Source(pause=0.05)
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda at: read(cache, source, at, 5), range(0, 80, 10)))
    assert got == [CONTENT[at : at + 5] for at in range(0, 80, 10)]
    assert source.asked == [(0, 1000)]


def test_blocks_of_one_read_come_at_the_same_time(cache):
    source = Source(pause=0.05)
    assert read(cache, source, 0, 8000) == CONTENT[:8000]
    assert source.most_at_once >= 6


def test_neighbours_read_in_order_are_fetched_ahead(cache):
    source = Source()
    read(cache, source, 0, 10)
    read(cache, source, 1000, 10)
    deadline = time.monotonic() + 5
    while len(source.asked) < 4 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert sorted(source.asked) == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 1000)]


def test_no_more_is_kept_than_was_said_and_the_oldest_goes(cache, tmp_path):
    source = Source()
    for number in range(0, 100, 2):  # no neighbours: nothing is fetched ahead
        read(cache, source, number * 1000, 10)
        read(cache, source, 0, 10)
    assert len(cache._slots) == cache.num_slots == 20
    assert os.fstat(cache._descriptor).st_size <= 20 * 1000
    assert len(source.asked) == 50, "the block that is used all the time stays"
    read(cache, source, 98_000, 10)
    assert len(source.asked) == 50
    read(cache, source, 2000, 10)
    assert len(source.asked) == 51


def test_files_and_versions_are_told_apart(cache):
    old, new = Source(b"a" * 2000), Source(b"b" * 2000)
    assert read(cache, old, 0, 4, ("x", "1")) == b"aaaa"
    assert read(cache, new, 0, 4, ("x", "2")) == b"bbbb"


def test_threads_never_read_a_block_that_was_given_away(tmp_path):
    cache = BlockCache(tmp_path, limit_bytes=3 * 1000, block_bytes=1000)
    source = Source()

    def many(seed):
        draw = random.Random(seed)
        for _ in range(400):
            start = draw.randrange(len(CONTENT) - 1500)
            assert read(cache, source, start, 1500) == CONTENT[start : start + 1500]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(many, range(8)))
    cache.close()


def test_a_fault_is_told_to_all_who_wait_and_not_remembered(cache):
    source = Source(pause=0.05, fault=NotFoundError("gone"))
    with ThreadPoolExecutor(4) as threads:
        reads = [threads.submit(read, cache, source, 0, 5) for _ in range(4)]
    assert all(isinstance(one.exception(), NotFoundError) for one in reads)
    source.fault = None
    assert read(cache, source, 0, 5) == CONTENT[:5]


def test_a_storage_that_is_away_is_not_waited_for_by_each_block_in_the_queue(cache):
    source = Source(pause=0.3, fault=UnreachableError("away"))
    began = time.monotonic()
    with pytest.raises(UnreachableError):
        read(cache, source, 0, 90_000)  # 90 blocks, 16 at a time
    with pytest.raises(UnreachableError):
        cache.read_into(source, "f", memoryview(bytearray(10)), 0)
    cache.close()
    assert time.monotonic() - began < 1.5


def test_a_disk_that_is_full_costs_speed_only(cache, monkeypatch):
    def full(*_arguments):
        raise OSError(28, "No space left on device")

    source = Source()
    monkeypatch.setattr(block_cache.os, "pwrite", full)
    for _ in range(2):
        assert read(cache, source, 0, 2500) == CONTENT[:2500]
    assert not cache.kept_on_disk and cache.why_not == "No space left on device"
    assert len(source.asked) >= 6


def test_a_folder_that_cannot_be_made_costs_speed_only(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = BlockCache(tmp_path / "file" / "blocks", block_bytes=1000)
    source = Source()
    assert read(cache, source, 0, 2500) == CONTENT[:2500]
    assert not cache.kept_on_disk and cache.why_not
    cache.close()


def test_nothing_is_left_in_the_folder(tmp_path):
    cache = BlockCache(tmp_path, block_bytes=1000)
    read(cache, Source(), 0, 5000)
    assert list(tmp_path.iterdir()) == []
    assert 0 < cache.num_slots * 1000 <= 8 << 30
    cache.close()


def test_processes_of_one_launch_share_the_space(tmp_path, monkeypatch):
    alone = BlockCache(tmp_path)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    together = BlockCache(tmp_path)
    assert together.num_slots == pytest.approx(alone.num_slots / 4, rel=0.1)
    alone.close()
    together.close()


def test_a_process_has_one_cache_in_its_home(monkeypatch, tmp_path):
    monkeypatch.setattr(block_cache, "_shared", {})
    monkeypatch.setenv("PROTOLITH_HOME", str(tmp_path))
    assert shared_cache() is shared_cache()
    assert (tmp_path / "cache" / "blocks").is_dir()
    shared_cache().close()
