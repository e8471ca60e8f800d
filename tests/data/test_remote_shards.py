"""Shards behind URLs: the same shards, pools, identities and errors as of a local copy."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest

from protolith.data import block_cache, shard_proof
from protolith.data.best_fit_rows import BestFitRows
from protolith.data.block_cache import BlockCache
from protolith.data.check import quick_check
from protolith.data.check_report import check_shards
from protolith.data.document_index import segments_between
from protolith.data.document_rows import DocumentRows
from protolith.data.files import find_files
from protolith.data.remote_shards import RemoteEnds
from protolith.data.shard_facts import Expected
from protolith.data.shard_folders import SHARD_SUFFIXES, find_shards
from protolith.data.shards import TokenPool
from protolith.data.storage import RemotePath
from protolith.data.window_rows import WindowRows
from protolith.errors import DataError, NotFoundError, ShardError
from tests.data.shard_fixtures import EOS, random_documents, write_shard


@pytest.fixture
def store():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture
def cache(tmp_path):
    made = BlockCache(tmp_path / "blocks", limit_bytes=64 * 256, block_bytes=256)
    yield made
    made.close()


def copy_up(folder: Path, store) -> str:
    for path in folder.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/data/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return "memory://data"


@pytest.fixture
def corpus(tmp_path, store):
    """(local folder, URL of its copy): three shards of 2 and 4 bytes, one of them below."""
    folder = tmp_path / "data"
    for number, name in enumerate(["a.ds", "b.ds", "c/d.ds"]):
        documents = random_documents(300, seed=number)
        write_shard(folder / name, documents, token_bytes=4 if number == 1 else 2)
    return folder, copy_up(folder, store)


def without_places(shards):
    return [
        replace(shard, path=None, index_path=None, metadata_path=None, version="", index_version="")
        for shard in shards
    ]


def test_shards_are_proved_as_local_ones(corpus):
    folder, url = corpus
    local, local_notes = find_shards([str(folder)])
    remote, notes = find_shards([url])
    assert without_places(remote) == without_places(local)
    assert notes == local_notes
    assert all(isinstance(shard.path, RemotePath) and shard.version for shard in remote)
    named, _notes = find_shards([f"{url}/a.ds"])
    assert without_places(named) == without_places(local[:1])


def test_a_pool_reads_the_same_tokens(corpus, cache):
    folder, url = corpus
    local = TokenPool.open(find_shards([str(folder)])[0])
    remote = TokenPool.open(find_shards([url])[0], blocks=cache)
    assert remote.num_tokens == local.num_tokens and remote.num_documents == local.num_documents
    draw = np.random.default_rng(0)
    for _ in range(60):
        starts = draw.integers(0, local.num_tokens - 33, size=5).tolist()
        assert (remote.read_windows(starts, 33) == local.read_windows(starts, 33)).all()
    assert (remote.read(0, remote.num_tokens) == local.read(0, local.num_tokens)).all()
    for number in range(3):
        assert (remote.read_shard(number, 3, 99) == local.read_shard(number, 3, 99)).all()
        ends = local.read_document_ends(number, 5, 250)
        assert (remote.read_document_ends(number, 5, 250) == ends).all()


def test_rows_are_the_same(corpus, cache):
    folder, url = corpus
    masked = partial(WindowRows, document_mask=True), partial(BestFitRows, document_mask=True)
    for kind in (WindowRows, DocumentRows, BestFitRows, *masked):
        local = kind(TokenPool.open(find_shards([str(folder)])[0]), 16)
        remote = kind(TokenPool.open(find_shards([url])[0], blocks=cache), 16)
        numbers = np.random.default_rng(1).permutation(local.num_rows)[:200]
        assert remote.num_rows == local.num_rows
        ours, theirs = remote.read(numbers), local.read(numbers)
        for field in fields(theirs):
            assert np.array_equal(getattr(ours, field.name), getattr(theirs, field.name)), field.name


def test_borders_of_documents_are_the_same(corpus, cache):
    folder, url = corpus
    local = TokenPool.open(find_shards([str(folder)])[0])
    remote = TokenPool.open(find_shards([url])[0], blocks=cache)
    for start in np.random.default_rng(4).integers(0, local.num_tokens - 300, size=30).tolist():
        assert segments_between(remote, start, start + 300) == segments_between(local, start, start + 300)


def test_identity_and_check_do_not_depend_on_the_place(corpus, cache):
    """A run may go on with a copy of its data on other storage."""
    folder, url = corpus
    local = TokenPool.open(find_shards([str(folder)])[0])
    remote = TokenPool.open(find_shards([url])[0], blocks=cache)
    assert remote.identity() == local.identity()
    asked = {"eos_id": EOS, "tokenizer_name": "tiny", "vocab_size": 100}
    assert quick_check(remote, **asked) == quick_check(local, **asked)
    assert "training data" in quick_check(remote, **asked, training=remote).warnings[-1]
    assert "is a copy of" in quick_check(remote, **asked, training=local).warnings[-1]


@pytest.mark.parametrize("full", [False, True])
def test_data_check_judges_them_alike(corpus, full):
    folder, url = corpus
    local, remote = (check_shards([str(place)], Expected(eos_id=EOS), full=full) for place in (folder, url))
    for ours, theirs in zip(remote.shards, local.shards, strict=True):
        assert ours.separators.num_sampled == (300 if full else 100), "every look is a request"
        assert ours.separators.num_eos == ours.separators.num_sampled
        assert replace(ours, path=None, separators=None) == replace(theirs, path=None, separators=None)
    assert remote.is_good and remote.errors == local.errors
    assert remote.notes == (*local.notes, "manifests behind URLs are not read: no digest was compared there")


def test_document_ends_behave_as_an_array(corpus, cache):
    folder, url = corpus
    local = TokenPool.open(find_shards([str(folder)])[0]).document_ends(0)
    pool = TokenPool.open(find_shards([url])[0], blocks=cache)
    ends = pool.document_ends(0)
    assert isinstance(ends, RemoteEnds) and len(ends) == len(local)
    draw = np.random.default_rng(2)
    numbers = draw.integers(-300, 300, size=(4, 50))
    assert (ends[numbers] == local[numbers]).all() and ends[numbers].dtype == local.dtype
    assert ends[7] == local[7] and int(ends[-1]) == int(local[-1])
    assert (ends[10:200] == local[10:200]).all() and (ends[10:200:7] == local[10:200:7]).all()
    assert (np.asarray(ends) == local).all()
    values = [*draw.integers(-5, int(local[-1]) + 5, size=200), *local[:50], local[-1]]
    for side in ("left", "right"):
        assert (np.searchsorted(ends, values, side=side) == np.searchsorted(local, values, side=side)).all()
        assert int(np.searchsorted(ends, 77, side=side)) == int(np.searchsorted(local, 77, side=side))
    with pytest.raises(IndexError):
        ends[300]


def test_bad_shards_are_told_as_local_ones(corpus, store):
    folder, url = corpus
    for root in (folder, None):
        cut = (folder / "a.ds").read_bytes()[:-2]
        if root is None:
            store.pipe_file("/data/a.ds", cut)
            store.pipe_file("/data/b.ds.metadata", b"tiny|3\n5\n")
    with pytest.raises(ShardError) as caught:
        find_shards([url])
    assert len(caught.value.problems) == 2 and caught.value.where == url
    assert "its index ends at token" in caught.value.problems[0]


def test_missing_companions_empty_shards_and_loss_masks_are_said(tmp_path, store):
    folder = tmp_path / "data"
    write_shard(folder / "a.ds", random_documents(10), index=False)
    write_shard(folder / "b.ds", random_documents(10))
    (folder / "b.ds.metadata").unlink()
    write_shard(folder / "c.ds", [])
    (folder / "b.ds.loss").write_bytes(b"1")
    url = copy_up(folder, store)
    local, local_notes = find_shards([str(folder)])
    remote, notes = find_shards([url])
    assert notes == local_notes and any("loss masks" in note for note in notes)
    assert without_places(remote) == without_places(local)


def test_a_shuffled_copy_is_read_alone(tmp_path, store):
    folder = tmp_path / "data"
    write_shard(folder / "x_unshuffled.ds", random_documents(10))
    for suffix in ("", ".index", ".metadata"):
        shutil.copy(folder / f"x_unshuffled.ds{suffix}", folder / f"x_doc_shuffled.ds{suffix}")
    remote, notes = find_shards([copy_up(folder, store)])
    assert [shard.name for shard in remote] == ["x_doc_shuffled.ds"]
    assert "only the copy is read" in notes[0]


def test_a_shard_that_is_written_again_or_goes_is_named(corpus, store, tmp_path):
    folder, url = corpus
    shards, _notes = find_shards([url])

    def read():
        made = BlockCache(tmp_path / "own", limit_bytes=1 << 20, block_bytes=256)
        return TokenPool.open(shards, blocks=made).read(0, 5)

    assert len(read()) == 5
    time.sleep(0.01)
    store.pipe_file("/data/a.ds", (folder / "a.ds").read_bytes())
    with pytest.raises(ShardError, match=r"a\.ds was written again") as caught:
        read()
    assert caught.value.where == "a.ds"
    store.rm("/data/a.ds")
    with pytest.raises(NotFoundError, match="is gone") as missing:
        read()
    assert missing.value.where == "a.ds"


def test_an_id_beyond_the_vocabulary_is_named(corpus, cache):
    _folder, url = corpus
    pool = TokenPool.open(find_shards([url])[0], vocab_size=4, blocks=cache)
    with pytest.raises(ShardError, match=r"a\.ds.*beyond the model's vocabulary"):
        pool.read(0, 200)


def test_opening_asks_for_nothing_and_a_row_for_its_blocks_only(corpus, store, cache, monkeypatch):
    _folder, url = corpus
    shards, _notes = find_shards([url])
    asked = []
    cat = store.cat_file
    monkeypatch.setattr(
        type(store), "cat_file", lambda self, path, **at: asked.append((path, at)) or cat(path, **at)
    )
    own = url.split("://")[1].rstrip("/").rsplit("/", 1)[-1]
    pool = TokenPool.open(shards, blocks=cache)
    assert asked == []
    pool.read_windows([0, 1500], 10)
    ranges = sorted((at["start"], at["end"]) for path, at in asked if own in path)
    assert ranges == [(0, 256), (2816, 3072)], asked


def test_blocks_that_cannot_be_kept_are_said(corpus, monkeypatch, tmp_path):
    (tmp_path / "home").write_text("in the way")
    monkeypatch.setenv("PROTOLITH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(block_cache, "_shared", {})
    _shards, notes = find_shards([corpus[1]])
    assert notes[0].startswith("blocks of remote shards cannot be kept on disk (")
    block_cache.shared_cache().close()


def test_threads_may_read_at_once(corpus, cache):
    folder, url = corpus
    local = TokenPool.open(find_shards([str(folder)])[0])
    remote = TokenPool.open(find_shards([url])[0], blocks=cache, max_open_files=2)
    wrong = []

    def many(seed):
        for start in np.random.default_rng(seed).integers(0, local.num_tokens - 20, size=50).tolist():
            if (remote.read(start, start + 20) != local.read(start, start + 20)).any():
                wrong.append(start)

    threads = [threading.Thread(target=many, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_large_index_is_proved_by_samples_and_said(tmp_path, monkeypatch):
    documents = [[5, EOS]] * 40_000  # 320 kB of index
    write_shard(tmp_path / "a.ds", documents)
    monkeypatch.setattr(shard_proof, "_WHOLE_INDEX_BYTES", 1 << 16)
    shards, notes = find_shards([str(tmp_path)])
    assert shards[0].index_sampled and shards[0].num_documents == 40_000
    assert any("proved by samples in 1 of 1 shards" in note for note in notes)
    shards, notes = find_shards([str(tmp_path)], whole=True)
    assert not shards[0].index_sampled and notes == ()


@pytest.mark.parametrize(
    "entry, sampled_sees", [(0, True), (39_999, True), (20_001, False), (5_700, True)], ids=str
)
def test_what_samples_see_of_a_damaged_index(tmp_path, monkeypatch, entry, sampled_sees):
    write_shard(tmp_path / "a.ds", [[5, EOS]] * 40_000)
    index = np.memmap(tmp_path / "a.ds.index", dtype="<u8", mode="r+")
    index[entry] = 10**9 if entry == 0 else 1
    index.flush()
    with pytest.raises(ShardError):
        find_shards([str(tmp_path)])
    monkeypatch.setattr(shard_proof, "_WHOLE_INDEX_BYTES", 1 << 16)
    if sampled_sees:
        with pytest.raises(ShardError, match="index"):
            find_shards([str(tmp_path)])
    else:
        find_shards([str(tmp_path)])
        with pytest.raises(ShardError, match="does not ascend"):
            find_shards([str(tmp_path)], whole=True)


def test_an_index_that_ends_elsewhere_is_seen_by_samples(tmp_path, monkeypatch):
    write_shard(tmp_path / "a.ds", [[5, EOS]] * 40_000)
    with open(tmp_path / "a.ds.index", "r+b") as index:
        index.truncate(8 * 39_000)
    monkeypatch.setattr(shard_proof, "_WHOLE_INDEX_BYTES", 1 << 16)
    with pytest.raises(ShardError, match="its index ends at token 78000"):
        find_shards([str(tmp_path)])


def test_an_object_store_serves_a_pool(s3, tmp_path, cache):
    folder = tmp_path / "data"
    write_shard(folder / "a.ds", random_documents(300))
    url = s3.upload(folder)
    shards, _notes = find_shards([url])
    remote, local = TokenPool.open(shards, blocks=cache), TokenPool.open(find_shards([str(folder)])[0])
    assert (remote.read(0, 3000) == local.read(0, 3000)).all()
    assert remote.identity() == local.identity()
    s3.client.pipe_file(f"{url}/a.ds", (folder / "a.ds").read_bytes()[::-1])
    with pytest.raises(DataError, match=r"a\.ds was written again"):
        TokenPool.open(shards, blocks=BlockCache(tmp_path / "b2", limit_bytes=0)).read(0, 9)


def test_shards_are_found_without_asking_for_each(s3, tmp_path):
    folder = tmp_path / "data"
    write_shard(folder / "a.ds", random_documents(3))
    url = s3.upload(folder)
    found = find_files([url], suffixes=SHARD_SUFFIXES, what="token shards")
    assert {path.name for path in found.listed} == {"a.ds", "a.ds.index", "a.ds.metadata"}
