"""Every tensor cut over two ranks: the numbers of one process, and checkpoints that any engine reads."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from protolith.config.availability import check_available
from protolith.config.load import load_config
from protolith.errors import NotAvailableError
from protolith.formats.rundir import RunDir, read_json, read_metrics
from protolith.tensors.stored import optimizer_of, weights_of
from protolith.training.request import Request
from tests.support import ranks, tiny

COMPARED = ("loss/mean", "optim/grad_norm", "optim/lr", "val/loss")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    tiny.write_corpus(folder / "corpus.jsonl", 80)
    tiny.write_model(folder / "model")
    return folder


def train(place, size, name, *, request=None, **changes):
    """Global batches of 4 rows, whatever the number of ranks."""
    settings = {
        "trainer__batch_size": 1,
        "trainer__gradient_accumulation": 4 // size,
        "trainer__max_steps": 9,
        "trainer__checkpoint_every_n_steps": 3,
        "data__eval_split": 0.1,
        "eval__every_n_steps": 4,
        "trainer__strategy": "auto" if size == 1 else "fsdp",
        "output__dir": str(place / name),
        **changes,
    }
    ended = ranks.train(place, size, request=request, **settings)
    assert not any(rank.error for rank in ended), ended
    return RunDir(place / name)


def numbers(run):
    return {
        step: {name: float(line[name]) for name in COMPARED if name in line}
        for step, line in read_metrics(run.metrics).items()
    }


def assert_same(one, other, after=0):
    expected = {step: line for step, line in numbers(one).items() if step > after}
    found = numbers(other)
    assert list(found) == list(expected)
    for step, line in expected.items():
        assert found[step] == pytest.approx(line, abs=1e-5), step
    assert read_json(other.ledger) == read_json(one.ledger)
    for stored in (weights_of, optimizer_of):
        mine, theirs = (stored(run.checkpoints / "step_9") for run in (one, other))
        assert set(mine) == set(theirs)
        for key, value in mine.items():
            assert float((value.double() - theirs[key].double()).abs().max()) < 1e-4, key


KINDS = {
    "tied": {},
    "untied": {"model__overrides": {"tie_word_embeddings": False}},
    "masked": {"data__packing": "best_fit", "data__document_mask": True},
    "recomputed": {"model__activation_checkpointing": "full", "data__packing": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_one_process(place, kind):
    one = train(place, 1, f"one-{kind}", **KINDS[kind])
    two = train(place, 2, f"two-{kind}", **KINDS[kind])
    assert_same(one, two)
    exported = [load_file(run.model / "model.safetensors") for run in (one, two)]
    assert set(exported[0]) == set(exported[1])
    assert ("lm_head.weight" in exported[1]) == (kind == "untied")


def test_it_comes_back_as_one_process_and_as_two_whole_copies(place):
    """Two ranks of pieces, then one process, then two ranks of the whole model, then pieces again."""
    whole = train(place, 1, "unbroken", trainer__max_steps=9)
    first = train(place, 2, "first", trainer__max_steps=9)
    step = {n: str(first.checkpoints / f"step_{n}") for n in (3, 6)}
    assert_same(whole, train(place, 1, "as-one", request=Request(resume=step[3])), after=3)
    copies = train(place, 2, "as-ddp", request=Request(resume=step[6]), trainer__strategy="ddp")
    assert_same(whole, copies, after=6)
    from_one = str(whole.checkpoints / "step_3")
    assert_same(whole, train(place, 2, "as-fsdp", request=Request(resume=from_one)), after=3)


def test_a_step_that_is_not_finite_is_agreed(place):
    ended = ranks.train(
        place,
        2,
        trainer__learning_rate=1e30,
        trainer__max_grad_norm=0.0,
        trainer__max_steps=8,
        trainer__strategy="fsdp",
        output__dir=str(place / "burst"),
    )
    assert {rank.error for rank in ended} <= {"NonFiniteError", "ReportedError"}


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer__optimizer": "muon"},
    ],
)
def test_what_does_not_work_with_it_yet_is_refused(place, changes):
    with pytest.raises(NotAvailableError, match="not available yet"):
        check_available(load_config(tiny.write_recipe(place, trainer__strategy="fsdp", **changes)))
