"""What is said of the data before the first step."""

from __future__ import annotations

import pytest

from protolith.config.load import load_config
from protolith.training.planning import plan_run
from tests.support import tiny


@pytest.mark.parametrize(
    ("seq_len", "packing", "warned"), [(64, False, True), (256, False, False), (64, True, False)]
)
def test_much_that_is_cut_is_a_warning(tmp_path, seq_len, packing, warned):
    """Of documents of 6 to 202 tokens rows of 64 cut a good part, longer rows and packing nothing."""
    tiny.write_corpus(tmp_path / "corpus.jsonl", 60)
    tiny.write_model(tmp_path / "model")
    recipe = tiny.write_recipe(tmp_path, data__max_seq_length=seq_len, data__packing=packing)
    report = plan_run(load_config(recipe))
    lengths = [len(tiny.document(number).split()) + 1 for number in range(60)]
    cut = sum(max(0, length - seq_len - 1) for length in lengths) / sum(lengths)
    said = [text for text in report.warnings if "never trained on" in text]
    assert bool(said) == warned
    if warned:
        assert said[0].startswith(f"{100 * cut:.1f} % of the tokens are never trained on")
        assert cut > 0.01


def test_a_little_that_is_cut_is_a_note(tmp_path):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 200, low=5, high=50)
    (tmp_path / "corpus.jsonl").open("a").write('{"text": "' + " ".join(["kaa"] * 70) + '"}\n')
    tiny.write_model(tmp_path / "model")
    report = plan_run(load_config(tiny.write_recipe(tmp_path, data__packing=False)))
    assert not any("never trained on" in text for text in report.warnings)
    assert any("are cut and never trained on" in text for text in report.notes)
