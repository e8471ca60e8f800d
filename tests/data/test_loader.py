"""Steps: the same rows for every split, and nothing left behind by workers."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.document_rows import DocumentRows
from protolith.data.ledger import Ledger
from protolith.data.loader import EvalLoader, StepBatches, StepLoader, share
from protolith.data.packing import RowCounts
from protolith.data.rows import CountKey, RowStream
from protolith.data.window_rows import WindowRows
from protolith.errors import ShardError
from tests.data.shard_fixtures import counting_pool, pool_of, random_documents


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """23 rows of 4, the last with one target; the first input of row r is 4 r."""
    return WindowRows(counting_pool(tmp_path_factory.mktemp("pool"), 90, num_shards=3), 4)


def rows_of(batches: StepBatches) -> list[int]:
    """Which source rows a rank's step holds, in order; fillers have none."""
    return [
        int(inputs[0]) // 4
        for batch in batches.micro_batches
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True)
        if (targets != -100).any()
    ]


def expected_rows(source, seed, start, stop):
    return [int(n) for span in RowStream(source, seed=seed).spans(start, stop) for n in span.numbers]


def row_threads() -> int:
    return sum(thread.name.startswith("rows") for thread in threading.enumerate())


def test_batches_are_contiguous_int64_tensors_with_their_number_of_targets(source):
    with StepLoader(RowStream(source, seed=1), micro_batch_rows=3, accumulation=2, stop_row=6) as loader:
        (step,) = loader
    assert len(step.micro_batches) == 2
    for batch in step.micro_batches:
        assert batch.inputs.shape == batch.targets.shape == (3, 4)
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert batch.inputs.is_contiguous() and batch.targets.is_contiguous()
        assert batch.num_targets == int((batch.targets != -100).sum())
    assert step.num_targets == sum(batch.num_targets for batch in step.micro_batches)
    assert (step.next_row, step.epoch) == (6, 0)


@settings(max_examples=120, deadline=None)
@given(
    world_size=st.integers(1, 4),
    micro_batch_rows=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    num_workers=st.sampled_from([0, 0, 1, 3]),
    start_row=st.integers(0, 60),
    num_rows=st.integers(0, 70),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_any_split_gives_the_same_rows_in_the_same_steps(
    source, world_size, micro_batch_rows, accumulation, num_workers, start_row, num_rows, seed, shuffle
):
    """Ranks partition each step, in any number of workers; every rank has as many micro-batches, also of the
    last, smaller step; the counts of the steps are those of the rows (T18, T20, T21, T25)."""
    stop_row = start_row + num_rows
    global_rows = world_size * micro_batch_rows * accumulation
    by_rank = []
    for rank in range(world_size):
        stream = RowStream(source, seed=seed, shuffle=shuffle)
        with StepLoader(
            stream,
            micro_batch_rows=micro_batch_rows,
            accumulation=accumulation,
            rank=rank,
            world_size=world_size,
            start_row=start_row,
            stop_row=stop_row,
            num_workers=num_workers,
        ) as loader:
            by_rank.append(list(loader))
    num_steps = -(-num_rows // global_rows)
    assert [len(steps) for steps in by_rank] == [num_steps] * world_size
    reference = RowStream(source, seed=seed, shuffle=shuffle)
    for number, ranks in enumerate(zip(*by_rank, strict=True)):
        first = start_row + number * global_rows
        last = min(first + global_rows, stop_row)
        wanted = [int(n) for span in reference.spans(first, last) for n in span.numbers]
        assert [row for step in ranks for row in rows_of(step)] == wanted
        assert {step.next_row for step in ranks} == {last}
        assert {step.epoch for step in ranks} == {first // source.num_rows}
        assert len({len(step.micro_batches) for step in ranks}) == 1
        assert 1 <= len(ranks[0].micro_batches) <= accumulation
        assert all(1 <= len(b.inputs) <= micro_batch_rows for step in ranks for b in step.micro_batches)
        targets = sum(batch.num_targets for step in ranks for batch in step.micro_batches)
        assert {step.num_targets for step in ranks} == {targets}
        assert all(step.counts == reference.counts(first, last) for step in ranks)


@settings(max_examples=40, deadline=None)
@given(
    global_rows=st.sampled_from([4, 8, 12]),
    stop_row=st.integers(1, 80),
    interruptions=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 4]), st.integers(0, 2)), max_size=4
    ),
    seed=st.integers(0, 3),
)
def test_any_chain_of_interruptions_gives_the_steps_of_an_uninterrupted_run(
    source, global_rows, stop_row, interruptions, seed
):
    """Also with another number of ranks or workers after each; what was read ahead leaves no trace (T12)."""

    def run(start, world_size, num_workers, max_steps=None):
        ranks = []
        for rank in range(world_size):
            with StepLoader(
                RowStream(source, seed=seed),
                micro_batch_rows=1,
                accumulation=global_rows // world_size,
                rank=rank,
                world_size=world_size,
                start_row=start,
                stop_row=stop_row,
                num_workers=num_workers,
            ) as loader:
                steps = []
                for step in loader:
                    steps.append(step)
                    if len(steps) == max_steps:
                        break
                ranks.append(steps)
        merged = [[row for step in steps for row in rows_of(step)] for steps in zip(*ranks, strict=True)]
        return merged, (ranks[0][-1].next_row if ranks[0] else start)

    whole, end = run(0, 1, 0)
    assert end == stop_row
    pieces, at = [], 0
    for max_steps, world_size, num_workers in [*interruptions, (None, 1, 2)]:
        more, at = run(at, world_size, num_workers, max_steps)
        pieces += more
    assert pieces == whole
    assert at == stop_row


def test_one_process_of_eight_sees_what_two_of_four_see(source):
    """(T18)"""
    alone = list(StepLoader(RowStream(source, seed=4), micro_batch_rows=8, stop_row=40))
    two = [
        list(StepLoader(RowStream(source, seed=4), micro_batch_rows=4, rank=r, world_size=2, stop_row=40))
        for r in (0, 1)
    ]
    for step, first, second in zip(alone, *two, strict=True):
        assert rows_of(step) == rows_of(first) + rows_of(second)
        assert set(rows_of(first)).isdisjoint(rows_of(second)) or step.epoch != (step.next_row - 1) // 23


def test_the_last_accumulation_group_is_smaller_and_has_the_right_number_of_targets(tmp_path):
    """11 rows, batch 1, accumulation 4, two epochs: 22 / 4 = 6 steps, rows carried over the border (T25)."""
    source = WindowRows(counting_pool(tmp_path, 45), 4)
    assert source.num_rows == 11
    steps = list(StepLoader(RowStream(source, seed=1), micro_batch_rows=1, accumulation=4, stop_row=22))
    assert [len(step.micro_batches) for step in steps] == [4, 4, 4, 4, 4, 2]
    assert [step.num_targets for step in steps] == [16] * 5 + [8]
    assert [step.epoch for step in steps] == [0, 0, 0, 1, 1, 1]
    across = steps[2].counts
    assert {key: counts.trained for key, counts in across.items()} == {
        CountKey("data", 0): 12,
        CountKey("data", 1): 4,
    }


def test_a_rank_without_a_row_of_the_last_step_still_takes_part(source):
    """One row for four ranks: three fillers without a target, counted nowhere (T20)."""
    ranks = [
        list(StepLoader(RowStream(source, seed=1), micro_batch_rows=2, rank=r, world_size=4, stop_row=9))
        for r in range(4)
    ]
    last = [steps[-1] for steps in ranks]
    assert [len(steps) for steps in ranks] == [2] * 4
    assert sum(len(rows_of(step)) for step in last) == 1
    for step in last:
        (batch,) = step.micro_batches
        assert batch.inputs.shape == (1, 4)
        if not rows_of(step):
            assert batch.num_targets == 0
            assert batch.targets.unique().tolist() == [-100]
        assert step.num_targets == sum(other.micro_batches[0].num_targets for other in last)


def test_rows_are_shared_evenly_and_in_order():
    for num_rows in range(20):
        for world_size in range(1, 6):
            shares = [share(num_rows, rank, world_size) for rank in range(world_size)]
            assert [n for first, last in shares for n in range(first, last)] == list(range(num_rows))
            sizes = [last - first for first, last in shares]
            assert max(sizes) - min(sizes) <= 1


def test_the_ledger_of_the_steps_adds_up_to_their_targets(tmp_path):
    source = DocumentRows(pool_of(tmp_path, random_documents(30), random_documents(9, seed=3)), 8)
    ledger, trained, stop_row = Ledger(), 0, 2 * source.num_rows + 7
    for step in StepLoader(RowStream(source, seed=1), micro_batch_rows=5, stop_row=stop_row, num_workers=2):
        ledger.add(step.counts)
        trained += step.num_targets
    ledger.check(trained)
    assert ledger.entries[CountKey("data", 0)] == ledger.entries[CountKey("data", 1)] == source.epoch_counts
    assert ledger.repeated == trained - source.num_targets


def test_an_endless_loader_is_read_only_as_far_as_asked(source):
    counter = Counting(RowStream(source, seed=1))
    with StepLoader(counter, micro_batch_rows=2, num_workers=2) as loader:
        steps = list(itertools.islice(loader, 101))
    assert steps[-1].next_row == 202
    assert counter.reads <= 101 + 2 * 2
    assert row_threads() == 0


@dataclass
class Counting:
    """A stream that counts its reads and may fail at one row."""

    stream: RowStream
    fail_at: int = 10**9
    reads: int = 0
    seq_len: int = 4

    def read(self, start, stop):
        self.reads += 1
        if start <= self.fail_at < stop:
            raise ShardError("a bad place", where="7.ds")
        return self.stream.read(start, stop)

    def counts(self, start, stop):
        return self.stream.counts(start, stop)

    def epoch_of(self, row):
        return self.stream.epoch_of(row)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_error_of_a_worker_comes_where_its_step_would_and_keeps_its_type(source, num_workers):
    got = []
    with pytest.raises(ShardError) as caught:
        with StepLoader(
            Counting(RowStream(source, seed=1), fail_at=11), micro_batch_rows=2, num_workers=num_workers
        ) as loader:
            for step in loader:
                got.append(step.next_row)
    assert got == [2, 4, 6, 8, 10]
    assert caught.value.where == "7.ds"
    assert row_threads() == 0


@pytest.mark.parametrize("how", ["break", "error", "close", "delete", "exhaust", "unused"])
def test_threads_end_however_the_iteration_does(source, how):
    loader = StepLoader(RowStream(source, seed=1), micro_batch_rows=1, stop_row=50, num_workers=3)
    if how == "unused":
        iter(loader)
        loader.close()
    elif how == "error":
        with pytest.raises(ZeroDivisionError), loader:
            for _step in loader:
                raise ZeroDivisionError
    elif how == "exhaust":
        assert len(list(loader)) == 50
    elif how == "delete":
        steps = iter(loader)
        next(steps)
        del steps, loader
    else:
        with loader:
            for _step in loader:
                if how == "break":
                    break
                loader.close()
                loader.close()
    assert row_threads() == 0


def test_each_iteration_begins_at_the_start_row(source):
    loader = StepLoader(
        RowStream(source, seed=1), micro_batch_rows=4, start_row=8, stop_row=30, num_workers=2
    )
    next(iter(loader))
    assert [rows_of(step) for step in loader] == [rows_of(step) for step in loader]
    assert next(iter(loader)).next_row == 12
    loader.close()
    assert row_threads() == 0


def test_impossible_splits_are_refused(source):
    stream = RowStream(source, seed=1)
    for wrong in (
        {"micro_batch_rows": 0},
        {"micro_batch_rows": 1, "accumulation": 0},
        {"micro_batch_rows": 1, "rank": 2, "world_size": 2},
        {"micro_batch_rows": 1, "start_row": -1},
        {"micro_batch_rows": 1, "num_workers": -1},
    ):
        with pytest.raises(ValueError):
            StepLoader(stream, **wrong)


def test_evaluation_reads_the_whole_set_in_the_same_order_each_time(source):
    """(T27)"""
    loader = EvalLoader(source, batch_rows=5)
    first, second = list(loader), list(loader)
    assert len(loader) == len(first) == 5
    assert torch.cat([batch.inputs for batch in first])[:, 0].tolist() == [4 * n for n in range(23)]
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(first, second, strict=True))
    assert sum(batch.num_targets for batch in first) == source.num_targets
    assert loader.num_rows == 23


def test_evaluation_can_stop_after_some_batches(source):
    loader = EvalLoader(source, batch_rows=5, max_batches=2)
    assert [len(batch.inputs) for batch in loader] == [5, 5]
    assert loader.num_rows == 10
    assert len(EvalLoader(source, batch_rows=5, max_batches=99)) == 5


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_share_evaluation_and_see_as_many_batches(source, world_size):
    """Also more ranks than rows in the last round (T20, T21)."""
    ranks = [list(EvalLoader(source, batch_rows=3, rank=r, world_size=world_size)) for r in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [
        int(inputs[0])
        for batches in ranks
        for batch in batches
        for inputs, targets in zip(batch.inputs, batch.targets, strict=True)
        if (targets != -100).any()
    ]
    assert sorted(seen) == [4 * n for n in range(23)]
    assert sum(batch.num_targets for batches in ranks for batch in batches) == source.num_targets


def test_a_tiny_held_out_set_gives_every_rank_a_batch(tmp_path):
    source = DocumentRows(pool_of(tmp_path, [[5, 6, 2]]), 4)
    ranks = [list(EvalLoader(source, batch_rows=2, rank=r, world_size=4)) for r in range(4)]
    assert [len(batches) for batches in ranks] == [1, 1, 1, 1]
    assert sum(batches[0].num_targets for batches in ranks) == 2


def test_counts_of_a_step_are_row_counts(source):
    (step,) = StepLoader(RowStream(source, seed=1, shuffle=False), micro_batch_rows=2, stop_row=2)
    assert step.counts == {CountKey("data", 0): RowCounts(read=9, trained=8, masked=1)}
