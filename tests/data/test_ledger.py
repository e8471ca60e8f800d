"""The ledger: every token in one place, and sums that are proved."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data.ledger import Ledger
from protolith.data.packing import RowCounts
from protolith.data.rows import CountKey
from protolith.errors import CheckpointError, RunFailedError

COUNTS = st.builds(
    lambda trained, masked, padded, cut: RowCounts(trained + masked + cut, trained, masked, padded, cut),
    *[st.integers(0, 10**12)] * 4,
)
KEYS = st.builds(CountKey, st.sampled_from(["web", "code"]), st.integers(0, 3))
STEPS = st.lists(st.dictionaries(KEYS, COUNTS, max_size=4), max_size=8)


def filled() -> Ledger:
    ledger = Ledger()
    ledger.add({CountKey("data", 0): RowCounts(read=10, trained=8, masked=1, padded=2, cut=1)})
    ledger.add(
        {CountKey("data", 0): RowCounts(read=5, trained=5), CountKey("data", 1): RowCounts(read=3, trained=3)}
    )
    ledger.set_skipped({"empty": 4, "not a string": 1, "null": 0})
    return ledger


def test_the_file_has_totals_sources_and_epochs_counted_from_one():
    written = filled().to_dict()
    nothing = {"skipped_tokens": 0, "left_out": {}}
    assert written == {
        "version": 1,
        "read": 18,
        "trained": 16,
        "masked": 1,
        "padded": 2,
        "cut": 1,
        "skipped_tokens": 0,
        "repeated": 3,
        "skipped": 5,
        "sources": {
            "data": {
                "read": 18,
                "trained": 16,
                "masked": 1,
                "padded": 2,
                "cut": 1,
                "skipped_tokens": 0,
                "repeated": 3,
                "skipped": {"empty": 4, "not a string": 1},
                "epochs": [
                    {"epoch": 1, "read": 15, "trained": 13, "masked": 1, "padded": 2, "cut": 1, **nothing},
                    {"epoch": 2, "read": 3, "trained": 3, "masked": 0, "padded": 0, "cut": 0, **nothing},
                ],
            }
        },
    }


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, left_out=STEPS, skipped=st.integers(0, 9))
def test_any_ledger_survives_json_and_adds_up(steps, left_out, skipped):
    ledger = Ledger()
    for step in steps:
        ledger.add(step)
    for step in left_out:
        ledger.leave_out(step, "asked")
    ledger.set_skipped({"empty": skipped}, "code")
    again = Ledger.from_dict(json.loads(json.dumps(ledger.to_dict())))
    written = ledger.to_dict()
    assert again.to_dict() == written
    for line in (written, *(e for source in written["sources"].values() for e in source["epochs"])):
        assert line["read"] == line["trained"] + line["masked"] + line["cut"] + line["skipped_tokens"]
    assert written["skipped_tokens"] == sum(c.read for step in left_out for c in step.values())
    trained = sum(counts.trained for step in steps for counts in step.values())
    later = sum(counts.trained for step in steps for key, counts in step.items() if key.epoch > 0)
    again.check(trained)
    assert (again.totals.trained, again.repeated) == (trained, later)
    with pytest.raises(RunFailedError):
        again.check(trained + 1)


def test_a_resumed_ledger_goes_on_and_says_the_skipped_once():
    ledger = Ledger.from_dict(filled().to_dict())
    ledger.set_skipped({"empty": 4, "not a string": 1})
    assert ledger == filled()
    ledger.add({CountKey("data", 1): RowCounts(read=2, trained=2)})
    ledger.check(18)
    assert ledger != filled()


def test_a_new_ledger_and_an_empty_mapping_are_empty():
    assert Ledger.from_dict({}) == Ledger() == Ledger.from_dict(Ledger().to_dict())
    Ledger().check(0)


def test_a_line_that_does_not_add_up_is_named():
    ledger = filled()
    ledger.entries[CountKey("data", 1)] = RowCounts(read=4, trained=3)
    with pytest.raises(RunFailedError, match="4 tokens read, 3 accounted for") as caught:
        ledger.check(16)
    assert caught.value.where == "ledger: data, epoch 2"
    ledger.entries[CountKey("data", 1)] = RowCounts(read=-3, trained=-3)
    with pytest.raises(RunFailedError):
        ledger.check(10)


@pytest.mark.parametrize("damage", ["version", "sources", "sum", "text", "epoch"])
def test_a_damaged_ledger_is_refused(damage):
    data = filled().to_dict()
    if damage == "version":
        data["version"] = 99
    elif damage == "sources":
        data["sources"] = [1]
    elif damage == "sum":
        data["trained"] += 1
    elif damage == "text":
        data["sources"]["data"]["epochs"][0]["read"] = "many"
    else:
        del data["sources"]["data"]["epochs"][0]["epoch"]
    with pytest.raises(CheckpointError):
        Ledger.from_dict(data)
