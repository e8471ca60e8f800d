"""Streams through any chain of interruptions, with other numbers of workers and ranks each time."""

from __future__ import annotations

import gzip
import json
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from protolith.data import json_lines
from protolith.data.stream_loader import StreamLoader
from protolith.data.streams import TextStream
from protolith.data.tokenizer import load_tokenizer
from tests.data.corpora import bpe_dir, document, text_files, write_jsonl

GLOBAL_ROWS = 8


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(bpe_dir(tmp_path_factory.mktemp("bpe")))


def write_form(folder, form, name, numbers):
    """Documents of these numbers in one file."""
    plain = write_jsonl(folder / f"{name}.jsonl", [document(number) for number in numbers])
    if form == "gzip":
        (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    if form == "parquet":
        table = pa.table({"text": [document(number) for number in numbers]})
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=17)
    if form != "plain":
        plain.unlink()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of all three forms, some of them small."""
    folder = tmp_path_factory.mktemp("text")
    for number, form in enumerate(("plain", "gzip", "parquet", "gzip", "plain")):
        write_form(folder, form, f"f{number}", range(number * 30, number * 30 + (30 if number else 3)))
    return folder


def stream(folder, tokenizer, **options):
    return TextStream(
        text_files(folder), tokenizer, **{"seq_len": 32, "seed": 5, "chunk_bytes": 4096, **options}
    )


def rows_of(step):
    return [
        (inputs, targets)
        for batch in step.micro_batches
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)
    ]


def is_real(row):
    return any(target >= 0 for target in row[1])


def steps_of(source, world_size, num_workers, position=None, num_epochs=2, limit=None):
    """(rows of all ranks in order, position) of each step; only the last rank has processes of its own."""
    found = []
    loaders = [
        StreamLoader(
            source,
            micro_batch_rows=GLOBAL_ROWS // world_size,
            rank=rank,
            world_size=world_size,
            position=position,
            num_epochs=num_epochs,
            num_workers=num_workers if rank == world_size - 1 else 0,
        )
        for rank in range(world_size)
    ]
    try:
        for number, steps in enumerate(zip(*loaders, strict=True)):
            if limit is not None and number >= limit:
                break
            assert all(step.position == steps[0].position for step in steps)
            rows = [row for step in steps for row in rows_of(step)]
            found.append(([row for row in rows if is_real(row)], json.loads(json.dumps(steps[0].position))))
    finally:
        for loader in loaders:
            loader.close()
    return found


SEGMENT = st.tuples(st.integers(0, 20), st.sampled_from([1, 2, 4]), st.sampled_from([0, 0, 0, 1, 3]))


@pytest.mark.parametrize("packing", [True, False], ids=["windows", "documents"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chain=st.lists(SEGMENT, min_size=1, max_size=5), shuffle=st.booleans())
@example(chain=[(3, 1, 0), (5, 4, 1), (1, 2, 3), (9, 1, 1)], shuffle=True)
def test_any_chain_with_any_ranks_and_workers_gives_the_same_rows(folder, tokenizer, packing, chain, shuffle):
    """One sequence of rows, whoever asks for it and however often it is broken off (T12, T18, T19)."""
    source = stream(folder, tokenizer, packing=packing, shuffle=shuffle)
    whole = steps_of(source, 1, 0)
    assert len(whole) > 20
    got, position = [], None
    for limit, world_size, num_workers in [*chain, (None, 1, 0)]:
        part = steps_of(
            stream(folder, tokenizer, packing=packing, shuffle=shuffle),
            world_size,
            num_workers,
            position=position,
            limit=limit,
        )
        got += part
        position = part[-1][1] if part else position
    assert [rows for rows, _position in got] == [rows for rows, _position in whole]
    assert got[-1][1] == whole[-1][1]


@pytest.mark.parametrize("form", ["plain", "gzip", "parquet"])
def test_fewer_files_and_documents_than_ranks_and_workers(tmp_path, tokenizer, form):
    """One file of five documents, four ranks of two workers each: every rank has work, and every document is
    trained on once (T19, T21)."""
    write_form(tmp_path, form, "only", range(5))
    source = stream(tmp_path, tokenizer, packing=False, seq_len=256)
    alone = steps_of(source, 1, 0, num_epochs=1)
    with_ranks = steps_of(source, 4, 2, num_epochs=1)
    assert [rows for rows, _ in with_ranks] == [rows for rows, _ in alone]
    assert sum(len(rows) for rows, _ in alone) == 5
    packed = stream(tmp_path, tokenizer, seq_len=16)
    ranks = []
    for rank in range(4):
        with StreamLoader(
            packed, micro_batch_rows=2, rank=rank, world_size=4, num_epochs=1, num_workers=2
        ) as loader:
            ranks.append([rows_of(step) for step in loader])
    assert len({len(steps) for steps in ranks}) == 1
    assert all(is_real(row) for steps in ranks for row in steps[0])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_going_on_in_compressed_files_reads_no_more_than_one_again(
    tmp_path, tokenizer, monkeypatch, num_workers
):
    """Before the place: the prefix of the file that is open, and no byte of those that are done."""
    for number in range(8):
        write_form(tmp_path, "gzip", f"f{number}", range(number * 100, number * 100 + 100))
    options = {"max_lanes": 2, "chunk_bytes": 1024}
    source = stream(tmp_path, tokenizer, **options)
    assert source.num_lanes == 2
    whole = steps_of(source, 1, 0, num_epochs=1)
    read = []
    real = json_lines.open_file

    @contextmanager
    def watched(file, **more):
        with real(file, **more) as handle:
            read.append(file.name)
            yield handle

    monkeypatch.setattr(json_lines, "open_file", watched)
    order = source.chunk_order(0)
    names = [source.text.files[order.at(place)].name for place in range(8)]
    for at in range(len(whole) // 2, len(whole) - 20, 7):
        read.clear()
        position = whole[at][1]
        rest = steps_of(source, 1, num_workers, position=position, num_epochs=1, limit=1)
        assert rest[0][0] == whole[at + 1][0]
        place = position["next"][0]
        assert place >= 2
        held = {names.index(source.text.files[lane["block"][1]].name) for lane in position["lanes"]}
        assert {names.index(name) for name in read if names.index(name) < place} <= held & {place - 1}
