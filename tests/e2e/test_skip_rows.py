"""Bad rows: named when a step goes wrong, left out when asked, and every token accounted for."""

from __future__ import annotations

import json
import math
import re

import pytest

from protolith.distributed.single import SingleEngine
from protolith.errors import NonFiniteError, UsageError
from protolith.formats.rundir import read_json
from protolith.training.request import Request
from tests.support import tiny


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("skip")
    tiny.write_model(folder / "model")
    tiny.write_corpus(folder / "corpus.jsonl", 100)
    return folder


@pytest.fixture
def poisoned(monkeypatch):
    """The loss of any batch that holds the word doc0042 is not a number."""
    bad = len(tiny.WORDS) + 2 + 42
    original = SingleEngine.forward_backward

    def forward_backward(self, inputs, *rest, **options):
        value = original(self, inputs, *rest, **options)
        return math.nan if bool((inputs == bad).any()) else value

    monkeypatch.setattr(SingleEngine, "forward_backward", forward_backward)


STREAMED = {"data__streaming": True}


@pytest.mark.parametrize(
    "changes", [{}, {"data__packing": False}, STREAMED], ids=["windows", "documents", "stream"]
)
def test_the_bad_rows_are_named_and_can_be_left_out(place, tmp_path, poisoned, changes):
    changes = {
        "trainer__max_steps": None,
        "trainer__num_epochs": 1,
        "output__dir": str(tmp_path / "run"),
        **changes,
    }
    with pytest.raises(NonFiniteError) as caught:
        tiny.train(place, **changes)
    rows = re.search(r"--skip-rows (\d+):(\d+)", caught.value.hint)
    assert rows is not None
    first, last = int(rows[1]), int(rows[2])
    assert last - first == 2 and f"row {first}: " in caught.value.message
    (line,) = (tmp_path / "run" / "monitors" / "suspects.jsonl").read_text().splitlines()
    suspects = json.loads(line)
    assert [row["row"] for row in suspects["rows"]] == [first, first + 1]
    documents = [part for row in suspects["rows"] for part in row["documents"]]
    if changes.get("data__streaming"):
        assert {part["shard"] for part in documents} == {"corpus.jsonl"}
    else:
        assert any("doc0042" in part["begins"] for part in documents)
        assert 42 in [part["document"] for part in documents]
    with pytest.raises(NonFiniteError):
        tiny.train(place, request=Request(resume="latest"), **changes)
    state = tiny.train(place, request=Request(resume="latest", skip_rows=((first, last),)), **changes)
    assert state.stopped_by == "epochs"
    ledger = read_json(state.run_dir / "ledger.json")
    assert ledger["trained"] == state.tokens
    assert ledger["skipped_tokens"] > 0
    assert set(ledger["sources"]["data"]["epochs"][0]["left_out"]) == {"--skip-rows"}
    assert ledger["read"] == ledger["trained"] + ledger["masked"] + ledger["cut"] + ledger["skipped_tokens"]
    words = sum(len(tiny.document(i).split()) + 1 for i in range(100))
    assert ledger["read"] == words


def test_rows_keep_their_numbers_and_a_resume_keeps_the_record(place, tmp_path):
    plain = tiny.losses(
        tiny.train(place, output__dir=str(tmp_path / "a"), trainer__learning_rate=0.0).run_dir
    )
    changes = {"output__dir": str(tmp_path / "b"), "trainer__learning_rate": 0.0}
    skip = Request(skip_rows=((4, 8),))
    state = tiny.train(place, request=skip, **changes)
    found = tiny.losses(state.run_dir)
    assert len(found) == len(plain) == 12
    assert [found[1], found[2]] == [plain[1], plain[2]]
    assert [found[step] for step in range(3, 11)] == [plain[step] for step in range(5, 13)]
    checkpoint = str(state.run_dir / "checkpoints" / "step_5")
    again = tiny.train(
        place, request=Request(resume=checkpoint), **{**changes, "output__dir": str(tmp_path / "c")}
    )
    assert tiny.losses(again.run_dir) == {step: loss for step, loss in found.items() if step > 5}
    assert read_json(again.run_dir / "ledger.json") == read_json(state.run_dir / "ledger.json")


def test_rows_that_were_trained_already_cannot_be_left_out(place, tmp_path):
    tiny.train(place, output__dir=str(tmp_path / "run"), trainer__max_steps=6)
    with pytest.raises(UsageError, match="lie before row 12"):
        tiny.train(
            place,
            output__dir=str(tmp_path / "run"),
            request=Request(resume="latest", accept_changes=("schedule",), skip_rows=((2, 4),)),
        )


def test_a_skipped_update_is_no_trained_token(place, tmp_path, poisoned):
    state = tiny.train(
        place,
        output__dir=str(tmp_path / "run"),
        trainer__on_nonfinite="skip",
        trainer__max_steps=None,
        trainer__num_epochs=2,
    )
    ledger = read_json(state.run_dir / "ledger.json")
    assert ledger["trained"] == state.tokens
    left_out = [line["left_out"] for line in ledger["sources"]["data"]["epochs"]]
    assert all(set(reasons) == {"step not finite"} for reasons in left_out)
    words = sum(len(tiny.document(i).split()) + 1 for i in range(100))
    assert ledger["read"] == 2 * words


def test_the_command_takes_ranges_and_refuses_what_is_none(place, tmp_path):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), trainer__max_steps=3)
    refused = tiny.cli("pretrain", recipe, "--skip-rows", "8:4")
    assert refused.returncode == 2 and "--skip-rows takes A:B" in refused.stderr
    done = tiny.cli("pretrain", recipe, "--skip-rows", "2:4", "--skip-rows", "4:6")
    assert done.returncode == 0, done.stderr
    assert "rows 2:6 are left out (4 rows), as recorded" in done.stdout
