"""Mixtures: shares as asked, positions kept, everything a function of the row number."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.document_rows import DocumentRows
from protolith.data.mixture import Dealer, MixedRows, Stage, continued, row_shares
from protolith.data.rows import RowStream
from protolith.data.window_rows import WindowRows
from tests.data.shard_fixtures import pool_of, random_documents

SHARES = st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any)


@settings(max_examples=100, deadline=None)
@given(shares=SHARES, n=st.integers(0, 400))
def test_dealing_one_by_one_and_counting_agree_and_stay_close_to_the_shares(shares, n):
    dealer = Dealer(shares)
    heaps = [dealer.heap_of(i) for i in range(n)]
    assert dealer.counts(n) == [heaps.count(heap) for heap in range(len(shares))]
    for heap, share in enumerate(shares):
        assert abs(heaps.count(heap) - n * share / sum(shares)) <= 4
        assert share or heap not in heaps


def constant_source(folder, token, num_tokens=64 * 40 + 1):
    return WindowRows(pool_of(folder, [[token] * num_tokens]), 64)


def mixture(tmp_path, weights, stages=(), tokens=(5, 6), **options):
    sources = {f"s{token}": constant_source(tmp_path / f"s{token}", token, **options) for token in tokens}
    streams = [
        RowStream(source, seed=3, name=name, purpose=f"rows of {name}") for name, source in sources.items()
    ]
    per_row = dict.fromkeys(sources, 64.0)
    plan = [
        Stage(first, row_shares(dict(zip(sources, w, strict=True)), per_row))
        for first, w in ((0, weights), *stages)
    ]
    return MixedRows(streams, plan)


@pytest.mark.parametrize("weights", [(0.999, 0.001), (1, 0), (3, 1), (1, 1), (0.5, 0.25)])
def test_realised_shares_are_as_asked_over_a_thousand_rows(tmp_path, weights):
    """(T23)"""
    rows = mixture(tmp_path, weights).read(0, 1000)
    assert set(np.unique(rows.inputs)) <= {5, 6}
    share = np.mean(rows.inputs[:, 0] == 5)
    assert abs(share - weights[0] / sum(weights)) < 0.01
    if weights[1] == 0:
        assert share == 1.0


def test_shares_are_of_tokens_where_rows_hold_different_numbers_of_them(tmp_path):
    short = DocumentRows(pool_of(tmp_path / "short", [[5] * 9 + [2]] * 50), 64)
    long = DocumentRows(pool_of(tmp_path / "long", [[6] * 59 + [2]] * 50), 64)
    sources = {"short": short, "long": long}
    streams = [RowStream(source, seed=1, name=name) for name, source in sources.items()]
    per_row = {name: source.num_targets / source.num_rows for name, source in sources.items()}
    mixed = MixedRows(streams, [Stage(0, row_shares({"short": 1, "long": 1}, per_row))])
    trained = {"short": 0, "long": 0}
    for key, counts in mixed.counts(0, 1000).items():
        trained[key.source] += counts.trained
    assert abs(trained["short"] / sum(trained.values()) - 0.5) < 0.01


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_cut_of_the_sequence_gives_the_same_rows_counts_and_origins(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("mixture")
    streams = []
    for number in range(data.draw(st.integers(1, 4))):
        pool = pool_of(folder / str(number), random_documents(8, seed=number, longest=12))
        kind = data.draw(st.sampled_from([WindowRows, DocumentRows]))
        streams.append(RowStream(kind(pool, 5), seed=2, name=f"s{number}", purpose=f"rows s{number}"))
    shares = st.lists(st.integers(0, 7), min_size=len(streams), max_size=len(streams)).filter(any)
    names = [stream.name for stream in streams]
    stages = [Stage(0, dict(zip(names, data.draw(shares), strict=True)))]
    for first in sorted(data.draw(st.sets(st.integers(1, 50), max_size=2))):
        stages.append(Stage(first, dict(zip(names, data.draw(shares), strict=True))))
    mixed = MixedRows(streams, stages)
    whole = mixed.read(0, 60)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, 59), max_size=5))), 60]
    parts = [mixed.read(a, b) for a, b in pairwise(cuts)]
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), whole.inputs)
    total: dict = {}
    for a, b in pairwise(cuts):
        for key, counts in mixed.counts(a, b).items():
            total[key] = total[key] + counts if key in total else counts
    assert total == mixed.counts(0, 60)
    origins = mixed.origins(0, 60)
    assert [origin.row for origin in origins] == list(range(60))
    taken = dict.fromkeys(names, 0)
    for origin, inputs in zip(origins, whole.inputs, strict=True):
        stream = streams[names.index(origin.source)]
        epoch, place = divmod(taken[origin.source], stream.source.num_rows)
        assert epoch == origin.epoch
        (expected,) = stream.origins(taken[origin.source], taken[origin.source] + 1)
        assert origin.number == expected.number, place
        assert np.array_equal(stream.source.row(origin.number).inputs, inputs)
        taken[origin.source] += 1
    assert taken == mixed.counts_of(60)


def test_a_stage_keeps_each_sources_position(tmp_path):
    """Each source's rows come in its own order, one after another, across stages."""
    mixed = mixture(tmp_path, (3, 1), stages=[(100, (1, 3)), (200, (0, 1))])
    before, after = mixed.counts_of(100), mixed.counts_of(200)
    assert before == {"s5": 75, "s6": 25}
    assert after == {"s5": 100, "s6": 100}
    assert mixed.counts_of(300) == {"s5": 100, "s6": 200}
    numbers = [origin.number for origin in mixed.origins(0, 300) if origin.source == "s6"]
    stream = mixed.streams[1]
    assert numbers == [origin.number for origin in stream.origins(0, 200)]


def test_changed_weights_go_on_from_where_each_source_stands(tmp_path):
    old = mixture(tmp_path / "a", (3, 1))
    planned = mixture(tmp_path / "b", (1, 1)).stages
    stages = continued(planned, old.record(), 100)
    assert [stage.first_row for stage in stages] == [0, 100]
    mixed = MixedRows(old.streams, stages)
    assert mixed.counts_of(100) == {"s5": 75, "s6": 25}
    assert mixed.counts_of(300) == {"s5": 175, "s6": 125}
    assert continued(old.stages, old.record(), 100) == old.stages
    again = continued(planned, mixed.record(), 250)
    assert [stage.first_row for stage in again] == [0, 100]


def test_sources_repeat_on_their_own(tmp_path):
    mixed = mixture(tmp_path, (1, 1), num_tokens=64 * 7 + 1)
    epochs = {(key.source, key.epoch) for key in mixed.counts(0, 30)}
    assert epochs == {("s5", 0), ("s5", 1), ("s5", 2), ("s6", 0), ("s6", 1), ("s6", 2)}


def test_bad_shares_and_stages_are_refused(tmp_path):
    with pytest.raises(ValueError):
        Dealer([0, 0])
    with pytest.raises(ValueError):
        MixedRows(mixture(tmp_path, (1, 1)).streams, [Stage(5, {"s5": 1})])
