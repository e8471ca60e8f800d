"""Parquet as text: the same records as the JSON lines they could have been, from any row group on."""

from __future__ import annotations

import builtins
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protolith.data.cache import tokenize_corpus
from protolith.data.files import DataFile, find_files
from protolith.data.parquet_text import read_layout, read_parts
from protolith.data.stream_estimate import estimate_rows
from protolith.data.stream_loader import StreamLoader
from protolith.data.stream_text import ChunkedText
from protolith.data.streams import TextStream
from protolith.data.text import TEXT_SUFFIXES, Tally
from protolith.data.text_blocks import blocks_of, read_texts
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.errors import BadRecordError, DataError, MissingExtraError, ShardError
from tests.data.corpora import bpe_dir, document, text_files, write_jsonl


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(bpe_dir(tmp_path_factory.mktemp("bpe")))


def write_parquet(
    path: Path, texts: list[Any], column: str = "text", kind: Any = None, **options: Any
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"id": list(range(len(texts))), column: pa.array(texts, type=kind or pa.string())})
    pq.write_table(table, path, **{"row_group_size": 50, **options})
    return path


def the_file(path: Path) -> DataFile:
    return DataFile(path, path.name, path.stat().st_size)


def documents(count: int = 200) -> list[str]:
    return [document(number) for number in range(count)]


KINDS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
def test_it_reads_as_the_same_lines_of_json(tmp_path: Path, kind: Any, compression: str) -> None:
    """Whatever is no document is counted by the same names, at its row."""
    texts = [*documents(300), None, "", "   ", 'é "quoted" \n\t\\ \u2028 \x00', *documents(20)]
    plain = pa.array(texts, type=pa.string())
    values = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain.cast(kind)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": values}), path, row_group_size=50, compression=compression)
    as_json = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    ours, theirs = Tally(), Tally()
    got = list(read_texts([the_file(path)], tally=ours))
    assert got == list(read_texts([the_file(as_json)], tally=theirs))
    assert ours.skipped == theirs.skipped == {"null": 1, "empty": 1, "blank": 1}
    assert ours.first["empty"] == "a.parquet:302"
    assert theirs.first["empty"] == "a.jsonl:302"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.none() | st.text("ab é\n", max_size=30), max_size=60),
    group_rows=st.integers(1, 40),
    block_bytes=st.integers(1, 200),
)
def test_every_row_is_in_one_part_whose_name_says_which(
    tmp_path: Path, texts: list[str | None], group_rows: int, block_bytes: int
) -> None:
    file = the_file(write_parquet(tmp_path / "a.parquet", texts, row_group_size=group_rows))
    layout = read_layout(file, "text")
    assert layout.num_rows == len(texts)
    seen: list[Any] = []
    for group in range(layout.num_groups):
        parts = list(read_parts(file, layout, "text", group, block_bytes=block_bytes))
        assert [part.part for part in parts] == list(range(len(parts)))
        for part in parts:
            values = [json.loads(line)["text"] for line in part.lines.decode().split("\n")[:-1]]
            assert (part.begin, part.end) == (len(seen), len(seen) + len(values))
            # Closed by the row that fills it, never before or after.
            sizes = [len((value or "").encode()) + 1 for value in values]
            assert sum(sizes[:-1]) < block_bytes
            assert sum(sizes) >= block_bytes or part is parts[-1]
            seen += values
        for at in range(len(parts)):
            assert list(read_parts(file, layout, "text", group, at, block_bytes=block_bytes)) == parts[at:]
    assert seen == texts
    text = ChunkedText([file], block_bytes)
    blocks = [block for chunk in range(text.num_chunks) for block in text.parts(chunk)]
    assert sum(block.size_bytes for block in blocks) == (file.size_bytes if texts else 0)


def test_a_part_does_not_depend_on_what_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = the_file(write_parquet(tmp_path / "a.parquet", documents(400), row_group_size=200))
    layout = read_layout(file, "text")
    want = list(read_parts(file, layout, "text", 1, block_bytes=3000))
    for rows in (1, 7, 10_000):
        monkeypatch.setattr("protolith.data.parquet_text._MOST_BATCH_ROWS", rows)
        assert list(read_parts(file, layout, "text", 1, block_bytes=3000)) == want


def test_content_stands_in_where_there_is_no_text(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(5), column="content")
    assert list(read_texts([the_file(path)])) == documents(5)
    path = write_parquet(tmp_path / "b.parquet", documents(5), column="body")
    assert list(read_texts([the_file(path)], "body")) == documents(5)


def test_a_column_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(5), column="body")
    with pytest.raises(BadRecordError, match="no column 'text'") as caught:
        list(read_texts([the_file(path)]))
    assert "id, body" in caught.value.hint and caught.value.where == "a.parquet"


def test_a_column_of_something_else_is_told(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(5))
    with pytest.raises(BadRecordError, match="holds int64, not strings"):
        list(read_texts([the_file(path)], "id"))
    path = write_parquet(tmp_path / "b.parquet", [b"a", b"b"], kind=pa.binary())
    with pytest.raises(BadRecordError, match="holds binary, not strings"):
        ChunkedText([the_file(path)])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.99])
def test_a_file_that_was_cut_is_an_error(tmp_path: Path, share: float) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(400))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(BadRecordError, match="damaged or cut short") as caught:
        list(read_texts([the_file(path)]))
    assert caught.value.where == "a.parquet"


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    """Where pages have checksums even a single letter."""
    path = write_parquet(
        tmp_path / "a.parquet",
        documents(400),
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = path.read_bytes()
    assert data.count(b"doc0123") == 1
    data = data.replace(b"doc0123", b"doc0124")
    path.write_bytes(data)
    with pytest.raises(BadRecordError, match="damaged or cut short"):
        list(read_texts([the_file(path)]))


def test_bytes_that_are_no_utf8_are_told_with_their_row(tmp_path: Path) -> None:
    values = [b"good"] * 7 + [b"bad \xff byte"] + [b"good"] * 4
    array = pa.Array.from_buffers(pa.string(), len(values), pa.array(values, type=pa.binary()).buffers())
    pq.write_table(pa.table({"text": array}), tmp_path / "a.parquet", row_group_size=5)
    with pytest.raises(BadRecordError, match="not UTF-8") as caught:
        list(read_texts([the_file(tmp_path / "a.parquet")]))
    assert caught.value.where == "a.parquet:8"


def test_a_file_replaced_under_a_stream_is_loud(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(200))
    text = ChunkedText([the_file(path)])
    write_parquet(path, documents(220))
    with pytest.raises(DataError, match="changed while it was read"):
        list(text.parts(0))


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(5))
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(f"No module named {name!r}")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError) as caught:
        list(read_texts([the_file(path)]))
    assert caught.value.hint == "pip install 'protolith[parquet]'"


def test_a_folder_of_it_is_text_and_no_shards(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "d" / "a.parquet", documents(5))
    assert [file.path for file in text_files(path.parent)] == [path]
    with pytest.raises((DataError, ShardError)) as caught:
        find_files([str(path.parent)], suffixes=(".ds",), what="token shards")
    assert "data.format: text" in caught.value.hint
    assert ".parquet" in TEXT_SUFFIXES


def test_it_is_told_by_its_bytes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.jsonl", documents(5))
    assert list(read_texts([the_file(path)])) == documents(5)
    write_jsonl(tmp_path / "b.parquet", documents(5))
    assert list(read_texts([the_file(tmp_path / "b.parquet")])) == documents(5)


def test_the_token_cache_is_that_of_the_same_lines(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    files = {
        "parquet": write_parquet(tmp_path / "a.parquet", documents(300)),
        "jsonl": write_jsonl(tmp_path / "a.jsonl", documents(300)),
    }
    made = {
        form: tokenize_corpus(
            text_files(path), tokenizer, cache_root=tmp_path / "cache", num_workers=0, eval_split=0.1
        )
        for form, path in files.items()
    }
    for side in ("train_dir", "eval_dir"):
        one, other = ((getattr(made[form], side) / "00000.ds").read_bytes() for form in files)
        assert one == other
    again = tokenize_corpus(
        text_files(files["parquet"]), tokenizer, cache_root=tmp_path / "cache", eval_split=0.1
    )
    assert again.reused
    write_parquet(files["parquet"], [*documents(299), "another one"])
    assert not tokenize_corpus(
        text_files(files["parquet"]), tokenizer, cache_root=tmp_path / "cache", eval_split=0.1
    ).reused


def test_a_file_that_changes_while_it_is_tokenized_is_an_error(
    tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(100))
    real = blocks_of

    def changing(*arguments: Any) -> Any:
        reader = real(*arguments)
        with open(path, "ab") as out:
            out.write(b" ")
        write_parquet(path, documents(101))
        return reader

    monkeypatch.setattr("protolith.data.cache.blocks_of", changing)
    with pytest.raises(DataError, match="changed while it was read"):
        tokenize_corpus(text_files(path), tokenizer, cache_root=tmp_path / "cache", num_workers=0)


def _stream(path: Path, tokenizer: TextTokenizer, **options: Any) -> TextStream:
    return TextStream(
        text_files(path), tokenizer, **{"seq_len": 32, "seed": 5, "chunk_bytes": 4096, **options}
    )


def _rows(stream: TextStream, **options: Any) -> list[list[int]]:
    with StreamLoader(stream, **{"micro_batch_rows": 2, "num_epochs": 1, **options}) as loader:
        return [row for step in loader for batch in step.micro_batches for row in batch.inputs.tolist()]


@pytest.mark.parametrize("group_rows", [40, 1000])
def test_streamed_in_order_it_trains_as_the_same_lines(
    tokenizer: TextTokenizer, tmp_path: Path, group_rows: int
) -> None:
    parquet = write_parquet(tmp_path / "a.parquet", documents(), row_group_size=group_rows)
    jsonl = write_jsonl(tmp_path / "a.jsonl", documents())
    assert _rows(_stream(parquet, tokenizer, shuffle=False)) == _rows(
        _stream(jsonl, tokenizer, shuffle=False)
    )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("group_rows", [30, 1000])
def test_it_goes_on_from_any_step(
    tokenizer: TextTokenizer, tmp_path: Path, group_rows: int, num_workers: int
) -> None:
    path = write_parquet(tmp_path / "a.parquet", documents(), row_group_size=group_rows)
    stream = _stream(path, tokenizer)
    assert stream.num_lanes > 1
    with StreamLoader(stream, micro_batch_rows=4, num_epochs=2) as loader:
        steps = list(loader)
    whole = [row for step in steps for row in step.micro_batches[0].inputs.tolist()]
    assert steps[-1].position["epochs"] == 2.0
    for at in (0, len(steps) // 3, len(steps) // 2, len(steps) - 2):
        position = json.loads(json.dumps(steps[at].position))
        rest = _rows(
            _stream(path, tokenizer),
            micro_batch_rows=4,
            num_epochs=2,
            position=position,
            num_workers=num_workers,
        )
        assert rest == whole[4 * (at + 1) :]


def test_going_on_reads_the_row_groups_that_are_open_and_no_other(
    tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_parquet(
        tmp_path / "a.parquet", documents(1000), row_group_size=50, use_dictionary=False, compression="none"
    )
    stream = _stream(path, tokenizer, max_lanes=2)
    with StreamLoader(stream, micro_batch_rows=4, num_epochs=1) as loader:
        steps = list(loader)
    read: list[int] = []

    def watched(file: DataFile, layout: Any, text_field: str, group: int, *rest: Any, **options: Any) -> Any:
        read.append(group)
        return read_parts(file, layout, text_field, group, *rest, **options)

    monkeypatch.setattr("protolith.data.stream_text.read_parts", watched)
    position = steps[len(steps) * 3 // 4].position
    with StreamLoader(_stream(path, tokenizer, max_lanes=2), micro_batch_rows=4, position=position) as loader:
        next(iter(loader))
    order = stream.chunk_order(0)
    at = position["next"][0]
    assert at > 10
    assert set(read) <= {order.at(place) for place in range(at - 2, at + 3)}


def test_estimates_follow_the_rows(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """Exact for a small file; near for a large one, also where footers mislead (repeated values)."""
    small = _stream(write_parquet(tmp_path / "s.parquet", documents(60)), tokenizer, chunk_bytes=1 << 18)
    estimate = estimate_rows(small)
    assert estimate.exact and abs(estimate.num_rows - len(_rows(small))) <= small.num_lanes
    texts = documents(100) * 20
    for number, group_rows in enumerate((100, 5000)):
        path = write_parquet(tmp_path / f"l{number}.parquet", texts, row_group_size=group_rows)
        large = _stream(path, tokenizer, chunk_bytes=1 << 14)
        estimate = estimate_rows(large)
        rows = len(_rows(large))
        assert not estimate.exact and abs(estimate.num_rows - rows) < 0.1 * rows


def test_mixed_forms_make_one_text(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_jsonl(folder / "a.jsonl", documents(50))
    write_parquet(folder / "b.parquet", documents(50))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress((folder / "a.jsonl").read_bytes()))
    write_parquet(folder / "d.parquet", [])
    stream = _stream(folder, tokenizer, shuffle=False)
    expected = np.concatenate([np.array(ids) for ids in tokenizer.encode_documents(documents(50) * 3)])
    got = np.array(_rows(stream)).reshape(-1)
    assert got[: len(expected) - 1].tolist() == expected[:-1].tolist()


def test_a_large_row_group_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """300 MB in one row group, and a row of 60 MB: a block and a batch are held, not the group (T22)."""
    import subprocess
    import sys

    path = tmp_path / "a.parquet"
    line = " ".join(documents(100))
    rows = [f"{number} {line}" for number in range(6000)]
    rows[3000] = line * (60_000_000 // len(line))
    write_parquet(path, rows, row_group_size=1 << 20, use_dictionary=False)
    assert pq.ParquetFile(path).num_row_groups == 1
    code = (
        "import resource, sys; from pathlib import Path; from protolith.data.files import DataFile;"
        "from protolith.data.stream_text import ChunkedText; import pyarrow.parquet, pyarrow.compute;"
        "kb = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; before = kb();"
        "p = Path(sys.argv[1]); text = ChunkedText([DataFile(p, p.name, p.stat().st_size)]);"
        "print(sum(len(b.data) for b in text.parts(0)), kb() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    size, more_kb = map(int, done.stdout.split())
    assert size > 300_000_000
    assert more_kb < 330_000  # the long row as Arrow's, as text, as JSON and joined
