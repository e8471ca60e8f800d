"""Streamed rows of whole documents, and of documents that do not see each other."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.data import stream_best_fit
from protolith.data.packing import NO_TARGET
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from tests.data.corpora import word_level_dir, write_jsonl
from tests.data.test_streams import EOS, rows_of, stream, summed, texts

KINDS = {
    "mask": {"document_mask": True},
    "best_fit": {"packing": "best_fit"},
    "best_fit_mask": {"packing": "best_fit", "document_mask": True},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return load_tokenizer(word_level_dir(tmp_path_factory.mktemp("words"), 2000))


def facts(row):
    return row.inputs.tolist(), row.targets.tolist(), np.array(row.positions).tolist(), row.counts


def starts_of(row) -> list[int]:
    return np.flatnonzero(row.positions == 0).tolist()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 99),
    kind=st.sampled_from(sorted(KINDS)),
    epochs=st.integers(1, 2),
    shuffle=st.booleans(),
    together=st.sampled_from([1, 4, 64]),
)
def test_every_word_is_a_target_once_an_epoch_and_no_row_crosses_a_border(
    tmp_path_factory, tokenizer, seed, kind, epochs, shuffle, together
):
    draw = random.Random(seed)
    documents = texts([draw.choice([1, 2, 5, 9, 30]) for _ in range(draw.randrange(2, 40))])
    path = write_jsonl(tmp_path_factory.mktemp("text") / "a.jsonl", documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_best_fit, "_ROWS_TOGETHER", together)
        source = stream(path, tokenizer, shuffle=shuffle, **KINDS[kind])
        rows = list(iter(rows_of(source, num_epochs=epochs).next_row, None))
        total = summed(rows_of(source, num_epochs=epochs))
    ids = {word: tokenizer.encode_documents([word])[0][0] for text in documents for word in text.split()}
    expected = Counter({ids[word]: epochs for text in documents for word in text.split()[1:]})
    expected[EOS] = epochs * len(documents)
    assert Counter(int(t) for row in rows for t in row.targets if t != NO_TARGET) == +expected
    follows = {
        ids[a]: ids[b] for text in documents for a, b in zip(text.split(), text.split()[1:], strict=False)
    }
    firsts = {ids[text.split()[0]] for text in documents}
    for row in rows:
        for inputs, target in zip(row.inputs, row.targets, strict=True):
            if target != NO_TARGET:
                assert target == follows.get(int(inputs), EOS) and inputs != EOS
        if row.positions is not None:
            begins = starts_of(row)
            assert begins[0] == 0
            for slot, (word, position) in enumerate(zip(row.inputs, row.positions, strict=True)):
                if int(word) in firsts:
                    assert position == 0, slot
    assert set(total) == set(range(epochs))
    for counts in total.values():
        assert counts.read == counts.trained + counts.masked
        assert counts.read == sum(len(text.split()) + 1 for text in documents)
        assert counts.masked == len(documents)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), kind=st.sampled_from(sorted(KINDS)), together=st.sampled_from([1, 4, 64]))
def test_resumed_after_any_row_the_rest_is_the_same(tmp_path_factory, tokenizer, seed, kind, together):
    draw = random.Random(seed)
    documents = texts([draw.choice([1, 2, 5, 9, 30]) for _ in range(30)])
    path = write_jsonl(tmp_path_factory.mktemp("text") / "a.jsonl", documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_best_fit, "_ROWS_TOGETHER", together)
        source = stream(path, tokenizer, **KINDS[kind])
        rows = rows_of(source, num_epochs=2)
        states, given_rows = [rows.position()], []
        while (row := rows.next_row()) is not None:
            given_rows.append(
                (row.inputs.tolist(), row.targets.tolist(), np.array(row.positions).tolist(), row.counts)
            )
            states.append(rows.position())
        for at in draw.sample(range(len(states)), min(8, len(states))):
            again = rows_of(source, states[at], num_epochs=2, ahead=draw.choice([0, 3]))
            assert again.position() == states[at]
            rest = [facts(row) for row in iter(again.next_row, None)]
            assert rest == given_rows[at:]


def test_few_slots_stay_empty(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    draw = random.Random(1)
    documents = [
        " ".join(f"w{draw.randrange(2, 900)}" for _ in range(draw.randrange(1, 90))) for _ in range(4000)
    ]
    path = write_jsonl(tmp_path / "a.jsonl", documents)
    source = stream(path, tokenizer, packing="best_fit", seq_len=128, chunk_bytes=1 << 14)
    rows = list(iter(rows_of(source).next_row, None))
    padded = sum(counts.padded for row in rows for counts in row.counts.values())
    assert padded / (len(rows) * 128) < 0.02
