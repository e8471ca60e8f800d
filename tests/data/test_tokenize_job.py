"""Tokenizing jobs: the bytes are datatrove's, the documents all there, and the way leaves no trace."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils.dataset import DatatroveFolderDataset

from protolith.data import tokenize_plan, tokenize_watch
from protolith.data.cache import tokenize_corpus
from protolith.data.shard_folders import find_shards
from protolith.data.tokenize_job import TokenizeResult, tokenize
from protolith.data.tokenize_report import JOB_DIR, JobDir
from protolith.data.tokenize_settings import ExecutorSettings
from protolith.data.tokenizer import load_tokenizer
from protolith.errors import (
    BadRecordError,
    ConflictError,
    CorpusTooSmallError,
    MissingExtraError,
    ResumeMismatchError,
    ShardError,
    TokenizerError,
)
from protolith.formats.shard_files import read_shard_info
from protolith.formats.shard_manifest import read_manifest
from tests.data.corpora import bpe_dir, document, text_files, word_level_dir, write_jsonl

TEXTS = [*(document(n) for n in range(300)), "x", "Ünïcode 日本\n\ttabs", "a" * 5000, "ends <|endoftext|>"]


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of 30 kB, so that a small corpus has several."""
    monkeypatch.setattr(tokenize_plan, "_LEAST_BYTES", 30_000)


def run(inputs: list[Path] | Path, tokenizer: Path, output: Path, workers: int = 1, **options: Any) -> Any:
    given = [inputs] if isinstance(inputs, Path) else inputs
    settings = ExecutorSettings(workers=workers)
    return tokenize([str(path) for path in given], tokenizer, output, settings=settings, **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def ids_of(folder: Path, width: int = 2) -> np.ndarray:
    return np.concatenate([np.fromfile(path, f"<u{width}") for path in sorted(folder.glob("*.ds"))])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """The texts in five files of all forms that lines come in."""
    folder = tmp_path / "corpus"
    write_jsonl(folder / "a.jsonl", TEXTS[:150])
    lines = [json.dumps({"content": text}) + "\n" for text in TEXTS]
    (folder / "b.ndjson.gz").write_bytes(gzip.compress("".join(lines[150:200]).encode()))
    (folder / "c.jsonl.zst").write_bytes(
        zstandard.ZstdCompressor().compress("".join(lines[200:250]).encode())
    )
    write_jsonl(folder / "sub/d.jsonl", TEXTS[250:])
    return folder


def test_the_ids_are_those_of_the_cache_for_any_number_of_workers(tmp_path: Path, corpus: Path) -> None:
    folder = bpe_dir(tmp_path / "tok")
    results = [
        run(corpus, folder, tmp_path / f"out{workers}", workers, shard_tokens=5000) for workers in (1, 2, 3)
    ]
    made = contents(tmp_path / "out1")
    assert contents(tmp_path / "out2") == made
    assert contents(tmp_path / "out3") == made
    assert results[0].tasks > 3
    cached = tokenize_corpus(text_files(corpus), load_tokenizer(folder), cache_root=tmp_path / "cache")
    assert np.array_equal(ids_of(tmp_path / "out1"), ids_of(cached.train_dir))
    assert results[0].documents == cached.summary.documents == len(TEXTS)
    assert results[0].tokens == cached.summary.tokens
    infos = [read_shard_info(path) for path in sorted((tmp_path / "out1").glob("*.ds"))]
    assert len(infos) == results[0].shards > 5
    assert all(5000 <= info.num_tokens < 5000 + 5000 for info in infos[:-1])
    assert sorted(path.name for path in (tmp_path / "out1").iterdir())[-1] == "manifest.json"
    assert not (tmp_path / "out1" / JOB_DIR).exists()


@pytest.mark.parametrize("kind", ["2 bytes", "4 bytes"])
def test_the_bytes_are_those_of_datatrove_called_directly(tmp_path: Path, kind: str) -> None:
    if kind == "2 bytes":
        folder, texts = bpe_dir(tmp_path / "tok"), TEXTS[:-1]
    else:
        folder = word_level_dir(tmp_path / "tok", 70_000)
        texts = [f"w{n} w{69_999 - n} nothing" for n in range(3000)]
    path = write_jsonl(tmp_path / "in/c.jsonl", texts)
    tokenizer = load_tokenizer(folder)
    steps = [
        JsonlReader(str(path.parent)),
        DocumentTokenizer(
            str(tmp_path / "dt"),
            str(folder / "tokenizer.json"),
            eos_token=tokenizer.eos_token,
            shuffle_documents=False,
        ),
    ]
    LocalPipelineExecutor(steps, tasks=1, logging_dir=str(tmp_path / "log")).run()
    result = run(path, folder, tmp_path / "out", 2)
    assert result.token_bytes == int(kind[0])
    for suffix in ("", ".index"):
        ours = tmp_path / "out" / f"00000.ds{suffix}"
        assert ours.read_bytes() == (tmp_path / "dt" / f"00000_unshuffled.ds{suffix}").read_bytes()
    ours, theirs = (
        (tmp_path / "out/00000.ds.metadata").read_text(),
        (tmp_path / "dt/00000_unshuffled.ds.metadata").read_text(),
    )
    assert ours.split("|", 1)[1] == theirs.rsplit("|", 1)[1]


def test_datatrove_reads_the_shards_and_they_are_proved(tmp_path: Path, corpus: Path) -> None:
    folder = bpe_dir(tmp_path / "tok")
    run(corpus, folder, tmp_path / "out", shard_tokens=4000)
    shards, notes = find_shards([str(tmp_path / "out")])
    assert notes == ()
    dataset = DatatroveFolderDataset(str(tmp_path / "out"), 64, token_size=2)
    rows = [np.asarray(dataset[n]["input_ids"]) for n in range(len(dataset))]
    ids, at = ids_of(tmp_path / "out"), 0
    expected = []
    for shard in shards:
        for start in range(0, shard.num_tokens - 64, 65):
            expected.append(ids[at + start : at + start + 65])
        at += shard.num_tokens
    assert [row.tolist() for row in rows] == [row.tolist() for row in expected if len(row) == 65]
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.num_documents == len(TEXTS)
    assert set(manifest.files) == set(contents(tmp_path / "out")) - {"manifest.json"}


def test_one_end_a_document_also_where_the_text_spells_it(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", ["w3 w4", "w5 </s>", "w6 </s> w7"])
    run(path, word_level_dir(tmp_path / "tok", 100), tmp_path / "out")
    assert ids_of(tmp_path / "out").tolist() == [3, 4, 0, 5, 0, 6, 0, 7, 0]


def test_all_kinds_of_input_together_in_the_order_given(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    pq.write_table(pa.table({"text": ["w2", "w3"]}), tmp_path / "z.parquet")
    (tmp_path / "y.txt").write_text("w4\nw5")
    path = write_jsonl(tmp_path / "a.jsonl", ["w6"])
    order = [tmp_path / "z.parquet", tmp_path / "y.txt", path]
    result = run(order, word_level_dir(tmp_path / "tok", 100), tmp_path / "out")
    assert ids_of(tmp_path / "out").tolist() == [2, 0, 3, 0, 4, 5, 0, 6, 0]
    assert (result.documents, result.records) == (4, 4)


def test_what_is_left_out_is_counted_and_named(tmp_path: Path) -> None:
    records: list[Any] = [document(n) for n in range(400)]
    records[150] = {"text": None}
    records[333] = {"text": " "}
    path = write_jsonl(tmp_path / "c.jsonl", records)
    said: list[str] = []
    result = run(path, bpe_dir(tmp_path / "tok"), tmp_path / "out", 2, on_note=said.append)
    assert result.skipped == {"null": 1, "blank": 1}
    assert (result.records, result.documents) == (400, 398)
    assert "skipped 1 of 400 records: null (first at c.jsonl:151)" in said
    assert "skipped 1 of 400 records: blank (first at c.jsonl:334)" in said


def test_a_damaged_line_is_an_error_with_its_line_and_nothing_is_left(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [document(n) for n in range(400)])
    lines = path.read_text().splitlines()
    lines[287] = '{"text": oops}'
    path.write_text("\n".join(lines))
    with pytest.raises(BadRecordError, match="not JSON") as caught:
        run(path, bpe_dir(tmp_path / "tok"), tmp_path / "out", 2)
    assert caught.value.where == "c.jsonl:288"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == [JOB_DIR]


def test_a_corpus_without_texts_is_refused_with_the_option_to_look_at(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [{"body": document(n)} for n in range(300)])
    with pytest.raises(BadRecordError, match="have no text") as caught:
        run(path, bpe_dir(tmp_path / "tok"), tmp_path / "out")
    assert "--text-field" in caught.value.hint
    assert caught.value.where == "c.jsonl:1"
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(CorpusTooSmallError):
        run(tmp_path / "empty.jsonl", tmp_path / "tok", tmp_path / "out2")
    assert list((tmp_path / "out2").iterdir() if (tmp_path / "out2").exists() else []) == []


def test_done_is_done_and_another_job_is_refused(tmp_path: Path, corpus: Path) -> None:
    folder, out = bpe_dir(tmp_path / "tok"), tmp_path / "out"
    first = run(corpus, folder, out)
    again = run(corpus, folder, out)
    assert again.already_done
    assert (again.documents, again.tokens, again.shards) == (first.documents, first.tokens, first.shards)
    made = contents(out)
    for options in ({"shard_tokens": 1000}, {"text_field": "body"}):
        with pytest.raises(ResumeMismatchError) as caught:
            run(corpus, folder, out, **options)
        assert caught.value.exit_code == 5
        assert next(iter(options)) in caught.value.differences[0]
    write_jsonl(corpus / "sub/d.jsonl", TEXTS[250:260])
    with pytest.raises(ResumeMismatchError) as caught:
        run(corpus, folder, out)
    assert caught.value.differences[0].startswith("inputs: bytes")
    assert contents(out) == made
    assert run(corpus, folder, out, overwrite=True).documents < first.documents
    (out / "00000.ds").write_bytes(b"")
    with pytest.raises(ShardError, match="not as long"):
        run(corpus, folder, out)


def test_shards_of_somebody_else_are_not_touched(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "theirs.ds").write_bytes(b"1234")
    (out / "README.md").write_text("kept")
    with pytest.raises(ConflictError, match=r"theirs\.ds"):
        run(corpus, bpe_dir(tmp_path / "tok"), out)
    assert contents(out) == {"theirs.ds": b"1234", "README.md": b"kept"}
    run(corpus, tmp_path / "tok", out, overwrite=True)
    assert not (out / "theirs.ds").exists()
    assert (out / "README.md").read_text() == "kept"


class _Stop(Exception):
    pass


@pytest.mark.parametrize("phase", ["tokenizing", "writing shards"])
def test_an_interrupted_job_goes_on_and_ends_the_same(
    tmp_path: Path, corpus: Path, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenize_watch, "_POLL_S", 0.01)  # or it may be done before anyone looks
    folder, out = bpe_dir(tmp_path / "tok"), tmp_path / "out"
    write_jsonl(corpus / "e.jsonl", TEXTS * 6)
    run(corpus, folder, tmp_path / "whole", shard_tokens=4000)

    def interrupt(now: Any) -> None:
        share = now.done / max(now.total, 1)
        if now.phase == phase and 0.3 < share < 1:
            raise _Stop

    with pytest.raises(_Stop):
        run(corpus, folder, out, shard_tokens=4000, on_progress=interrupt)
    assert [path.name for path in out.iterdir()] == [JOB_DIR]
    held = len(list(JobDir(out / JOB_DIR).told("results")))
    assert held > 0
    with pytest.raises(ResumeMismatchError, match="unfinished"):
        run(corpus, folder, out, shard_tokens=3000)
    result: TokenizeResult = run(corpus, folder, out, 2, shard_tokens=4000)
    assert result.resumed_tasks == held
    assert contents(out) == contents(tmp_path / "whole")


def test_shards_move_into_place_together_also_after_a_kill(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = bpe_dir(tmp_path / "tok"), tmp_path / "out"
    run(corpus, folder, tmp_path / "whole", shard_tokens=4000)
    real, moved = os.replace, []

    def dying_replace(source: Any, target: Any) -> None:
        if Path(target).parent == out:
            if len(moved) == 5:
                raise _Stop
            moved.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dying_replace)
        with pytest.raises(_Stop):
            run(corpus, folder, out, shard_tokens=4000)
    assert run(corpus, folder, out, shard_tokens=4000).tasks
    assert contents(out) == contents(tmp_path / "whole")
    assert not (out / JOB_DIR).exists()


def test_two_at_once_in_one_folder_are_refused(tmp_path: Path, corpus: Path) -> None:
    def second(now: Any) -> None:
        with pytest.raises(ConflictError, match="another process"):
            run(corpus, tmp_path / "tok", tmp_path / "out")
        raise _Stop

    with pytest.raises(_Stop):
        run(corpus, bpe_dir(tmp_path / "tok"), tmp_path / "out", on_progress=second)


def eos_tokenizer(folder: Path, declared: str) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<|endoftext|>", "<|im_end|>", "plain", "w3", "w4"]
    backend = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="plain"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(words[:2])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": declared}))
    return folder


def test_a_suspicious_end_is_said_and_a_wrong_one_refused(tmp_path: Path) -> None:
    folder = eos_tokenizer(tmp_path / "tok", "<|im_end|>")
    path = write_jsonl(tmp_path / "c.jsonl", ["w3 w4"])

    def notes(name: str, eos: str | None = None) -> tuple[list[str], list[int]]:
        said: list[str] = []
        run(path, folder, tmp_path / name, eos_token=eos, on_note=said.append)
        return said, ids_of(tmp_path / name).tolist()

    said, ids = notes("default")
    assert ids == [3, 4, 0]
    assert "ends a turn" in said[0] and "--eos-token" in said[0]
    assert notes("right", "<|endoftext|>") == ([], [3, 4, 0])
    said, ids = notes("turn", "<|im_end|>")
    assert ids == [3, 4, 1]
    assert "ends a turn" in said[0] and "<|endoftext|>" in said[0]
    assert said[0].startswith("warning: ")
    said, ids = notes("plain", "plain")
    assert ids == [3, 4, 2]
    assert "no special token" in said[0]
    with pytest.raises(TokenizerError, match="is not in the tokenizer's vocabulary") as caught:
        notes("wrong", "<|endoftxt|>")
    assert "<|endoftext|>" in caught.value.hint


def test_ray_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    path = write_jsonl(tmp_path / "c.jsonl", ["one"])
    with pytest.raises(MissingExtraError) as caught:
        tokenize([str(path)], tmp_path, tmp_path / "out", settings=ExecutorSettings(kind="ray"))
    assert "protolith[ray]" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_long_text_is_the_same_in_small_parts(tmp_path: Path) -> None:
    from protolith.data.tokenize_block import BlockOptions
    from protolith.data.tokenize_inputs import find_inputs
    from protolith.data.tokenize_plan import make_plan, write_plan
    from protolith.data.tokenize_report import TaskReport
    from protolith.data.tokenize_steps import CorpusReader, PartTokenizer
    from protolith.data.tokenize_worker import write_job

    tokenizer = load_tokenizer(bpe_dir(tmp_path / "tok"))
    texts = ["\n".join(document(n) for n in range(1500)), *(document(n) for n in range(3000))]
    path = write_jsonl(tmp_path / "c.jsonl", texts)
    job = JobDir(tmp_path / "job")
    job.make()
    files, _notes = find_inputs([str(path)])
    write_job(job.root, tokenizer, BlockOptions())
    plan = make_plan(files, {}, "text")
    write_plan(job.root, plan)
    for task in range(len(plan.tasks)):
        report = TaskReport()
        reader = CorpusReader(str(job.root), report)
        PartTokenizer(str(job.root), report, part_tokens=20_000).run(reader.run(rank=task), task)
    parts = sorted((job.root / "parts").rglob("*.ds"))
    assert len(parts) > len(plan.tasks)
    ids = np.concatenate([np.fromfile(part, "<u2") for part in parts])
    expected = [i for ids in tokenizer.encode_documents(texts) for i in ids]
    assert ids.tolist() == expected
