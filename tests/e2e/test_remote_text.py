"""Whole runs on text behind URLs and on Parquet: the losses are those of the same text on this machine."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protolith.data import storage
from protolith.training.request import Request
from tests.support import tiny

FORMS = ("jsonl", "jsonl.gz", "parquet")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, and one corpus in three forms, in a folder each; held-out text beside them."""
    folder = tmp_path_factory.mktemp("remote")
    tiny.write_model(folder / "model")
    plain = tiny.write_corpus(folder / "jsonl" / "train" / "c.jsonl")
    held = tiny.write_corpus(folder / "jsonl" / "held" / "h.jsonl", 20, first=300)
    for form in FORMS[1:]:
        for path in (plain, held):
            target = folder / form / path.parent.name / f"{path.stem}.{form}"
            target.parent.mkdir(parents=True)
            if form == "parquet":
                texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
                pq.write_table(pa.table({"text": texts}), target)  # one row group: the order of the lines
            else:
                target.write_bytes(gzip.compress(path.read_bytes()))
    return folder


def train(place, tmp_path, where, name, streaming, request=None, **changes):
    state = tiny.train(
        tmp_path,
        request=request,
        model__name=str(place / "model"),
        data__path=f"{where}/train",
        data__eval_path=f"{where}/held",
        data__streaming=streaming,
        eval__every_n_steps=6,
        output__dir=str(tmp_path / name),
        **changes,
    )
    return tiny.losses(state.run_dir)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOLITH_HOME", str(tmp_path / "home"))


@pytest.fixture
def freezing(s3, monkeypatch):
    """The server does nothing for four seconds when bytes are asked for the second time."""
    asked, thawed = [], threading.Event()
    real = storage.fetch

    def freeze():
        with s3.frozen():
            asked.append("frozen")
            time.sleep(4)
        thawed.set()

    def watched(*arguments):
        asked.append("")
        if len(asked) == 2:
            threading.Thread(target=freeze).start()
            while "frozen" not in asked:
                time.sleep(0.01)
        return real(*arguments)

    monkeypatch.setattr(storage, "fetch", watched)
    return thawed


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "cached"])
@pytest.mark.parametrize("form", FORMS)
def test_text_on_s3_trains_as_on_this_machine(place, tmp_path, home, freezing, s3, form, streaming):
    here = train(place, tmp_path, place / form, "here", streaming)
    there = train(place, tmp_path, s3.upload(place / form), "there", streaming)
    assert freezing.is_set(), "the server was never stopped"
    assert len(here) == 12 and there == here


@pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "cached"])
def test_parquet_trains_as_the_same_lines(place, tmp_path, home, streaming):
    settings = {"data__shuffle": False} if streaming else {}
    lines = train(place, tmp_path, place / "jsonl", "lines", streaming, **settings)
    assert train(place, tmp_path, place / "parquet", "parquet", streaming, **settings) == lines


def test_a_run_goes_on_with_its_text_moved_to_s3(place, tmp_path, home, s3):
    """What a file holds counts, not where it lies."""
    settings = {"trainer__scheduler": "constant"}
    whole = train(place, tmp_path, place / "parquet", "whole", True, **settings)
    shutil.copytree(place / "parquet", tmp_path / "text")
    train(place, tmp_path, tmp_path / "text", "run", True, trainer__max_steps=5, **settings)
    url = s3.upload(tmp_path / "text")
    shutil.rmtree(tmp_path / "text")
    request = Request(resume="latest", accept_changes=("schedule",))
    assert train(place, tmp_path, url, "run", True, request=request, **settings) == whole
