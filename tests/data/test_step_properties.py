"""What holds for steps of any rows: each row once an epoch, and the same global batches for any ranks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.best_fit_rows import BestFitRows
from protolith.data.document_rows import DocumentRows
from protolith.data.loader import StepLoader
from protolith.data.mixture import MixedRows, Stage
from protolith.data.row_ranges import merged
from protolith.data.rows import RowStream, add_counts
from protolith.data.window_rows import WindowRows
from tests.data.shard_fixtures import pool_of, random_documents

SEQ_LEN = 6


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    pools = [
        pool_of(folder / str(n), random_documents(9 + n, seed=n, longest=14), random_documents(5, seed=9 + n))
        for n in range(3)
    ]
    return [
        make
        for pool in pools
        for make in (
            WindowRows(pool, SEQ_LEN),
            WindowRows(pool, SEQ_LEN, document_mask=True),
            DocumentRows(pool, SEQ_LEN),
            BestFitRows(pool, SEQ_LEN),
            BestFitRows(pool, SEQ_LEN, document_mask=True),
        )
    ]


def steps(sequence, *, world_size, rows_a_step, micro, **options):
    """The global batches of all ranks together, and what is said of them."""
    assert rows_a_step % (world_size * micro) == 0
    loaders = [
        StepLoader(
            sequence,
            micro_batch_rows=micro,
            accumulation=rows_a_step // (world_size * micro),
            rank=rank,
            world_size=world_size,
            **options,
        )
        for rank in range(world_size)
    ]
    found = []
    for parts in zip(*loaders, strict=True):
        assert len({(part.next_row, part.num_targets, part.last) for part in parts}) == 1
        assert len({len(part.micro_batches) for part in parts}) == 1
        batches = [batch for part in parts for batch in part.micro_batches]
        real = [
            batch for batch in batches if batch.num_targets or len(batch.inputs) > 1 or batch.inputs.any()
        ]
        assert sum(batch.num_targets for batch in batches) == parts[0].num_targets
        inputs = np.concatenate([batch.inputs.numpy() for batch in real])
        found.append((inputs, parts[0]))
    return found


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_ranks_workers_and_interruption_give_the_same_steps(sources, data):
    shuffle = data.draw(st.sampled_from([True, False, "blocks"]))
    picked = data.draw(st.lists(st.sampled_from(range(len(sources))), min_size=1, max_size=3, unique=True))
    masked = {n % 5 in (1, 4) for n in picked}
    if len(masked) > 1:  # one run has one setting
        picked = picked[:1]
    streams = [
        RowStream(sources[n], seed=5, shuffle=shuffle, name=f"s{n}", purpose=f"rows {n}") for n in picked
    ]
    sequence = streams[0]
    if len(streams) > 1:
        shares = {stream.name: data.draw(st.integers(1, 5)) for stream in streams}
        sequence = MixedRows(streams, [Stage(0, shares), Stage(17, dict.fromkeys(shares, 1))])
    options = {
        "stop_row": data.draw(st.integers(1, 60)),
        "left_out": merged(
            data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(41, 44)), max_size=1))
        ),
    }
    expected = steps(sequence, world_size=1, rows_a_step=8, micro=8, num_workers=0, **options)
    start = 0
    cut = data.draw(st.integers(0, len(expected)))
    for world_size, micro in data.draw(st.permutations([(1, 2), (2, 1), (2, 4), (4, 1), (4, 2)])):
        workers = data.draw(st.sampled_from([0, 1, 3]))
        found = steps(
            sequence,
            world_size=world_size,
            rows_a_step=8,
            micro=micro,
            num_workers=workers,
            start_row=start,
            **options,
        )
        rest = expected[len(expected) - len(found) :]
        assert len(found) == len([step for step in expected if step[1].next_row > start])
        for (inputs, step), (right, truth) in zip(found, rest, strict=True):
            assert np.array_equal(inputs, right)
            assert (step.next_row, step.counts, step.left_out) == (
                truth.next_row,
                truth.counts,
                truth.left_out,
            )
        if cut:
            start = expected[cut - 1][1].next_row
    if expected:
        assert [step.last for _inputs, step in expected] == [False] * (len(expected) - 1) + [True]


@settings(max_examples=40, deadline=None)
@given(
    number=st.integers(0, 14),
    epochs=st.integers(1, 3),
    rows_a_step=st.sampled_from([1, 2, 4, 8]),
    shuffle=st.sampled_from([True, False, "blocks"]),
)
def test_every_row_comes_once_an_epoch(sources, number, epochs, rows_a_step, shuffle):
    source = sources[number]
    stream = RowStream(source, seed=11, shuffle=shuffle)
    total = epochs * source.num_rows
    loader = StepLoader(stream, micro_batch_rows=rows_a_step, stop_row=total)
    origins = [origin for step in loader for origin in step.origins()]
    seen = Counter((origin.epoch, origin.number) for origin in origins)
    assert seen == Counter({(e, n): 1 for e in range(epochs) for n in range(source.num_rows)})
    counts = add_counts(
        step.counts for step in StepLoader(stream, micro_batch_rows=rows_a_step, stop_row=total)
    )
    assert all(part == source.epoch_counts for part in counts.values()) and len(counts) == epochs
