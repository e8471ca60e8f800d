"""best_fit, document masks and block order in whole runs."""

from __future__ import annotations

import pytest

from protolith.errors import ModelError
from protolith.formats.rundir import read_json
from protolith.training.request import Request
from tests.support import tiny
from tests.support.shards import write_shard


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("masks")
    tiny.write_model(folder / "model")
    tiny.write_corpus(folder / "corpus.jsonl", 120)
    return folder


KINDS = {
    "mask": {"data__document_mask": True},
    "best_fit": {"data__packing": "best_fit"},
    "best_fit_mask": {"data__packing": "best_fit", "data__document_mask": True},
    "blocks": {"data__shuffle": "blocks"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_it_is_the_same_run(place, tmp_path, kind):
    changes = {**KINDS[kind], "trainer__max_steps": 10}
    whole = tiny.train(place, output__dir=str(tmp_path / "whole"), **changes)
    checkpoint = whole.run_dir / "checkpoints" / "step_5"
    again = tiny.train(
        place, output__dir=str(tmp_path / "again"), request=Request(resume=str(checkpoint)), **changes
    )
    expected = {step: loss for step, loss in tiny.losses(whole.run_dir).items() if step > 5}
    assert tiny.losses(again.run_dir) == expected
    assert read_json(again.run_dir / "ledger.json") == read_json(whole.run_dir / "ledger.json")


@pytest.mark.parametrize("kind", ["mask", "best_fit", "best_fit_mask"])
def test_an_epoch_reads_every_token_once(place, tmp_path, kind):
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        **KINDS[kind],
        trainer__max_steps=None,
        trainer__num_epochs=1,
    )
    ledger = read_json(state.run_dir / "ledger.json")
    words = sum(len(tiny.document(i).split()) + 1 for i in range(120))
    assert ledger["read"] == words and ledger["masked"] == 120
    assert ledger["trained"] == words - 120 == state.tokens
    assert ledger["cut"] == ledger["skipped_tokens"] == 0


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_windows_loss_does_not_depend_on_the_document_before(place, tmp_path, attention):
    """A then B in one window, C then B in another; A and C are one token, which has no target (T10)."""
    b = [*range(10, 70), 0]
    found = {}
    for first in (3, 4):
        shards = tmp_path / f"s{first}"
        write_shard(shards / "00000.ds", [[first], b, [first]])
        for mask in (True, False):
            state = tiny.train(
                place,
                output__dir=str(tmp_path / f"run{first}{mask}"),
                data__path=str(shards),
                data__format="tokens",
                data__document_mask=mask,
                data__shuffle=False,
                data__max_seq_length=62,
                model__attention=attention,
                trainer__learning_rate=0.0,
                trainer__batch_size=1,
                trainer__max_steps=1,
            )
            found[first, mask] = tiny.losses(state.run_dir)[1]
    assert found[3, True] == pytest.approx(found[4, True], abs=1e-5)
    assert abs(found[3, False] - found[4, False]) > 1e-5


def test_a_model_that_ignores_the_mask_is_refused_before_the_first_step(place, tmp_path, monkeypatch):
    from protolith.training import engine_setup

    monkeypatch.setattr("protolith.model.document_mask.leak", lambda *_a, **_k: (0.5, 1.0))
    assert engine_setup.prove_documents_apart
    with pytest.raises(ModelError, match="does not keep documents in one row apart"):
        tiny.train(place, output__dir=str(tmp_path / "run"), data__document_mask=True)


def test_masked_and_compiled_it_learns_the_same(place, tmp_path):
    found = [
        tiny.losses(
            tiny.train(
                place,
                output__dir=str(tmp_path / f"run{compiled}"),
                data__document_mask=True,
                model__compile=compiled,
                trainer__max_steps=3,
            ).run_dir
        )
        for compiled in (False, True)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-4)
