"""How fast are random rows, what does their order cost in memory, and does a step wait for its data?

    python benchmarks/data.py
    python benchmarks/data.py --seq-len 512 --rows 4096

Three ways to random rows of the same shards, in turn, in one process; the best of several rounds of each:

    ours        batches of 64 from ``RowStream``: inputs and targets, across shards, nothing dropped
    datatrove   ``DatatroveFolderDataset[i]``; with positions it reads its index anew for each row
    numpy       one memmap a shard and a permutation array of all rows, as people write it

The order of 10^9 rows: our permutation against ``numpy.random.permutation``, which is not made but computed
(8 bytes a row). The loader's time for a step is held against a step of the 5.77 M model of ``step.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import torch
from datatrove.utils.dataset import DatatroveFolderDataset

from protolith.data.loader import StepLoader
from protolith.data.rows import RowStream
from protolith.data.sampler import Permutation, permutation_key
from protolith.data.shard_folders import find_shards
from protolith.data.shards import TokenPool
from protolith.data.window_rows import WindowRows
from protolith.distributed.single import SingleEngine
from protolith.formats.shard_files import ShardWriter
from protolith.model.build import build_model
from protolith.model.loss import LossModel
from protolith.training.optim import build_adamw, parameter_groups
from protolith.training.step import optimizer_step

SHAPE = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "vocab_size": 4096,
}
VOCAB, BATCH, NUM_SHARDS = 4096, 64, 8
MANY = 10**9


def write_shards(folder: Path, num_tokens: int) -> None:
    draw = np.random.default_rng(0)
    for number in range(NUM_SHARDS):
        with ShardWriter(folder / f"{number:05d}.ds", 2, "benchmark") as shard:
            for _ in range(num_tokens // NUM_SHARDS // 1000):
                shard.write(draw.integers(1, VOCAB, 1000).tolist())


def ways(folder: Path, seq_len: int) -> dict[str, Callable[[int], None]]:
    """Each reads so many random rows."""
    shards, _notes = find_shards([str(folder)])
    plain = RowStream(WindowRows(TokenPool.open(shards, vocab_size=VOCAB), seq_len), seed=1)
    masked = RowStream(WindowRows(TokenPool.open(shards), seq_len, document_mask=True), seed=1)

    def ours(stream: RowStream) -> Callable[[int], None]:
        def read(rows: int) -> None:
            for start in range(0, rows, BATCH):
                stream.read(start, start + BATCH)

        return read

    def datatrove(positions: bool) -> Callable[[int], None]:
        dataset = DatatroveFolderDataset(
            str(folder), seq_len=seq_len, token_size=2, recursive=False, return_positions=positions
        )
        order = np.random.default_rng(2).permutation(len(dataset)).tolist()

        def read(rows: int) -> None:
            for number in range(rows):
                dataset[order[number % len(order)]]

        return read

    maps = [np.memmap(shard.path, dtype=np.uint16, mode="r") for shard in shards]
    length = len(maps[0])
    order = np.random.default_rng(3).permutation(NUM_SHARDS * length // seq_len - 1)

    def numpy_way(rows: int) -> None:
        for first in range(0, rows, BATCH):
            inputs, targets = (np.empty((BATCH, seq_len), dtype=np.int64) for _ in range(2))
            for place in range(BATCH):
                number, start = divmod(int(order[(first + place) % len(order)]) * seq_len, length)
                window = maps[number][start : start + seq_len + 1]
                if len(window) <= seq_len:
                    window = np.concatenate([window, maps[number + 1][: seq_len + 1 - len(window)]])
                inputs[place], targets[place] = window[:-1], window[1:]

    return {
        "ours": ours(plain),
        "numpy": numpy_way,
        "datatrove": datatrove(False),
        "ours, with positions": ours(masked),
        "datatrove, with positions": datatrove(True),
    }


def rows_a_second(read: Callable[[int], None], rows: int) -> float:
    started = time.perf_counter()
    read(rows)
    return rows / (time.perf_counter() - started)


def random_rows(folder: Path, seq_len: int, rows: int, rounds: int) -> dict[str, float]:
    found = ways(folder, seq_len)
    best = dict.fromkeys(found, 0.0)
    for _ in range(rounds):
        for name, read in found.items():
            count = min(rows, 64) if name == "datatrove, with positions" else rows
            best[name] = max(best[name], rows_a_second(read, count))
    return best


def order_bytes() -> int:
    """What the order of 10^9 rows takes while it is used: the growth of this process."""
    process = psutil.Process()
    order = Permutation(MANY, permutation_key(1, 0, "rows"))
    order.take(np.arange(1024))
    before = process.memory_info().rss
    for start in range(0, 100 * 1024, 1024):
        order.take(np.arange(start, start + 1024))
    return max(process.memory_info().rss - before, 1 << 16)


def loader_share(folder: Path, steps: int) -> tuple[float, float]:
    """(share of a step's time that making its batches takes, share that the step waits for them)."""
    torch.set_num_threads(1)
    shards, _notes = find_shards([str(folder)])
    stream = RowStream(WindowRows(TokenPool.open(shards, vocab_size=VOCAB), 512), seed=1)
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(SHAPE))
        module = build_model(place, seed=0).module
    optimizer = build_adamw(
        parameter_groups(module), learning_rate=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
    )
    engine = SingleEngine(
        module,
        LossModel(module),
        optimizer,
        device=torch.device("cpu"),
        precision="fp32",
        max_grad_norm=1.0,
    )
    making, waiting, stepping = 0.0, 0.0, 0.0
    with StepLoader(stream, micro_batch_rows=4, stop_row=4 * steps) as alone:
        started = time.perf_counter()
        for _ in alone:
            pass
        making = time.perf_counter() - started
    with StepLoader(stream, micro_batch_rows=4, stop_row=4 * steps, num_workers=2) as loader:
        since = time.perf_counter()
        for batch in loader:
            waiting += time.perf_counter() - since
            started = time.perf_counter()
            optimizer_step(engine, batch, 1e-4)
            since = time.perf_counter()
            stepping += since - started
    return making / stepping, waiting / stepping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, 40_000_000)
        speed = random_rows(folder, asked.seq_len, asked.rows, asked.rounds)
        making, waiting = loader_share(folder, asked.steps)
    masked = speed["ours, with positions"] / speed["datatrove, with positions"]
    lines = [
        ("random rows/s, of datatrove", speed["ours"] / speed["datatrove"], "at least 10x"),
        ("random rows/s with positions, of datatrove", masked, "at least 10x"),
        ("random rows/s, of numpy memmap", speed["ours"] / speed["numpy"], "at least 3x"),
        ("memory of the order of 10^9 rows, of numpy", order_bytes() / (8 * MANY), "at most 0.01x"),
        ("making a step's batches, of the step", making, "below 0.01x"),
        ("waiting for a step's batches, of the step", waiting, "below 0.01x"),
    ]
    print(f"rows of {asked.seq_len}; {speed['ours']:,.0f} rows/s in this process (warm)")
    for what, ratio, goal in lines:
        print(f"{what:<46} {ratio:>9.4g}x   goal: {goal}")


if __name__ == "__main__":
    main()
