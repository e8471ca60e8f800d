"""The cache: same bytes however it was made, never stale, never half, stopped at once when asked."""

from __future__ import annotations

import fcntl
import gzip
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protolith.data import cache as cache_module
from protolith.data import content, shard_series, tokenize_pool
from protolith.data.cache import TokenizedCorpus, TokenizingStopped, tokenize_corpus
from protolith.data.shard_folders import find_shards
from protolith.data.shard_series import ShardSeries
from protolith.data.tokenize_block import BlockOptions, Documents, is_held_out
from protolith.data.tokenizer import TextTokenizer, load_tokenizer
from protolith.errors import (
    BadRecordError,
    CorpusTooSmallError,
    DataError,
    NoSpaceError,
    NotAllowedError,
    RunFailedError,
)
from tests.data.corpora import bpe, document, text_files, word_level_dir, write_jsonl

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    return bpe(tmp_path / "tok")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "in" / "c.jsonl", [document(n) for n in range(400)])


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and real workers, for corpora of a few hundred kilobytes."""
    monkeypatch.setattr(cache_module.blocks_of, "__defaults__", (20_000,))
    monkeypatch.setattr(cache_module, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(cache_module, "_IN_PROCESS_BYTES", 0)


def ids_of(folder: Path) -> list[int]:
    ids = array("H")
    for shard in find_shards([str(folder)])[0]:
        values = array("H" if shard.token_bytes == 2 else "I", shard.path.read_bytes())
        ids = array("I", [*ids, *values])
    return list(ids)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def make(files: Path, tokenizer: TextTokenizer, root: Path, **options: Any) -> TokenizedCorpus:
    return tokenize_corpus(text_files(files), tokenizer, cache_root=root, **options)


def leftovers(root: Path) -> list[str]:
    return [p.name for p in root.iterdir() if p.name.startswith(".aside")]


def test_the_shards_hold_the_documents_in_order(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    made = make(corpus, tokenizer, tmp_path / "cache")
    expected = tokenizer.encode_documents([document(n) for n in range(400)])
    assert ids_of(made.train_dir) == [id for ids in expected for id in ids]
    assert made.summary.documents == made.summary.records == 400
    assert made.summary.tokens == sum(map(len, expected))
    assert made.eval_dir is None
    assert (made.reused, made.notes) == (False, ())
    (shard,), notes = find_shards([str(made.train_dir)])
    assert shard.num_documents == 400
    assert shard.tokenizer_name == tokenizer.name
    assert notes == ()


@pytest.mark.usefixtures("small_blocks")
def test_the_result_does_not_depend_on_workers_or_blocks(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(T58)"""
    trees = []
    for workers in (0, 1, 3):
        made = make(corpus, tokenizer, tmp_path / f"w{workers}", num_workers=workers, eval_split=0.2)
        trees.append(tree(made.train_dir.parent))
    monkeypatch.setattr(cache_module.blocks_of, "__defaults__", (999,))
    trees.append(
        tree(make(corpus, tokenizer, tmp_path / "b", num_workers=0, eval_split=0.2).train_dir.parent)
    )
    assert trees[0] == trees[1] == trees[2] == trees[3]
    assert {"train/00000.ds", "eval/00000.ds", "manifest.json"} <= set(trees[0])


def test_the_second_time_nothing_is_read(corpus: Path, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    old = time.time() - 60
    first = make(corpus, tokenizer, tmp_path / "cache")
    again = make(corpus, tokenizer, tmp_path / "cache")
    assert again.reused
    assert again.train_dir == first.train_dir
    assert again.summary == first.summary
    os.utime(corpus, (old, old))
    corpus.rename(corpus.with_name("moved.jsonl"))
    moved = make(corpus.with_name("moved.jsonl"), tokenizer, tmp_path / "cache")
    assert moved.reused


def test_changed_text_is_never_served_by_an_old_entry(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    """Not even with the old size and the old times put back."""
    facts = corpus.stat()
    old = time.time() - 3600
    os.utime(corpus, (old, old))
    first = make(corpus, tokenizer, tmp_path / "cache")
    text = corpus.read_text()
    corpus.write_text(text.replace("doc0007", "doc9997"))
    os.utime(corpus, (old, old))
    assert corpus.stat().st_size == facts.st_size
    second = make(corpus, tokenizer, tmp_path / "cache")
    assert not second.reused
    assert second.train_dir != first.train_dir
    assert "doc9997" in tokenizer.decode(ids_of(second.train_dir))


def test_digests_of_settled_files_are_remembered(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(corpus, tokenizer, tmp_path / "cache")
    assert not (tmp_path / "cache" / "digests.json").exists()  # changed a moment ago: not to be trusted
    monkeypatch.setattr(content, "_SETTLED_S", -1.0)
    make(corpus, tokenizer, tmp_path / "cache")
    calls = []
    monkeypatch.setattr(content, "_digest", lambda file, poll: calls.append(file) or "0" * 64)
    assert make(corpus, tokenizer, tmp_path / "cache").reused
    assert calls == []
    (tmp_path / "cache" / "digests.json").write_text("{ nonsense")
    monkeypatch.undo()
    assert make(corpus, tokenizer, tmp_path / "cache").reused


@pytest.mark.parametrize("change", ["tokenizer", "eos", "field", "split", "seed", "order"])
def test_everything_that_decides_ids_is_in_the_key(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, change: str
) -> None:
    write_jsonl(corpus.with_name("d.jsonl"), [{"text": f"t{n} x", "body": f"b{n} y"} for n in range(90)])
    files = text_files(corpus.parent / "d.jsonl", corpus)
    options: dict[str, Any] = {"cache_root": tmp_path / "cache", "eval_split": 0.3}
    first = tokenize_corpus(files, tokenizer, **options)
    if change == "tokenizer":
        tokenizer = load_tokenizer(word_level_dir(tmp_path / "other", 70))
    elif change == "eos":
        tokenizer = load_tokenizer(tmp_path / "tok", eos_token="<|pad|>")
    elif change == "order":
        files = files[::-1]
    elif change == "field":
        files = files[:1]
        first = tokenize_corpus(files, tokenizer, **options)
        options["text_field"] = "body"
    else:
        options |= {"split": {"eval_split": 0.4}, "seed": {"seed": 5}}[change]
    second = tokenize_corpus(files, tokenizer, **options)
    assert not second.reused
    assert tree(second.train_dir) != tree(first.train_dir)


def test_the_seed_is_no_part_of_the_key_without_a_split(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    make(corpus, tokenizer, tmp_path / "cache", seed=1)
    assert make(corpus, tokenizer, tmp_path / "cache", seed=2).reused


def test_a_vocabulary_above_65536_is_stored_in_four_bytes(tmp_path: Path) -> None:
    """(T4)"""
    tokenizer = load_tokenizer(word_level_dir(tmp_path / "tok", 70_000))
    text = " ".join(f"w{n}" for n in range(65_540, 65_601))
    path = write_jsonl(tmp_path / "c.jsonl", [text])
    made = make(path, tokenizer, tmp_path / "cache")
    assert find_shards([str(made.train_dir)])[0][0].token_bytes == 4
    ids = ids_of(made.train_dir)
    assert ids == [*range(65_540, 65_601), tokenizer.eos_id]
    assert tokenizer.decode(ids[:-1]) == text


def test_text_the_vocabulary_cannot_spell_is_told(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(word_level_dir(tmp_path / "tok", 10))
    path = write_jsonl(tmp_path / "c.jsonl", ["w2 w3 strange w4"])
    for _ in range(2):
        made = make(path, tokenizer, tmp_path / "cache")
        assert made.summary.unknown_tokens == 1
        assert made.notes[0].startswith("1 of 5 tokens (20.00%) stand for text")


def test_the_held_out_side_follows_the_document_alone(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    def side(folder: Path | None) -> set[str]:
        assert folder is not None
        return set(tokenizer.decode(ids_of(folder)).split("<|endoftext|>"))

    first = make(corpus, tokenizer, tmp_path / "cache", eval_split=0.2)
    texts = [document(n) for n in range(400)]
    for number, part in enumerate((texts[300:] + texts[:10], texts[10:300][::-1] + texts[:50])):
        write_jsonl(tmp_path / "split" / f"{number}.jsonl", part)
    second = make(tmp_path / "split", tokenizer, tmp_path / "cache", eval_split=0.2)
    assert side(first.eval_dir) == side(second.eval_dir)
    assert side(first.train_dir) == side(second.train_dir)
    assert not side(first.train_dir) & side(first.eval_dir) - {""}
    assert 50 < first.summary.eval_documents < 110
    grown = {text for text in texts if is_held_out(text, BlockOptions(eval_split=0.1))}
    assert grown < {text for text in texts if is_held_out(text, BlockOptions(eval_split=0.2))}


@pytest.mark.parametrize(("share", "side"), [(1e-9, "validation"), (1 - 1e-9, "training")])
def test_a_split_that_leaves_a_side_empty_is_an_error(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, share: float, side: str
) -> None:
    with pytest.raises(CorpusTooSmallError, match=f"none for {side}"):
        make(corpus, tokenizer, tmp_path / "cache", eval_split=share)
    with pytest.raises(DataError, match="no share"):
        make(corpus, tokenizer, tmp_path / "cache", eval_split=1.0)


def test_empty_files_are_told_and_nothing_else_is_too_small(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "empty.jsonl").touch()
    with pytest.raises(CorpusTooSmallError, match="all files are empty"):
        make(tmp_path / "in", tokenizer, tmp_path / "cache")
    (tmp_path / "in" / "blank.jsonl").write_text("\n\n")
    with pytest.raises(CorpusTooSmallError, match="no documents in 0 records"):
        make(tmp_path / "in", tokenizer, tmp_path / "cache")
    write_jsonl(tmp_path / "in" / "full.jsonl", ["a b"])
    made = make(tmp_path / "in", tokenizer, tmp_path / "cache")
    assert made.summary.documents == 1
    assert made.notes == ("skipped 1 empty files: empty.jsonl",)


def test_skipped_records_are_told_each_time_under_the_present_name(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [*(document(n) for n in range(200)), {"text": None}])
    first = make(path, tokenizer, tmp_path / "cache")
    assert first.notes == ("skipped 1 of 201 records: null (first at c.jsonl:201)",)
    assert first.summary.skipped == {"null": 1}
    again = make(path.rename(tmp_path / "e.jsonl"), tokenizer, tmp_path / "cache")
    assert again.reused
    assert again.notes == ("skipped 1 of 201 records: null (first at e.jsonl:201)",)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_line_is_found_with_its_line_and_nothing_is_kept(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, workers: int
) -> None:
    lines = corpus.read_text().splitlines()
    lines[321] = lines[321][:-3]
    lines[350] = "also bad"
    corpus.write_text("\n".join(lines))
    with pytest.raises(BadRecordError) as caught:
        make(corpus, tokenizer, tmp_path / "cache", num_workers=workers)
    assert caught.value.where == "c.jsonl:322"
    assert leftovers(tmp_path / "cache") == []
    assert not [p for p in (tmp_path / "cache").iterdir() if p.is_dir()]


@pytest.mark.usefixtures("small_blocks")
def test_progress_covers_all_bytes(corpus: Path, tokenizer: TextTokenizer, tmp_path: Path) -> None:
    packed = corpus.with_name("d.jsonl.gz")
    packed.write_bytes(gzip.compress(corpus.read_bytes()))
    seen: list[tuple[int, int, int, int]] = []
    made = make(
        corpus.parent, tokenizer, tmp_path / "c", num_workers=2, on_progress=lambda *n: seen.append(n)
    )
    total = corpus.stat().st_size + packed.stat().st_size
    assert [numbers[0] for numbers in seen] == sorted(numbers[0] for numbers in seen)
    assert seen[-1] == (total, total, 800, made.summary.tokens)
    assert len(seen) > 10
    half = len(ids_of(made.train_dir)) // 2
    assert ids_of(made.train_dir)[:half] == ids_of(made.train_dir)[half:]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_keeps_nothing(corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, workers: int) -> None:
    done: list[int] = []
    with pytest.raises(TokenizingStopped):
        make(
            corpus,
            tokenizer,
            tmp_path / "cache",
            num_workers=workers,
            on_progress=lambda *numbers: done.append(numbers[0]),
            should_stop=lambda: len(done) >= 3,
        )
    assert len(done) < 8
    assert leftovers(tmp_path / "cache") == []
    assert not make(corpus, tokenizer, tmp_path / "cache", num_workers=workers).reused


def test_a_stop_inside_one_huge_line_comes_within_seconds(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "c.jsonl", [" ".join(document(n) for n in range(20_000))])
    assert path.stat().st_size > 10_000_000
    begun = time.monotonic()
    asked: list[float] = []

    def should_stop() -> bool:
        if time.monotonic() - begun > 1.0:
            asked.append(time.monotonic())
        return bool(asked)

    with pytest.raises(TokenizingStopped):
        make(path, tokenizer, tmp_path / "cache", num_workers=1, should_stop=should_stop)
    assert time.monotonic() - asked[0] < 2.0


@pytest.mark.usefixtures("small_blocks")
def test_a_worker_that_dies_is_an_error_and_nothing_is_kept(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os, sys; print('out of luck', file=sys.stderr); os.kill(os.getpid(), 9)"
    monkeypatch.setattr(tokenize_pool, "_START", code)
    with pytest.raises(RunFailedError, match="killed by signal 9: out of luck") as caught:
        make(corpus, tokenizer, tmp_path / "cache", num_workers=2)
    assert "memory" in caught.value.hint
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.usefixtures("small_blocks")
def test_a_worker_that_dies_of_the_same_signal_is_a_stop(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal to the whole process group may reach a worker before it reaches the run."""
    stop: list[float] = []
    monkeypatch.setattr(tokenize_pool, "_START", "import os; os.kill(os.getpid(), 15)")
    monkeypatch.setattr(cache_module, "time", SimpleNamespace(sleep=stop.append))
    with pytest.raises(TokenizingStopped):
        make(corpus, tokenizer, tmp_path / "cache", num_workers=2, should_stop=lambda: bool(stop))


def test_workers_load_no_torch(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}]; import protolith.data.tokenize_worker;"
        "print([m for m in ('torch', 'transformers', 'numpy', 'datatrove') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SCRIPT = """
import sys
sys.path[:0] = sys.argv[4:]
from pathlib import Path
from protolith.data import cache
from protolith.data.tokenizer import load_tokenizer
from tests.data.corpora import text_files
cache._IN_PROCESS_BYTES = 0
def progress(*numbers):
    print("at", numbers[0], flush=True)
corpus, tokenizer, root = map(Path, sys.argv[1:4])
made = cache.tokenize_corpus(text_files(corpus), load_tokenizer(tokenizer), cache_root=root, num_workers=2,
                             on_progress=progress)
print("done", made.reused, made.summary.tokens, flush=True)
"""


def start(corpus: Path, tmp_path: Path) -> subprocess.Popen[str]:
    """Unguarded on purpose: a script without an ``if __name__`` line must not run twice."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(corpus), str(tmp_path / "tok"), str(tmp_path / "cache")]
    command += [str(ROOT / "src"), str(ROOT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_killed_at_any_moment_nothing_half_is_used(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    big = write_jsonl(tmp_path / "big.jsonl", [document(n) for n in range(9000)])
    for lines in (1, 2, 4):
        process = start(big, tmp_path)
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline().startswith("at")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert len(leftovers(tmp_path / "cache")) == 1  # the one before was swept
    made = make(big, tokenizer, tmp_path / "cache")
    assert not made.reused
    assert leftovers(tmp_path / "cache") == []
    assert made.summary.documents == 9000


def test_leftovers_of_other_entries_are_swept_and_living_ones_are_not(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    dead, alive, foreign = (
        root / name for name in (f".aside-{'a' * 32}-{'0' * 8}", f".aside-{'b' * 32}-{'0' * 8}", ".aside")
    )
    for folder in (dead, alive, foreign):
        folder.mkdir(parents=True)
    with open(root / f".lock-{'b' * 32}", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(corpus, tokenizer, root)
    assert (dead.exists(), alive.exists(), foreign.exists()) == (False, True, True)


def test_two_processes_at_once_share_one_result(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    processes = [start(corpus, tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].splitlines()[-1].split() for process in processes]
    assert sorted(output[1] for output in outputs) == ["False", "True"]
    assert outputs[0][2] == outputs[1][2]
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "train" / "00000.ds").unlink(),
        lambda entry: os.truncate(entry / "train" / "00000.ds", 100),
        lambda entry: (entry / "manifest.json").unlink(),
        lambda entry: (entry / "manifest.json").write_text("{}"),
        lambda entry: (entry / "manifest.json").write_text("[1"),
    ],
)
def test_a_damaged_entry_is_made_again_and_said(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    first = make(corpus, tokenizer, tmp_path / "cache")
    before = tree(first.train_dir.parent)
    damage(first.train_dir.parent)
    again = make(corpus, tokenizer, tmp_path / "cache")
    assert not again.reused
    assert "damaged" in again.notes[0]
    assert tree(again.train_dir.parent) == before
    assert make(corpus, tokenizer, tmp_path / "cache").notes == ()
    assert leftovers(tmp_path / "cache") == []


def test_a_file_that_changes_while_it_is_read_is_an_error(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    files = text_files(corpus)
    changed: list[int] = []

    def grow() -> bool:
        if (tmp_path / "cache").exists() and leftovers(tmp_path / "cache") and not changed:
            changed.append(1)
            with open(corpus, "a") as out:
                out.write(json.dumps({"text": "late"}) + "\n")
        return False

    with pytest.raises(DataError, match="changed while it was read"):
        tokenize_corpus(files, tokenizer, cache_root=tmp_path / "cache", should_stop=grow)


def test_a_full_disk_is_a_typed_error(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shard_series.ShardWriter, "write_bytes", full)
    with pytest.raises(NoSpaceError):
        make(corpus, tokenizer, tmp_path / "cache")
    assert leftovers(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_is_a_typed_error(
    corpus: Path, tokenizer: TextTokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(NotAllowedError):
        make(corpus, tokenizer, tmp_path / "cache")


def test_shards_are_closed_when_they_are_large_enough(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    with ShardSeries(tmp_path / "s", 2, "tok", shard_tokens=10) as series:
        for _ in range(5):
            series.write(Documents(bytearray(b"\1\0" * 6), array("Q", [4, 2])))
        series.write(Documents())
    found, _ = find_shards([str(tmp_path / "s")])
    assert [(shard.name, shard.num_tokens) for shard in found] == [
        ("00000.ds", 12),
        ("00001.ds", 12),
        ("00002.ds", 6),
    ]
    assert (series.num_tokens, series.num_documents) == (30, 10)


def _limited(queue: Any, corpus: Path, tok: Path, root: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    made = make(corpus, load_tokenizer(tok), root, num_workers=2)
    queue.put((made.summary.tokens, made.summary.documents))


@pytest.mark.timeout(280)
def test_a_line_of_60_megabytes_fits_two_gigabytes(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    """Also one of 11 MB without a space; every process is limited (T22)."""
    block = " ".join(document(n) for n in range(500))
    path = tmp_path / "c.jsonl"
    repeats, letters = 60_000_000 // (len(block) + 1), "abcdefghij" * 1_100_000
    with open(path, "w") as out:
        for text in (document(1), (block + " ") * repeats, letters, document(2)):
            out.write(json.dumps({"text": text}) + "\n")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_limited, args=(queue, path, tmp_path / "tok", tmp_path / "cache"))
    process.start()
    process.join()
    assert process.exitcode == 0
    tokens, documents = queue.get(timeout=5)
    assert documents == 4
    once, twice = (len(tokenizer.encode((block + " ") * n)) for n in (1, 2))
    long = once + (twice - once) * (repeats - 1)
    once, twice = (len(tokenizer.encode("abcdefghij" * n)) for n in (1000, 2000))
    word = once + (twice - once) * 1099
    rest = tokenizer.encode_documents([document(1), document(2)])
    assert tokens == long + 1 + word + 1 + sum(map(len, rest))
