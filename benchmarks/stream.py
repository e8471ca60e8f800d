"""How many tokens a second come out of streamed text, against `datasets` streaming with map and pack?

    python benchmarks/stream.py                        # 0, 1 and 2 processes
    python benchmarks/stream.py --workers 2 --documents 40000 --rounds 5

Both sides read the same JSONL files, tokenize with the same BPE (one thread a process) and give batches of 16
rows of 512 packed tokens as tensors. Theirs is what everyone writes: ``load_dataset(..., streaming=True)``,
``map`` with the tokenizer, ``map`` that joins and cuts, a ``DataLoader``. Ours is ``StreamLoader``, with its
shuffling (theirs does none here). Theirs is spared ``with_format("torch")``, which makes a tensor of every
single number and halves its speed: lists become tensors once a batch. The files are as many as make every
process of theirs busy. The sides take turns in rounds, and the best round of each counts, so a busy machine
disturbs both alike. All is timed, from opening the files to the last batch, starting processes included.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1")

import datasets
import torch
from transformers import PreTrainedTokenizerFast

from protolith.data.files import find_files
from protolith.data.stream_loader import StreamLoader
from protolith.data.streams import TextStream
from protolith.data.text import TEXT_SUFFIXES
from protolith.data.tokenizer import load_tokenizer
from protolith.data.train_tokenizer import train_tokenizer

ROWS, SEQ_LEN, VOCAB, GOAL = 16, 512, 16_384, 2.0


def texts(documents: int) -> Iterator[str]:
    """Documents of some 250 words that are as unequally frequent as those of a language."""
    chance = random.Random(0)
    syllables = ["".join(pair) for pair in itertools.product("bcdfghklmnprstvz", "aeiou")]
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 5))) for _ in range(30_000)]
    weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(words))))
    for _ in range(documents):
        drawn = chance.choices(words, cum_weights=weights, k=chance.randint(50, 450))
        sentences = [drawn[at : at + 12] for at in range(0, len(drawn), 12)]
        yield " ".join(" ".join(words).capitalize() + "." for words in sentences)


def write_corpus(folder: Path, documents: int, files: int) -> None:
    outs = [open(folder / f"{number:02}.jsonl", "w") for number in range(files)]  # noqa: SIM115
    for number, text in enumerate(texts(documents)):
        outs[number % files].write(json.dumps({"text": text, "id": number}) + "\n")
    for out in outs:
        out.close()


def ours(folder: Path, tokenizer_dir: Path, workers: int) -> Iterator[torch.Tensor]:
    files = find_files([str(folder)], suffixes=TEXT_SUFFIXES, what="text").files
    stream = TextStream(files, load_tokenizer(tokenizer_dir), seq_len=SEQ_LEN)
    with StreamLoader(stream, micro_batch_rows=ROWS, num_epochs=1, num_workers=workers) as loader:
        for step in loader:
            yield step.micro_batches[0].inputs


def theirs(folder: Path, tokenizer_dir: Path, workers: int) -> Iterator[torch.Tensor]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    eos = tokenizer.eos_token_id

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found = tokenizer(batch["text"], add_special_tokens=False, return_attention_mask=False)
        return {"input_ids": [[*ids, eos] for ids in found["input_ids"]]}

    def pack(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        joined = list(itertools.chain.from_iterable(batch["input_ids"]))
        whole = len(joined) // SEQ_LEN * SEQ_LEN
        return {"input_ids": [joined[at : at + SEQ_LEN] for at in range(0, whole, SEQ_LEN)]}

    paths = sorted(map(str, folder.glob("*.jsonl")))
    rows = datasets.load_dataset("json", data_files=paths, split="train", streaming=True)
    rows = rows.map(tokenize, batched=True, remove_columns=["text", "id"]).map(pack, batched=True)
    yield from torch.utils.data.DataLoader(rows, batch_size=ROWS, num_workers=workers, collate_fn=stacked)


def stacked(rows: list[dict[str, list[int]]]) -> torch.Tensor:
    return torch.tensor([row["input_ids"] for row in rows])


def tokens_per_second(side: Callable[..., Iterator[torch.Tensor]], *arguments: Any) -> float:
    started = time.perf_counter()
    tokens = sum(batch.numel() for batch in side(*arguments))
    return tokens / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="processes of each side")
    parser.add_argument("--documents", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        folder, tokenizer_dir = Path(name, "text"), Path(name, "tokenizer")
        folder.mkdir()
        write_corpus(folder, options.documents, files=max(1, *options.workers))
        train_tokenizer(texts(2000), VOCAB, str(tokenizer_dir))
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{options.documents:,} documents, {size / 1e6:.0f} MB, {len(os.sched_getaffinity(0))} cores\n")
        print("| processes | ours, tokens/s | datasets, tokens/s | ratio | goal |")
        print("|---|---|---|---|---|")
        for workers in options.workers:
            best = dict.fromkeys((ours, theirs), 0.0)
            for _ in range(options.rounds):
                for side in best:
                    best[side] = max(best[side], tokens_per_second(side, folder, tokenizer_dir, workers))
            ratio = best[ours] / best[theirs]
            verdict = f"{GOAL:.0f}x: {'met' if ratio >= GOAL else 'missed'}"
            speeds = f"{best[ours]:,.0f} | {best[theirs]:,.0f}"
            print(f"| {workers} | {speeds} | {ratio:.2f}x | {verdict} |", flush=True)


if __name__ == "__main__":
    main()
