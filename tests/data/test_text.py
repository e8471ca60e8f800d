"""Records of text: what is read, what is counted, what ends the run, and where it stood."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.files import DataFile
from protolith.data.json_lines import BlockReader
from protolith.data.text import Tally, read_block
from protolith.data.text_blocks import read_texts
from protolith.errors import BadRecordError, NotFoundError
from tests.data.corpora import write_jsonl


def as_file(path: Path) -> DataFile:
    return DataFile(path, path.name, path.stat().st_size)


def put(path: Path, data: bytes) -> DataFile:
    path.write_bytes(data)
    return as_file(path)


def texts_of(file: DataFile, field: str = "text") -> list[str]:
    return list(read_texts([file], field))


GOOD = [{"text": f"document {n}"} for n in range(200)]


def with_one(tmp_path: Path, record: Any) -> DataFile:
    return as_file(write_jsonl(tmp_path / "c.jsonl", [*GOOD[:100], record, *GOOD[100:]]))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": ""}, "empty"),
        ({"text": " \n\t"}, "blank"),
        ({"text": None}, "null"),
        ({"text": 7}, "not a string but int"),
        ({"text": ["a"]}, "not a string but list"),
        ({"title": "x"}, "no field 'text'"),
        ([1, 2], "not an object"),
        ({"text": "half \ud800 pair"}, "half of a surrogate pair"),
    ],
)
def test_a_record_without_text_is_counted_with_its_place(tmp_path: Path, record: Any, reason: str) -> None:
    tally = Tally()
    texts = list(read_texts([with_one(tmp_path, record)], tally=tally))
    assert len(texts) == 200
    assert tally.records == 201
    assert tally.skipped == {reason: 1}
    assert tally.first == {reason: "c.jsonl:101"}
    assert tally.notes() == (f"skipped 1 of 201 records: {reason} (first at c.jsonl:101)",)


def test_more_than_one_in_a_hundred_is_refused_with_the_first_of_each(tmp_path: Path) -> None:
    records = [*GOOD, {"text": ""}, {"text": None}, {"text": ""}]
    with pytest.raises(BadRecordError) as caught:
        texts_of(as_file(write_jsonl(tmp_path / "c.jsonl", records)))
    assert "2 empty (first at c.jsonl:201); 1 null (first at c.jsonl:202)" in caught.value.message
    assert "data.text_field" in caught.value.hint


def test_a_hundredth_is_allowed(tmp_path: Path) -> None:
    assert len(texts_of(as_file(write_jsonl(tmp_path / "c.jsonl", [*GOOD[:198], {}, {}])))) == 198


def test_the_verdict_comes_long_before_the_end_of_a_bad_corpus(tmp_path: Path) -> None:
    bad = write_jsonl(tmp_path / "c.jsonl", [{"txt": "x" * 200}] * 60_000)
    tally = Tally()
    with pytest.raises(BadRecordError):
        list(read_texts([as_file(bad)], tally=tally))
    assert tally.records < 6_000


def test_a_few_bad_records_at_the_start_are_no_verdict(tmp_path: Path) -> None:
    records = [{"text": ""}] * 30 + [{"text": "y" * 1000}] * 4000
    assert len(texts_of(as_file(write_jsonl(tmp_path / "c.jsonl", records)))) == 4000


def test_content_stands_in_where_there_is_no_text(tmp_path: Path) -> None:
    file = as_file(write_jsonl(tmp_path / "c.jsonl", [{"content": "a"}, {"content": "b", "text": "c"}]))
    assert texts_of(file) == ["a", "c"]


def test_another_field_is_taken_alone(tmp_path: Path) -> None:
    file = as_file(write_jsonl(tmp_path / "c.jsonl", [{"body": "a", "text": "b", "content": "c"}]))
    assert texts_of(file, "body") == ["a"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "cut', "not JSON: Unterminated string"),
        (b"plain words", "not JSON"),
        (b'{"text": "a"} {"text": "b"}', "Extra data"),
        (b'{"text": "caf\xe9"}', "not UTF-8: .* at byte 14"),
        (b"\0\0\0\0", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"n": ' + b"9" * 5000 + b"}", "not JSON"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_damaged_line_is_an_error_with_file_and_line(
    tmp_path: Path, line: bytes, words: str, last: bool
) -> None:
    good = b'{"text": "a"}\n'
    file = put(tmp_path / "c.jsonl", good * 41 + line + (b"" if last else b"\n" + good))
    with pytest.raises(BadRecordError, match=words) as caught:
        texts_of(file)
    assert caught.value.where == "c.jsonl:42"


def test_byte_order_marks_line_ends_and_blank_lines_are_no_matter(tmp_path: Path) -> None:
    bom = b"\xef\xbb\xbf"
    data = bom + b'{"text": "a"}\r\n\r\n' + bom + b'{"text": "b"}\n   \n{"text": "\xe2\x80\xa8c"}'
    assert texts_of(put(tmp_path / "c.jsonl", data)) == ["a", "b", "\u2028c"]
    assert texts_of(put(tmp_path / "d.jsonl", bom)) == []


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ('{"text": "a"}\n'.encode("utf-16"), "UTF-16"),
        (b"PAR1....", "Parquet"),
        (b"PARE....", "encrypted Parquet"),
        (b"PK\x03\x04....", "zip"),
    ],
)
def test_other_forms_are_named(tmp_path: Path, data: bytes, word: str) -> None:
    with pytest.raises(BadRecordError, match=word) as caught:
        texts_of(put(tmp_path / "c.jsonl", data))
    assert caught.value.where == "c.jsonl"


PLAIN = b"".join(json.dumps({"text": f"line {n} " + "x" * (n % 50)}).encode() + b"\n" for n in range(5000))


def _zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(PLAIN),
        gzip.compress(PLAIN[: len(PLAIN) // 2]) + gzip.compress(PLAIN[len(PLAIN) // 2 :]),
        _zst(PLAIN),
        _zst(PLAIN[:1000]) + _zst(PLAIN[1000:]),
    ],
    ids=["gzip", "two gzip members", "zstd", "two zstd frames"],
)
def test_compressed_text_is_told_by_its_bytes(tmp_path: Path, packed: bytes) -> None:
    file = put(tmp_path / "c.jsonl", packed)
    reader = BlockReader(file, 10_000)
    assert b"".join(block.data for block in reader) == PLAIN
    assert reader.digest == hashlib.sha256(packed).hexdigest()
    assert len(texts_of(file)) == 5000


@pytest.mark.parametrize("pack", [gzip.compress, _zst], ids=["gzip", "zstd"])
@pytest.mark.parametrize("cut", [1, 5, 400])
def test_a_compressed_file_that_was_cut_is_an_error(tmp_path: Path, pack: Any, cut: int) -> None:
    with pytest.raises(BadRecordError, match="damaged or cut short") as caught:
        texts_of(put(tmp_path / "c.jsonl.gz", pack(PLAIN)[:-cut]))
    assert caught.value.where == "c.jsonl.gz"


def test_damage_inside_a_compressed_file_is_an_error(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(PLAIN))
    packed[len(packed) // 2] ^= 0xFF
    with pytest.raises(BadRecordError):
        texts_of(put(tmp_path / "c.jsonl.gz", bytes(packed)))


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text(alphabet="ab\u00e9", max_size=30), max_size=30),
    block_bytes=st.integers(1, 64),
    ended=st.booleans(),
)
def test_blocks_hold_whole_lines_and_know_their_number(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block_bytes: int, ended: bool
) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")
    file = put(tmp_path_factory.mktemp("b") / "c", data)
    seen = b""
    for block in BlockReader(file, block_bytes):
        assert block.first_line == seen.count(b"\n") + 1
        assert not seen or seen.endswith(b"\n")
        seen += block.data
    assert seen == data


def test_reading_stops_at_the_first_fault_of_a_block() -> None:
    block = read_block(b'{"text": "a"}\n{"text": ""}\noops\n{"text": "b"}\n', "text")
    assert (block.texts, block.records, block.skipped) == (["a"], 2, [("empty", 2)])
    assert block.fault is not None
    assert block.fault[0] == 3


def test_a_file_that_went_away_is_not_found(tmp_path: Path) -> None:
    file = put(tmp_path / "c.jsonl", b"")
    file.path.unlink()
    with pytest.raises(NotFoundError):
        texts_of(file)
