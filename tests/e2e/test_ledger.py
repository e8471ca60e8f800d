"""The ledger adds up to the step counter, whatever a run is made of."""

from __future__ import annotations

import random

import pytest

from protolith.formats.rundir import read_json
from protolith.training.request import Request
from tests.support import tiny

DOCUMENTS = 50
WORDS = [len(tiny.document(i, 1, 120).split()) + 1 for i in range(DOCUMENTS)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ledger")
    tiny.write_model(folder / "model")
    tiny.write_corpus(folder / "corpus.jsonl", DOCUMENTS, low=1, high=120)
    with open(folder / "corpus.jsonl", "a") as corpus:
        corpus.write('{"text": "kaa ' + "kab " * 900 + '"}\n')
    tiny.write_corpus(folder / "other.jsonl", 20, first=200)
    return folder


def drawn(seed: int, place):
    """A random configuration, and the rows that are left out."""
    draw = random.Random(seed)
    changes = {
        "data__packing": draw.choice([True, False, "best_fit"]),
        "data__shuffle": draw.choice([True, False, "blocks"]),
        "data__num_workers": draw.choice([0, 2]),
        "data__seed": seed,
        "trainer__batch_size": draw.choice([1, 2, 3]),
        "trainer__gradient_accumulation": draw.choice([1, 2]),
        "trainer__checkpoint_every_n_steps": draw.choice([3, 7]),
        "data__max_seq_length": draw.choice([32, 64, 100]),
    }
    if changes["data__packing"] is not False and draw.random() < 0.5:
        changes["data__document_mask"] = True
    if draw.random() < 0.3:
        changes |= {"data__streaming": True}
    if draw.random() < 0.5:
        sources = [
            {"path": str(place / name), "weight": draw.randint(1, 5)}
            for name in ("corpus.jsonl", "other.jsonl")
        ]
        changes |= {"data__path": None, "data__sources": sources}
    if draw.random() < 0.5:
        changes |= {"trainer__max_steps": draw.choice([9, 14])}
    else:
        changes |= {"trainer__max_steps": None, "trainer__num_epochs": draw.choice([1, 2])}
    first = draw.randrange(20)
    return changes, ((first, first + draw.randint(1, 9)),) if draw.random() < 0.5 else ()


def check(state):
    ledger = read_json(state.run_dir / "ledger.json")
    names = ("read", "trained", "masked", "cut", "padded", "skipped_tokens")
    lines = [line for source in ledger["sources"].values() for line in source["epochs"]]
    for line in [ledger, *ledger["sources"].values(), *lines]:
        assert line["read"] == line["trained"] + line["masked"] + line["cut"] + line["skipped_tokens"]
    for line in lines:
        assert sum(line["left_out"].values()) == line["skipped_tokens"]
    for name in names:
        assert ledger[name] == sum(line[name] for line in lines)
    assert ledger["repeated"] == sum(line["trained"] for line in lines if line["epoch"] > 1)
    assert ledger["trained"] == state.tokens == state.metrics["progress/num_tokens"]
    return ledger


@pytest.mark.parametrize("seed", range(12))
def test_over_random_configurations(place, tmp_path, seed):
    changes, skip = drawn(seed, place)
    state = tiny.train(place, output__dir=str(tmp_path / "run"), request=Request(skip_rows=skip), **changes)
    ledger = check(state)
    if changes.get("trainer__num_epochs") and "data__sources" not in changes:
        once = sum(WORDS) + 902
        assert ledger["read"] == once * changes["trainer__num_epochs"]
    folder = state.run_dir / "checkpoints"
    step = min(int(path.name.removeprefix("step_")) for path in folder.iterdir() if path.is_dir())
    again = tiny.train(
        place,
        output__dir=str(tmp_path / "again"),
        request=Request(resume=str(folder / f"step_{step}")),
        **changes,
    )
    assert check(again) == ledger
    assert tiny.losses(again.run_dir) == {
        s: loss for s, loss in tiny.losses(state.run_dir).items() if s > step
    }
