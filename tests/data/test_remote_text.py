"""Text behind URLs: the same rows and the same tokens as from this machine, and no more bytes than needed."""

from __future__ import annotations

import gzip
import json
import threading
import time

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protolith.data import storage
from protolith.data.cache import tokenize_corpus
from protolith.data.files import find_files
from protolith.data.identity import diff_identity
from protolith.data.stream_estimate import estimate_rows
from protolith.data.stream_loader import StreamLoader
from protolith.data.streams import TextStream
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.text_blocks import read_texts
from protolith.data.tokenizer import load_tokenizer
from protolith.errors import BadRecordError, DataError, NotFoundError, UnreachableError
from tests.data.corpora import bpe_dir, document, write_jsonl

FORMS = ("plain", "gzip", "parquet")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(bpe_dir(tmp_path_factory.mktemp("bpe")))


def write(folder, form, count=300, files=3):
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        texts = [document(number * count + at) for at in range(count)]
        name = f"f{number}"
        if form == "parquet":
            pq.write_table(pa.table({"text": texts}), folder / f"{name}.parquet", row_group_size=70)
        else:
            plain = write_jsonl(folder / f"{name}.jsonl", texts)
            if form == "gzip":
                (folder / f"{name}.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
                plain.unlink()
    return folder


def found(*places):
    return find_files([str(place) for place in places], suffixes=TEXT_SUFFIXES, what="text").files


def stream(place, tokenizer, **options):
    return TextStream(
        found(place), tokenizer, **{"seq_len": 32, "seed": 5, "chunk_bytes": 8192, "max_lanes": 4, **options}
    )


def rows_of(steps):
    return [row for step in steps for batch in step.micro_batches for row in batch.inputs.tolist()]


def steps_of(source, **options):
    with StreamLoader(source, **{"micro_batch_rows": 16, "num_epochs": 1, **options}) as loader:
        return list(loader)


@pytest.fixture
def fetched(monkeypatch):
    """(URL, first byte, end) of every request for bytes."""
    asked = []
    real = storage.fetch

    def watched(place, version, start, stop):
        asked.append((place.url, start, stop))
        return real(place, version, start, stop)

    monkeypatch.setattr(storage, "fetch", watched)
    return asked


@pytest.mark.parametrize("form", FORMS)
def test_it_streams_from_s3_as_from_here(s3, tmp_path, tokenizer, form):
    """The rows, the estimate, the position, and going on from it with processes."""
    local = write(tmp_path / "text", form)
    url = s3.upload(local)
    here, there = stream(local, tokenizer), stream(url, tokenizer)
    assert [file.name for file in there.text.files] == [file.name for file in here.text.files]
    assert estimate_rows(there) == estimate_rows(here)
    steps, remote = steps_of(here), steps_of(there)
    assert rows_of(remote) == rows_of(steps)
    assert remote[-1].position == steps[-1].position
    at = len(steps) // 2
    position = json.loads(json.dumps(remote[at].position))
    assert rows_of(steps_of(stream(url, tokenizer), position=position, num_workers=1)) == rows_of(
        steps[at + 1 :]
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_token_cache_is_the_same(s3, tmp_path, tokenizer, form):
    local = write(tmp_path / "text", form)
    url = s3.upload(local)
    root = tmp_path / "cache"
    ours = tokenize_corpus(found(local), tokenizer, cache_root=root, num_workers=0)
    theirs = tokenize_corpus(found(url), tokenizer, cache_root=root, num_workers=0)
    assert (theirs.train_dir / "00000.ds").read_bytes() == (ours.train_dir / "00000.ds").read_bytes()
    assert tokenize_corpus(found(url), tokenizer, cache_root=root).reused
    name = next(local.iterdir()).name
    s3.client.pipe_file(f"{url}/{name}", (local / name).read_bytes())  # written again, as it was
    assert tokenize_corpus(found(url), tokenizer, cache_root=root).reused
    s3.client.pipe_file(f"{url}/{name}", (write(tmp_path / "other", form, 301) / name).read_bytes())
    assert not tokenize_corpus(found(url), tokenizer, cache_root=root).reused


def test_nothing_is_read_to_find_the_cache(s3, tmp_path, tokenizer, fetched):
    url = s3.upload(write(tmp_path / "text", "plain"))
    tokenize_corpus(found(url), tokenizer, cache_root=tmp_path / "cache", num_workers=0)
    fetched.clear()
    assert tokenize_corpus(found(url), tokenizer, cache_root=tmp_path / "cache").reused
    assert fetched == []


def test_storage_without_versions_is_read_for_the_key(tmp_path, tokenizer):
    """Two contents of one second have two keys."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    for count in (50, 51):
        files.pipe_file(
            "/text/a.jsonl", write(tmp_path / f"{count}", "plain", count, 1).joinpath("f0.jsonl").read_bytes()
        )
        made = tokenize_corpus(
            found("memory://text"), tokenizer, cache_root=tmp_path / "cache", num_workers=0
        )
        assert (made.reused, made.summary.documents) == (False, count)
    assert tokenize_corpus(found("memory://text"), tokenizer, cache_root=tmp_path / "cache").reused
    files.store.clear()


def test_going_on_fetches_what_the_lanes_hold_and_what_comes_next(s3, tmp_path, tokenizer, fetched):
    url = s3.upload(write(tmp_path / "text", "plain", 1500, 2))
    source = stream(url, tokenizer)
    whole = steps_of(source)
    size = source.text.total_bytes
    assert sum(stop - start for _url, start, stop in fetched) < 4 * size  # chunks overlap by their tails
    again = stream(url, tokenizer)
    fetched.clear()
    with StreamLoader(again, micro_batch_rows=16, position=whole[len(whole) // 2].position) as loader:
        step = next(iter(loader))
    assert rows_of([step]) == rows_of([whole[len(whole) // 2 + 1]])
    assert sum(stop - start for _url, start, stop in fetched) < 40 * (8192 + (1 << 14))
    assert size > 60 * (8192 + (1 << 14))


@pytest.mark.parametrize("form", FORMS)
def test_a_server_that_stops_for_a_while_is_waited_for(s3, tmp_path, tokenizer, form):
    local = write(tmp_path / "text", form)
    url = s3.upload(local)
    expected = rows_of(steps_of(stream(local, tokenizer)))
    frozen, over = threading.Event(), threading.Event()

    def freeze():
        with s3.frozen():
            frozen.set()
            time.sleep(3)
        over.set()

    steps = []
    with StreamLoader(stream(url, tokenizer), micro_batch_rows=16, num_epochs=1) as loader:
        for step in loader:
            steps.append(step)
            if len(steps) == 5:
                threading.Thread(target=freeze).start()
                frozen.wait()
    assert over.is_set(), "all was fetched before: this test shows nothing"
    assert rows_of(steps) == expected


def test_a_file_written_again_under_a_stream_is_loud(s3, tmp_path, tokenizer):
    url = s3.upload(write(tmp_path / "text", "plain", 1500, 1))
    with pytest.raises(DataError, match="is another one now"):
        with StreamLoader(stream(url, tokenizer), micro_batch_rows=16, num_epochs=1) as loader:
            for number, _step in enumerate(loader):
                if number == 3:
                    other = write(tmp_path / "other", "plain", 1501, 1)
                    s3.client.pipe_file(f"{url}/f0.jsonl", (other / "f0.jsonl").read_bytes())


def test_a_damaged_line_is_told_with_its_number(s3, tmp_path, tokenizer):
    lines = [json.dumps({"text": document(number)}) for number in range(400)]
    lines[333] = "{broken"
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.jsonl").write_text("\n".join(lines))
    url = s3.upload(tmp_path / "text")
    with pytest.raises(BadRecordError) as caught:
        steps_of(stream(url, tokenizer))
    assert caught.value.where == "a.jsonl:334"
    with pytest.raises(BadRecordError) as caught:
        list(read_texts(found(url)))
    assert caught.value.where == "a.jsonl:334"


def test_what_is_not_there_or_does_not_answer_is_typed(s3, tmp_path, tokenizer, monkeypatch):
    url = s3.upload(write(tmp_path / "text", "plain", 200, 1))
    with pytest.raises(NotFoundError):
        found(url + "/missing")
    source = stream(url, tokenizer)
    monkeypatch.setattr("protolith.data.storage_faults.RETRY_S", 0.5)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    from tests.support.s3 import forget_clients

    forget_clients()
    with pytest.raises(UnreachableError):
        steps_of(source)


def test_its_identity_is_that_of_a_copy(s3, tmp_path, tokenizer):
    """A run goes on with its data moved to S3, or back."""
    local = write(tmp_path / "text", "plain")
    url = s3.upload(local)
    assert diff_identity(stream(local, tokenizer).identity(), stream(url, tokenizer).identity()) == []
