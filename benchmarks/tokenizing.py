"""How fast does ``protolith tokenize`` work, against datatrove's pipeline called directly?

    python benchmarks/tokenizing.py                  # 24 MB of this machine's Python sources, 3 rounds
    python benchmarks/tokenizing.py --megabytes 60 --vocab 32000

Both sides tokenize the same JSONL file with the same tokenizer in one process, in turn:

- datatrove directly: ``JsonlReader`` and ``DocumentTokenizer`` without shuffling, under its local executor;
- the job: our reader and our ``DocumentTokenizer`` under the same executor, and then all that follows: shards
  joined, proved and digested;
- the command: the same as a person starts it, with the start of its processes.

The best round of each counts; processor time is the fairer measure on a machine that others use.
 The ids are compared: both sides must have made the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils.logging import logger

from protolith.data.shard_series import SHARD_TOKENS
from protolith.data.tokenize_block import BlockOptions
from protolith.data.tokenize_executors import build
from protolith.data.tokenize_inputs import find_inputs
from protolith.data.tokenize_job import tokenize
from protolith.data.tokenize_join import join_parts, publish
from protolith.data.tokenize_plan import identity_of, make_plan, plan_of, write_plan
from protolith.data.tokenize_report import JobDir, TaskReport
from protolith.data.tokenize_settings import ExecutorSettings
from protolith.data.tokenize_worker import write_job
from protolith.data.tokenizer import load_tokenizer
from protolith.data.train_tokenizer import train_tokenizer

GOAL = 0.97


def write_corpus(path: Path, size_bytes: int) -> None:
    """Python sources, one file a document, over and over until there is enough."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = []
    for source in sorted(root.rglob("*.py")):
        try:
            texts.append(source.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    written = turn = 0
    with open(path, "w", encoding="utf-8") as out:
        while written < size_bytes:
            for text in texts:
                written += out.write(json.dumps({"text": f"{turn} {text}"}, ensure_ascii=False) + "\n")
                if written >= size_bytes:
                    break
            turn += 1


def by_datatrove(corpus: Path, tokenizer_dir: Path, eos_token: str, out: Path) -> None:
    steps = [
        JsonlReader(str(corpus.parent), glob_pattern=corpus.name),
        DocumentTokenizer(
            str(out),
            str(tokenizer_dir / "tokenizer.json"),
            eos_token=eos_token,
            shuffle_documents=False,
        ),
    ]
    LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(out.with_suffix(".log"))).run()


def by_job(corpus: Path, tokenizer_dir: Path, out: Path) -> None:
    """What the command does, in this process."""
    tokenizer = load_tokenizer(tokenizer_dir)
    files, _notes = find_inputs([str(corpus)])
    job = JobDir(out / ".tokenize")
    job.make()
    plan = make_plan(files, identity_of(files, tokenizer, "text", SHARD_TOKENS), "text")
    write_job(job.root, tokenizer, BlockOptions())
    write_plan(job.root, plan)
    build(job.root, ExecutorSettings(workers=1)).run()
    plan_of.cache_clear()
    results = [TaskReport.read(job.result(task)) for task in range(len(plan.tasks))]
    whole = [report for report in results if report is not None]
    join_parts(job, whole, tokenizer, SHARD_TOKENS, {}, lambda done, total: None)
    publish(job, out)


def by_command(corpus: Path, tokenizer_dir: Path, out: Path) -> None:
    tokenize([str(corpus)], tokenizer_dir, out, settings=ExecutorSettings(workers=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=24)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logger.remove()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        corpus, tokenizer_dir = root / "corpus.jsonl", root / "tokenizer"
        write_corpus(corpus, int(options.megabytes * 1e6))
        train_tokenizer([str(corpus)], options.vocab, tokenizer_dir, max_chars=4_000_000)
        eos_token = load_tokenizer(tokenizer_dir).eos_token
        ways: dict[str, Callable[[Path], None]] = {
            "datatrove directly": lambda out: by_datatrove(corpus, tokenizer_dir, eos_token, out),
            "the job": lambda out: by_job(corpus, tokenizer_dir, out),
            "the command": lambda out: by_command(corpus, tokenizer_dir, out),
        }
        best = dict.fromkeys(ways, float("inf"))
        best_cpu = dict.fromkeys(ways, float("inf"))
        ids: dict[str, bytes] = {}
        for _ in range(options.rounds):
            for name, work in ways.items():
                out = root / "out"
                started_s, started_cpu_s = time.perf_counter(), sum(os.times()[:4])
                with open(os.devnull, "w") as nowhere:  # datatrove speaks on stderr
                    stderr, sys.stderr = sys.stderr, nowhere
                    try:
                        work(out)
                    finally:
                        sys.stderr = stderr
                best[name] = min(best[name], time.perf_counter() - started_s)
                best_cpu[name] = min(best_cpu[name], sum(os.times()[:4]) - started_cpu_s)
                ids[name] = b"".join(path.read_bytes() for path in sorted(out.glob("*.ds")))
                shutil.rmtree(out)
                shutil.rmtree(out.with_suffix(".log"), ignore_errors=True)
        if len(set(ids.values())) != 1:
            print("the ids differ")
            return 1
        tokens = len(next(iter(ids.values()))) // 2
        bare, bare_cpu = best["datatrove directly"], best_cpu["datatrove directly"]
        print(f"{tokens:,} tokens, one worker\n{'':22}tokens/s   of datatrove   by CPU time")
        for name, seconds in best.items():
            by_cpu = "-" if name == "the command" else f"{bare_cpu / best_cpu[name]:.2f}x"
            print(f"{name:22}{tokens / seconds:8,.0f}   {bare / seconds:10.2f}x   {by_cpu:>11}")
        print(f"goal: the job at least {GOAL}x of datatrove")
    return 0


if __name__ == "__main__":
    sys.exit(main())
