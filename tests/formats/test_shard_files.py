"""One shard: what proves its width, what is refused, and that writing is whole or nothing."""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.errors import NotFoundError, ShardError
from protolith.formats.shard_files import (
    ShardWriter,
    for_people,
    id_bytes,
    read_shard_info,
    token_bytes_for,
)


def write_shard(folder: Path, name: str, documents: list[list[int]], width: int = 2) -> Path:
    """Written by hand, without the code under test."""
    path = folder / name
    ids = [token for document in documents for token in document]
    path.write_bytes(struct.pack(f"<{len(ids)}{'H' if width == 2 else 'I'}", *ids))
    ends, end = [], 0
    for document in documents:
        end += len(document)
        ends.append(end)
    (folder / f"{name}.index").write_bytes(struct.pack(f"<{len(ends)}Q", *ends))
    (folder / f"{name}.metadata").write_text(f"org/tok|{width}\n{len(ids)}\n{len(ids)} T")
    return path


DOCUMENTS = [[5, 6, 7, 0], [8, 0], [9, 10, 0]]


@pytest.mark.parametrize("width", [2, 4])
def test_a_good_shard_is_proved(tmp_path: Path, width: int) -> None:
    info = read_shard_info(write_shard(tmp_path, "a.ds", DOCUMENTS, width), "sub/a.ds")
    assert (info.name, info.num_tokens, info.num_documents, info.token_bytes) == ("sub/a.ds", 9, 3, width)
    assert info.tokenizer_name == "org/tok"
    assert info.index_path == tmp_path / "a.ds.index"


@pytest.mark.parametrize("width", [2, 4])
def test_without_index_the_metadata_proves_the_width(tmp_path: Path, width: int) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS, width)
    (tmp_path / "a.ds.index").unlink()
    info = read_shard_info(path)
    assert (info.token_bytes, info.num_tokens, info.num_documents, info.index_path) == (width, 9, 0, None)


@pytest.mark.parametrize("width", [2, 4])
def test_without_metadata_the_index_proves_the_width(tmp_path: Path, width: int) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS, width)
    (tmp_path / "a.ds.metadata").unlink()
    info = read_shard_info(path)
    assert (info.token_bytes, info.num_tokens, info.tokenizer_name) == (width, 9, "")


def test_without_both_nothing_is_proved(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    (tmp_path / "a.ds.metadata").unlink()
    (tmp_path / "a.ds.index").unlink()
    with pytest.raises(ShardError, match="cannot be proved"):
        read_shard_info(path)


def test_a_cut_shard_is_refused_with_its_numbers(tmp_path: Path) -> None:
    """(T6 a)"""
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ShardError, match=r"a\.ds: 11 bytes are no whole number of 2-byte tokens"):
        read_shard_info(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardError, match="index ends at token 9, its size makes 5") as caught:
        read_shard_info(path)
    assert caught.value.where == "a.ds"


def test_the_index_of_another_shard_is_refused(tmp_path: Path) -> None:
    """(T6 b)"""
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    write_shard(tmp_path, "b.ds", [[1, 2, 0]])
    (tmp_path / "a.ds.index").write_bytes((tmp_path / "b.ds.index").read_bytes())
    with pytest.raises(ShardError, match="index ends at token 3"):
        read_shard_info(path)


def test_an_index_that_does_not_ascend_is_refused(tmp_path: Path) -> None:
    """(T6 d)"""
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    (tmp_path / "a.ds.index").write_bytes(struct.pack("<3Q", 6, 4, 9))
    with pytest.raises(ShardError, match="document 1 ends at token 4, the one before it at 6"):
        read_shard_info(path)


def test_a_cut_index_is_refused(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    (tmp_path / "a.ds.index").write_bytes((tmp_path / "a.ds.index").read_bytes()[:-3])
    with pytest.raises(ShardError, match="21 bytes, not a whole number of 8-byte"):
        read_shard_info(path)


def test_a_wrong_declared_width_is_refused_and_the_right_one_is_named(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS, width=4)
    (tmp_path / "a.ds.metadata").write_text("org/tok|2\n9\n9.00 T")
    with pytest.raises(ShardError, match="the numbers fit 4-byte tokens, but its metadata says 2"):
        read_shard_info(path)


@pytest.mark.parametrize("text", ["tok|3\n9", "tok|2\nnine", "tok|2\n-9", "tok|two\n9"])
def test_nonsense_in_the_metadata_is_refused(tmp_path: Path, text: str) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    (tmp_path / "a.ds.metadata").write_text(text)
    with pytest.raises(ShardError, match="metadata"):
        read_shard_info(path)


def test_a_tokenizer_name_may_hold_a_bar(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    (tmp_path / "a.ds.metadata").write_text("Unknown Tokenizer|2|2\n9\n9.00 T")
    info = read_shard_info(path)
    assert (info.tokenizer_name, info.token_bytes) == ("Unknown Tokenizer|2", 2)


def test_a_missing_shard_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_shard_info(tmp_path / "none.ds")


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 70_000), max_size=9), max_size=12),
    split=st.integers(0, 12),
)
def test_what_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], split: int
) -> None:
    folder = tmp_path_factory.mktemp("shard")
    width = 4 if any(token > 65_535 for document in documents for token in document) else 2
    with ShardWriter(folder / "w.ds", width, "org/tok") as shard:
        for document in documents[:split]:
            shard.write(document)
        rest = documents[split:]
        data = id_bytes([token for document in rest for token in document], width)
        shard.write_bytes(data, array("Q", map(len, rest)))
    by_hand = write_shard(folder, "h.ds", documents, width)
    for suffix in ("", ".index"):
        assert (folder / f"w.ds{suffix}").read_bytes() == Path(f"{by_hand}{suffix}").read_bytes()
    info = read_shard_info(folder / "w.ds")
    assert info.num_tokens == sum(map(len, documents))
    assert info.num_documents == len(documents)
    assert sorted(p.name for p in folder.glob(".*")) == []


def test_an_id_beyond_the_width_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """An id of 65,536 must not become 0 (T4)."""
    with pytest.raises(ShardError, match="65536 do not fit 2 bytes"):
        with ShardWriter(tmp_path / "a.ds", 2, "t") as shard:
            shard.write([1, 2])
            shard.write([3, 65_536])
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_block_keeps_the_old_shard(tmp_path: Path) -> None:
    path = write_shard(tmp_path, "a.ds", DOCUMENTS)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(KeyError):
        with ShardWriter(path, 2, "t") as shard:
            shard.write([1])
            raise KeyError
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_tokenizer_name_of_two_lines_cannot_break_the_metadata(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "a.ds", 2, "odd\nname") as shard:
        shard.write([1])
    assert read_shard_info(tmp_path / "a.ds").tokenizer_name == "odd name"


def test_width_follows_from_the_highest_id() -> None:
    assert [token_bytes_for(n) for n in (1, 65_536, 65_537)] == [2, 2, 4]
    assert token_bytes_for(10, max_id=65_536) == 4


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.00 T"),
        (9, "9.00 T"),
        (999, "999 T"),
        (1000, "1.00 kT"),
        (12_345, "12.3 kT"),
        (999_999, "1.00 MT"),
        (9_995_001, "10.0 MT"),
        (1_234_567_890, "1.23 GT"),
    ],
)
def test_counts_for_people(count: int, text: str) -> None:
    assert for_people(count) == text
