"""Pieces of files: every line belongs to one piece, and messages find their way back to file and line."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import random
from pathlib import Path

import pytest

from protolith.data.tokenize_inputs import SourceFile, find_inputs
from protolith.data.tokenize_plan import Piece, make_plan
from protolith.data.tokenize_reader import LineRange, Place, place_name, read_piece
from protolith.errors import BadRecordError, DataError
from tests.data.corpora import document, write_jsonl


def lines_of(data: bytes, start: int, stop: int, chunk: int) -> tuple[bytes, int]:
    piece = LineRange(io.BytesIO(data), start, stop)
    first, out = piece.first, b""
    while got := piece.read(chunk):
        out += got
    return out, first


@pytest.mark.parametrize("seed", range(40))
def test_ranges_share_out_the_lines_of_a_file(seed: int) -> None:
    chance = random.Random(seed)
    lines = [b"x" * chance.choice((0, 1, 3, 40, 700)) for _ in range(chance.randint(0, 30))]
    data = b"\n".join(lines) + b"\n" * chance.randint(0, 2)
    cuts = sorted(chance.choices(range(len(data) + 1), k=chance.randint(0, 6)))
    marks = [0, *cuts, len(data)]
    chunk = chance.choice((1, 2, 7, 64, 4096))
    joined = b""
    for start, stop in itertools.pairwise(marks):
        got, first = lines_of(data, start, stop, chunk)
        joined += got
        if got:  # it starts where a line starts, inside the range
            assert start <= first < stop
            assert first == 0 or data[first - 1 : first] == b"\n"
    assert joined == data


def source(path: Path) -> SourceFile:
    (file,), _notes = find_inputs([str(path)])
    return file


def texts_of(file: SourceFile, pieces: list[Piece], field: str = "text") -> list[str]:
    return [
        text for piece in pieces for batch in read_piece(file, piece, field) for text in batch.found.texts
    ]


def test_pieces_of_a_jsonl_file_are_its_documents_in_order(tmp_path: Path) -> None:
    texts = [document(n) for n in range(200)]
    file = source(write_jsonl(tmp_path / "c.jsonl", texts))
    for count in (1, 2, 7, 50):
        marks = [file.size_bytes * at // count for at in range(count + 1)]
        pieces = [Piece(0, start, stop, stop - start) for start, stop in itertools.pairwise(marks)]
        assert texts_of(file, pieces) == texts


def test_a_place_in_a_piece_is_the_line_of_the_file(tmp_path: Path) -> None:
    file = source(write_jsonl(tmp_path / "c.jsonl", [document(n) for n in range(50)]))
    data = Path(file.location).read_bytes()
    start = len(data) // 2
    line = data[:start].count(b"\n") + 2  # the line after the one that `start` is in
    assert place_name(Place(0, start, 1), (file,)) == f"c.jsonl:{line}"
    assert place_name(Place(0, start, 4), (file,)) == f"c.jsonl:{line + 3}"
    assert place_name(Place(0, 0, 4), (file,)) == "c.jsonl:4"


def test_plain_text_is_one_document_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfTwo\nlines\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress("Grün".encode()))
    (tmp_path / "c.txt").write_text(" \n")
    files, _notes = find_inputs([str(tmp_path)])
    (task,) = make_plan(files, {}, "text").tasks
    batches = [batch for piece in task for batch in read_piece(files[piece.file], piece, "text")]
    assert [batch.found.texts for batch in batches] == [["Two\nlines\n"], ["Grün"], []]
    assert batches[2].found.skipped == [("blank", 1)]


def test_plain_text_that_is_no_utf8_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    file = source(tmp_path / "a.txt")
    with pytest.raises(BadRecordError, match="byte 4") as caught:
        texts_of(file, [Piece(0, 0, 4, 4)])
    assert caught.value.where == "a.txt"


def test_a_file_that_changed_is_told(tmp_path: Path) -> None:
    file = source(write_jsonl(tmp_path / "c.jsonl", ["one"]))
    write_jsonl(tmp_path / "c.jsonl", ["one", "two"])
    with pytest.raises(DataError, match="changed"):
        texts_of(file, [Piece(0, 0, file.size_bytes, file.size_bytes)])


def test_parquet_columns_are_read_by_row_group(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    texts = [document(n) for n in range(1000)]
    pq.write_table(
        pa.table({"content": [*texts[:999], None], "n": list(range(1000))}),
        tmp_path / "t.parquet",
        row_group_size=100,
    )
    file = source(tmp_path / "t.parquet")
    plan = make_plan([file], {}, "text")
    assert plan.tasks == ((Piece(0, 0, 10, file.size_bytes),),)
    assert texts_of(file, [Piece(0, 0, 3, 1), Piece(0, 3, 10, 1)]) == texts[:999]
    last = list(read_piece(file, Piece(0, 9, 10, 1), "text"))[-1]
    ((reason, line),) = last.found.skipped
    assert reason == "null"
    shown = place_name(Place(0, 0, last.first.line + line - 1), (file,))
    assert shown == "t.parquet:row 1000"
    with pytest.raises(DataError, match="no column 'txet'"):
        texts_of(file, [Piece(0, 0, 1, 1)], "txet")
    with pytest.raises(DataError, match="holds int64"):
        texts_of(file, [Piece(0, 0, 1, 1)], "n")
    (tmp_path / "t.parquet").write_bytes(Path(file.location).read_bytes()[:-3] + b"xxx")
    with pytest.raises(BadRecordError, match="Parquet"):
        make_plan([source(tmp_path / "t.parquet")], {}, "text")


def test_files_behind_a_url_are_read_like_local_ones(tmp_path: Path) -> None:
    texts = [document(n) for n in range(100)]
    write_jsonl(tmp_path / "data/b.jsonl", texts[50:])
    path = write_jsonl(tmp_path / "data/a.jsonl", texts[:50])
    packed = tmp_path / "data/c.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps({"text": "last"}).encode()))
    (tmp_path / "data/notes.md").write_text("no input")
    (tmp_path / "data/.hidden.jsonl").write_text("no input")
    path.with_suffix(".empty.jsonl").touch()
    for url in (f"file://{tmp_path}/data", f"file://{tmp_path}/data/*.jsonl*"):
        files, notes = find_inputs([url])
        assert [file.name for file in files] == ["a.jsonl", "b.jsonl", "c.jsonl.gz"]
        assert notes[-1] == "skipped 1 empty files: a.empty.jsonl"
        assert all(file.is_remote and file.stamp for file in files)
        pieces = [piece for task in make_plan(files, {}, "text").tasks for piece in task]
        read = [text for piece in pieces for text in texts_of(files[piece.file], [piece])]
        assert read == [*texts, "last"]
    (one,), _notes = find_inputs([f"file://{path}"])
    half = one.size_bytes // 2
    assert texts_of(one, [Piece(0, 0, half, half), Piece(0, half, one.size_bytes, half)]) == texts[:50]


def test_a_file_named_twice_is_read_once_and_said(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["one"])
    files, notes = find_inputs([str(path), str(tmp_path)])
    assert [file.name for file in files] == ["a.jsonl"]
    assert "read once" in notes[0]
    files, notes = find_inputs([f"file://{path}", f"file://{path}"])
    assert len(files) == 1
    assert "read once" in notes[0]
