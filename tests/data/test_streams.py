"""Streamed text: every line in one chunk, every document once an epoch, and rows that resume anywhere."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.files import DataFile
from protolith.data.identity import diff_identity
from protolith.data.json_lines import BlockReader
from protolith.data.packing import NO_TARGET, RowCounts
from protolith.data.stream_estimate import estimate_rows
from protolith.data.stream_text import ChunkedText
from protolith.data.streams import StreamRows, TextStream
from protolith.data.tokenize_block import BlockTokens, tokenize_block
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.errors import BadRecordError, CorpusTooSmallError, DataError
from tests.data.corpora import text_files, word_level_dir, write_jsonl

EOS = 0


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(word_level_dir(tmp_path_factory.mktemp("words"), 2000))


def texts(lengths: list[int], first: int = 2) -> list[str]:
    """Documents whose words occur once each, so that a token says where it comes from."""
    made, word = [], first
    for length in lengths:
        made.append(" ".join(f"w{word + n}" for n in range(length)))
        word += length
    return made


def stream(path: Path | list[Path], tokenizer: TextTokenizer, **options: Any) -> TextStream:
    paths = path if isinstance(path, list) else [path]
    settings = {"seq_len": 8, "seed": 3, "chunk_bytes": 128, **options}
    return TextStream(text_files(*paths), tokenizer, **settings)


def rows_of(
    source: TextStream, position: dict[str, Any] | None = None, num_epochs: int | None = 1, ahead: int = 0
) -> StreamRows:
    def submit(data: bytes) -> Future[BlockTokens]:
        future: Future[BlockTokens] = Future()
        future.set_result(tokenize_block(data, source.tokenizer, source.options))
        return future

    return StreamRows(
        source,
        submit=submit,
        wait=lambda future: future.result(),
        num_ahead=ahead,
        position=position,
        num_epochs=num_epochs,
    )


def all_rows(rows: StreamRows) -> list[tuple[list[int], list[int]]]:
    return [(row.inputs.tolist(), row.targets.tolist()) for row in iter(rows.next_row, None)]


def targets_of(rows: list[tuple[list[int], list[int]]]) -> Counter[int]:
    return Counter(token for _inputs, targets in rows for token in targets if token != NO_TARGET)


def summed(rows: StreamRows) -> dict[int, RowCounts]:
    total: dict[int, RowCounts] = {}
    for row in iter(rows.next_row, None):
        for epoch, counts in row.counts.items():
            total[epoch] = total.get(epoch, RowCounts()) + counts
    return total


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.text("ab é", max_size=40), max_size=30),
    chunk_bytes=st.integers(1, 60),
    last_end=st.booleans(),
)
def test_every_line_is_in_exactly_one_chunk(lines: list[str], chunk_bytes: int, last_end: bool) -> None:
    content = "\n".join(lines).encode() + (b"\n" if last_end else b"")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(content)
        text = ChunkedText([DataFile(path, "a.jsonl", len(content))], chunk_bytes)
        blocks = [block for chunk in range(text.num_chunks) for block in text.parts(chunk)]
        assert b"".join(block.data for block in blocks) == content
        assert sum(block.size_bytes for block in blocks) == len(content)
        for block in blocks:
            if block.data:
                assert content[block.start_byte :].startswith(block.data)
                number = text.line_number(0, block.start_byte, block.first_line, 1)
                assert number == content[: block.start_byte].count(b"\n") + 1


def test_a_compressed_files_parts_are_its_blocks(tmp_path: Path) -> None:
    content = b"".join(b"line %d\n" % number for number in range(500))
    for name, packed in {"a.gz": gzip.compress(content), "a.zst": zstandard.compress(content)}.items():
        path = tmp_path / name
        path.write_bytes(packed)
        text = ChunkedText([DataFile(path, name, len(packed))], 64)
        blocks = list(text.parts(0))
        assert b"".join(block.data for block in blocks) == content
        assert [block.first_line for block in blocks] == [
            block.first_line for block in BlockReader(text.files[0], 64)
        ]
        again = text.blocks([(0, 7), (0, 3)])
        assert again[0, 7] == blocks[7] and again[0, 3] == blocks[3]
        assert list(text.parts(0, 5)) == blocks[5:]
        with pytest.raises(DataError, match="no block 99999"):
            text.blocks([(0, 99999)])


def test_a_file_that_became_shorter_is_loud(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts([5, 5, 5]))
    text = ChunkedText(text_files(path), 32)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="shorter"):
        list(text.parts(0))


def test_without_shuffle_rows_are_the_windows_over_the_tokens(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    documents = texts([5, 1, 30, 2, 17, 9, 3])
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    line = [token for ids in tokenizer.encode_documents(documents) for token in ids]
    rows = all_rows(rows_of(stream(path, tokenizer, shuffle=False)))
    assert len(rows) == -(-(len(line) - 1) // 8)
    for number, (inputs, targets) in enumerate(rows[:-1]):
        assert inputs == line[number * 8 : number * 8 + 8]
        assert targets == line[number * 8 + 1 : number * 8 + 9]
    rest = line[(len(rows) - 1) * 8 :]
    assert rows[-1][1] == rest[1:] + [NO_TARGET] * (8 - len(rest) + 1)
    assert rows[-1][0] == (rest + [0] * 8)[:8]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kind", ["plain", "gz", "zst", "mixed"])
def test_each_token_is_read_once_an_epoch(
    tokenizer: TextTokenizer, tmp_path: Path, packing: bool, kind: str
) -> None:
    """For any file form and order; and no two epochs are in the same order (T11, T19)."""
    documents = texts([(7 * n) % 23 + 1 for n in range(60)])
    paths = []
    for number, part in enumerate((documents[:13], documents[13:14], documents[14:])):
        path = write_jsonl(tmp_path / f"{number}.jsonl", part)
        if kind == "gz" or (kind == "mixed" and number == 2):
            packed = path.with_suffix(".jsonl.gz")
            packed.write_bytes(gzip.compress(path.read_bytes()))
            path = packed
        elif kind == "zst":
            packed = path.with_suffix(".jsonl.zst")
            packed.write_bytes(zstandard.compress(path.read_bytes()))
            path = packed
        paths.append(path)
    source = stream(paths, tokenizer, packing=packing, seq_len=4 if packing else 64, chunk_bytes=200)
    once = all_rows(rows_of(source))
    twice = all_rows(rows_of(source, num_epochs=2))
    encoded = tokenizer.encode_documents(documents)
    words = {token for ids in encoded for token in ids if token != EOS}
    if packing:
        assert source.num_lanes > 1
        never = words - set(targets_of(once))
        assert len(never) <= source.num_lanes  # the first token of a lane has nothing before it
        assert max(count for token, count in targets_of(once).items() if token != EOS) == 1
        assert sum(targets_of(twice).values()) == 2 * sum(map(len, encoded)) - source.num_lanes
    else:
        assert sorted(row[0] for row in once) == sorted((ids + [0] * 64)[:64] for ids in encoded)
        assert twice[: len(once)] == once
        assert twice[len(once) :] != once
        assert sorted(twice[len(once) :]) == sorted(once)
    counts = summed(rows_of(source, num_epochs=3))
    assert sorted(counts) == [0, 1, 2]
    for total in counts.values():
        assert total.read == sum(map(len, encoded))
        assert total.read == total.trained + total.masked + total.cut


def test_the_order_is_that_of_the_seed(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts([6] * 80))
    one, same, other = (all_rows(rows_of(stream(path, tokenizer, seed=seed))) for seed in (1, 1, 2))
    assert one == same != other
    assert one == all_rows(rows_of(stream(path, tokenizer, seed=1), ahead=6))


SHAPES = [
    {"packing": True, "seq_len": 4},
    {"packing": True, "seq_len": 50},
    {"packing": False, "seq_len": 5},
    {"packing": True, "seq_len": 4, "shuffle": False},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("packed", [False, True])
def test_any_chain_of_interruptions_changes_nothing(
    tokenizer: TextTokenizer, tmp_path: Path, shape: dict[str, Any], packed: bool
) -> None:
    """From each position, through JSON, in the middle of blocks and on epoch borders (T12)."""
    documents = texts([(11 * n) % 29 + 1 for n in range(50)])
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    if packed:
        packed_path = tmp_path / "a.jsonl.gz"
        packed_path.write_bytes(gzip.compress(path.read_bytes()))
        path = packed_path
    source = stream(path, tokenizer, chunk_bytes=150, **shape)
    whole = rows_of(source, num_epochs=3)
    expected, positions = [], [whole.position()]
    for row in iter(whole.next_row, None):
        expected.append((row.inputs.tolist(), row.targets.tolist(), row.counts))
        positions.append(whole.position())
    chain, position = [], None
    while True:
        rows = rows_of(source, position, num_epochs=3, ahead=len(chain) % 3)
        if position is not None:
            assert json.loads(json.dumps(rows.position())) == position
        row = rows.next_row()
        if row is None:
            break
        chain.append((row.inputs.tolist(), row.targets.tolist(), row.counts))
        position = json.loads(json.dumps(rows.position()))
        assert position == json.loads(json.dumps(positions[len(chain)]))
    assert chain == expected
    assert whole.epochs() == 3.0
    shares = [position["epochs"] for position in positions]
    assert shares == sorted(shares)


def test_a_corpus_smaller_than_a_row_fills_rows_over_epochs(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts([3, 4]))
    source = stream(path, tokenizer, seq_len=30)
    counts = summed(rows_of(source, num_epochs=10))
    assert sum(total.read for total in counts.values()) == 90
    assert sum(total.trained for total in counts.values()) == 89
    with pytest.raises(CorpusTooSmallError, match="9 tokens found, 31 needed"):
        estimate_rows(source)


def test_a_text_without_documents_ends_instead_of_turning_for_ever(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n\n  \n")
    with pytest.raises(CorpusTooSmallError, match="no documents"):
        rows_of(stream(path, tokenizer), num_epochs=None).next_row()
    with pytest.raises(CorpusTooSmallError, match="no documents"):
        estimate_rows(stream(path, tokenizer))
    path.write_text("")
    with pytest.raises(CorpusTooSmallError, match="all files are empty"):
        stream(path, tokenizer)


@pytest.mark.parametrize("packed", [False, True])
def test_broken_json_in_the_middle_is_told_with_its_line(
    tokenizer: TextTokenizer, tmp_path: Path, packed: bool
) -> None:
    lines = [json.dumps({"text": text}) for text in texts([4] * 90)]
    lines[70] = '{"text": "w1'
    content = "\n".join(lines).encode()
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(BadRecordError) as caught:
        all_rows(rows_of(stream(path, tokenizer)))
    assert caught.value.where == f"{path.name}:71"


def test_records_without_text_are_counted_once_and_too_many_stop(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    records: list[Any] = list(texts([3] * 400))
    records[250] = {"text": None}
    records[300] = {"text": 5}
    path = write_jsonl(tmp_path / "a.jsonl", records)
    rows = rows_of(stream(path, tokenizer), num_epochs=3)
    all_rows(rows)
    assert rows.tally.skipped == {"null": 1, "not a string but int": 1}
    assert any("skipped 1 of 400 records: null (first at a.jsonl:251)" in note for note in rows.tally.notes())
    records[100:104] = [{"text": ""}] * 4
    write_jsonl(path, records)
    with pytest.raises(BadRecordError) as caught:
        all_rows(rows_of(stream(path, tokenizer)))
    assert "a.jsonl:101" in caught.value.message
    assert "have no text" in caught.value.message


def test_estimates_are_exact_for_small_text_and_near_for_more(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    small = stream(write_jsonl(tmp_path / "a.jsonl", texts([9] * 5)), tokenizer, seq_len=8)
    found = estimate_rows(small)
    assert (found.exact, found.num_targets, found.num_rows) == (True, 49, 7)
    assert len(all_rows(rows_of(small))) == 7
    path = write_jsonl(tmp_path / "b.jsonl", ["w5 " * (n % 40 + 1) for n in range(3000)])
    for packing in (True, False):
        source = stream(path, tokenizer, packing=packing, chunk_bytes=2000)
        found, real = estimate_rows(source), len(all_rows(rows_of(source)))
        assert not found.exact
        assert abs(found.num_rows - real) < 0.15 * real
        assert "estimated from a sample" in found.notes[0]
        assert estimate_rows(source) == found
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    source = stream(packed, tokenizer, chunk_bytes=20_000)
    found, real = estimate_rows(source), len(all_rows(rows_of(source)))
    assert abs(found.num_rows - real) < 0.15 * real


def test_a_very_long_line_is_not_tokenized_for_an_estimate(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    long = "w5 " * 1_500_000
    path = write_jsonl(tmp_path / "a.jsonl", [*texts([50] * 20), long, *texts([50] * 20)])
    found = estimate_rows(stream(path, tokenizer, chunk_bytes=2000))
    assert not found.exact
    assert found.sample_bytes < 20_000
    assert 0.3 < found.num_targets / 1_502_040 < 1.2
    alone = estimate_rows(stream(write_jsonl(tmp_path / "b.jsonl", [long]), tokenizer))
    assert alone.sample_bytes > 4_000_000


def test_identity_sees_every_change_but_not_time_or_place(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """Append, remove, rename and edit are told; touching and moving are not (T17)."""

    def identity(folder: Path) -> list[dict[str, Any]]:
        return stream(folder, tokenizer).identity()

    folder = tmp_path / "one"
    for name in "abc":
        write_jsonl(folder / f"{name}.jsonl", texts([5] * 20, first=ord(name)))
    before = identity(folder)
    (folder / "a.jsonl").touch()
    moved = folder.rename(tmp_path / "two")
    assert diff_identity(before, identity(moved)) == []
    extra = write_jsonl(moved / "d.jsonl", texts([4]))
    assert diff_identity(before, identity(moved))[0].startswith("file added: d.jsonl (")
    extra.unlink()
    (moved / "b.jsonl").rename(moved / "bb.jsonl")
    assert diff_identity(before, identity(moved))[0] == "file renamed: b.jsonl is now bb.jsonl"
    (moved / "bb.jsonl").rename(moved / "b.jsonl")
    content = (moved / "c.jsonl").read_bytes()
    (moved / "c.jsonl").write_bytes(content.replace(b"w100", b"w999"))
    assert "as before, but other ones" in diff_identity(before, identity(moved))[0]
    (moved / "c.jsonl").unlink()
    assert diff_identity(before, identity(moved))[0].startswith("file removed: c.jsonl (")


def test_a_position_of_other_text_begins_its_epoch_anew(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts([6] * 40))
    rows = rows_of(stream(path, tokenizer), num_epochs=None)
    for _ in range(50):
        rows.next_row()
    position = rows.position()
    assert position["epoch"] == 1
    write_jsonl(path, texts([6] * 60))
    again = rows_of(stream(path, tokenizer), position, num_epochs=2)
    assert again.restarted
    fresh = rows_of(stream(path, tokenizer), {"shape": None, "rows": 0, "epoch": 1}, num_epochs=2)
    assert all_rows(again) == all_rows(fresh)
    assert again.num_rows == 50 + fresh.num_rows
