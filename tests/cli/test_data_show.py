"""``protolith data show``: a row as it is trained on."""

from __future__ import annotations

import json

import pytest

from tests.support import tiny
from tests.support.shards import write_shard


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("show")
    tiny.write_model(folder / "model")
    tiny.write_corpus(folder / "corpus.jsonl", 60)
    word = {word: 2 + at for at, word in enumerate(tiny.WORDS)}
    texts = (["kaa", "kab"], ["loa", "lob", "loc"], ["mia"] * 9)
    write_shard(folder / "shards" / "00000.ds", [[*(word[w] for w in text), 0] for text in texts])
    return folder


def shown(*arguments):
    done = tiny.cli("data", "show", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_row_of_shards_with_its_documents(place):
    text = shown(
        place / "shards", "--row", 0, "--seq-len", 8, "--tokenizer", place / "model", "--document-mask"
    )
    assert "row 0 (row 0 of data, epoch 1; an epoch has 2 rows)" in text
    assert "8 slots: 8 tokens, 0 empty; 6 targets" in text
    assert "--- document 0 of 00000.ds, its tokens 0 to 2, from slot 0 on ---\nkaa kab <|endoftext|>" in text
    assert (
        "--- document 1 of 00000.ds, its tokens 0 to 3, from slot 3 on ---\nloa lob loc <|endoftext|>" in text
    )
    assert "[no target at slot 2]" in text and "[no target at slot 6]" in text
    assert "documents do not see each other" in text


def test_as_json(place):
    text = shown(place / "shards", "--row", 0, "--seq-len", 8, "--packing", "best_fit", "-o", "json")
    row = json.loads(text)
    assert [part["document"] for part in row["documents"]] == [0, 1]
    assert row["targets"][2] is None and row["positions"] is None and row["num_rows"] == 3
    assert row["documents"][0]["text"] is None


@pytest.mark.parametrize("streaming", [False, True])
def test_a_row_of_a_run_is_the_one_that_is_trained_on(place, tmp_path, streaming):
    recipe = tiny.write_recipe(place, output__dir=str(tmp_path / "run"), data__streaming=streaming)
    done = tiny.cli("data", "show", recipe, "--row", 3, "-o", "json")
    if streaming:
        assert done.returncode == 2 and "cannot be read by number" in done.stderr + done.stdout
        return
    row = json.loads(done.stdout)
    assert row["row"] == 3 and row["number"] != 3 and row["source"] == "data"
    assert row["documents"][0]["text"].split()[0] in {*tiny.WORDS, *(f"doc{i:04d}" for i in range(60))}
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_shown_is_refused(place):
    done = tiny.cli("data", "show", place / "shards", "--row", 99, "--seq-len", 8)
    assert done.returncode == 2 and "there are 2 rows" in done.stderr
    assert tiny.cli("data", "show", place / "shards", "--row", 0, "--packing", "maybe").returncode == 2
    assert tiny.cli("data", "show", place / "nowhere", "--row", 0).returncode == 3
