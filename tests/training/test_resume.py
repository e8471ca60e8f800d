"""Which checkpoint a resume means, before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from protolith.errors import NotFoundError, UsageError
from protolith.formats import checkpoint_files
from protolith.training.request import Request
from protolith.training.resume import parse_consent
from tests.support import tiny


def add_checkpoints(run: Path, *steps: int) -> None:
    for step in steps:
        aside = checkpoint_files.begin(run / "checkpoints", step)
        (aside / "weights").write_text("w")
        checkpoint_files.commit(aside, step)


@pytest.mark.parametrize("where", ["elsewhere/step_9", "run/checkpoints/step_9", "run/chekpoints/step_5"])
def test_a_folder_that_does_not_exist_is_told_with_those_that_do(tmp_path, where):
    """And the run is left as it was: no attempt, no lock, nothing claimed."""
    add_checkpoints(tmp_path / "run", 5, 10)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NotFoundError) as caught:
        tiny.train(tmp_path, request=Request(resume=str(tmp_path / where)))
    assert caught.value.exit_code == 3
    assert caught.value.message == f"no such checkpoint: {tmp_path / where}"
    assert f"there are: step_5, step_10 in {tmp_path / 'run' / 'checkpoints'}" in caught.value.hint
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "recipe.yaml", *before]


def test_without_any_checkpoint_it_says_that_there_are_none(tmp_path):
    with pytest.raises(NotFoundError, match="no such checkpoint: latst") as caught:
        tiny.train(tmp_path, request=Request(resume="latst"))
    assert "there are none" in caught.value.hint


def test_a_folder_among_others_is_known_by_its_neighbours(tmp_path):
    add_checkpoints(tmp_path / "other", *range(1, 14))
    with pytest.raises(NotFoundError) as caught:
        tiny.train(tmp_path, request=Request(resume=str(tmp_path / "other/checkpoints/step_99")))
    assert "there are: 3 more and step_4, " in caught.value.hint


def test_an_area_that_is_misspelt_is_told_with_the_nearest():
    assert parse_consent(["data", "optimizer"]) == {"data", "optimizer"}
    with pytest.raises(UsageError, match="unknown area to accept: optimiser") as caught:
        parse_consent(["optimiser", "data"])
    assert caught.value.hint.startswith("did you mean optimizer? areas are data, tokenizer")
    with pytest.raises(UsageError) as caught:
        parse_consent(["everything"])
    assert caught.value.hint.startswith("areas are")
