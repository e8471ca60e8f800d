"""Whole runs in little memory, whatever the length of a line."""

from __future__ import annotations

import json
import math
import resource

import pytest

from protolith.formats.rundir import read_json
from tests.support import tiny

LIMIT_BYTES = 2 << 30


def _limit():
    """For the command and every process it starts: all address space, which no allocation escapes."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A corpus with a line of 60 MB and one of 11 MB without a space. Its words are long, so that few tokens
    train in seconds."""
    folder = tmp_path_factory.mktemp("long")
    words = [*tiny.WORDS, *(letter * 10_000 for letter in "abcdefgh")]
    model = tiny.write_model(folder / "model", vocab_size=len(words) + 2)
    tiny.write_tokenizer(model, words)
    few = [tiny.document(number).split(" ", 1)[1] for number in range(60)]
    long = " ".join(words[-8:] * 750)
    with open(folder / "corpus.jsonl", "w") as out:
        for text in (*few, long, *few, "z" * 11_000_000, *few):
            out.write(json.dumps({"text": text}) + "\n")
    tokens = 3 * sum(len(text.split()) + 1 for text in few) + (6000 + 1) + (1 + 1)
    return folder, tokens


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "cached"])
@pytest.mark.parametrize("packing", [True, False], ids=["windows", "documents"])
def test_a_corpus_with_huge_lines_trains_under_two_gigabytes(place, tmp_path, streaming, packing):
    """(T22)"""
    folder, tokens = place
    recipe = tiny.write_recipe(
        tmp_path,
        model__name=str(folder / "model"),
        data__path=str(folder / "corpus.jsonl"),
        data__streaming=streaming,
        data__packing=packing,
        data__num_workers=1,
        trainer__batch_size=16,
        trainer__max_steps=None,
        trainer__num_epochs=1,
    )
    done = tiny.cli(
        "pretrain", recipe, env={"PROTOLITH_HOME": str(tmp_path / "home")}, preexec_fn=_limit, timeout=200
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    losses = tiny.losses(tmp_path / "run")
    assert losses and all(math.isfinite(loss) for loss in losses.values())
    ledger = read_json(tmp_path / "run" / "ledger.json")
    if packing and not streaming:  # what does not fill a last window of 64 stays out
        assert tokens - 64 <= ledger["read"] <= tokens
    else:
        assert ledger["read"] == tokens
