"""How fast is one of our optimizer steps, and how much memory does it take, against a bare transformers loop?

    python benchmarks/step.py                     # vocabulary 4,096: eager and compiled; 151,936: eager
    python benchmarks/step.py --vocab 4096 --ways bare eager --steps 20

The bare loop is what everyone writes first: ``model(input_ids, labels=...).loss.backward()``, clipping
and torch's AdamW as it comes. Ours is ``LossModel`` and fused AdamW through the single-process engine. Same
weights, same batches, fp32. Each way runs in a process of its own, so peak memory belongs to it; the ways
take turns in rounds and the best round of each counts, so a busy machine disturbs all of them alike. Peak
memory is the whole process, with the 0.45 GiB that importing torch and transformers takes. The last column
is the goal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
}
ROWS, SEQ_LEN = 4, 512
#: vocabulary -> way -> (least tokens/s as a share of the bare loop, most peak memory as a share of it)
GOALS: dict[int, dict[str, tuple[float, float]]] = {
    4096: {"eager": (1.0, 1.0), "compiled": (1.2, 1.0)},
    151_936: {"eager": (1.25, 1 / 3), "compiled": (1.25, 1 / 3)},
}


def worker(vocab: int, way: str, threads: int, rounds: int, steps: int) -> None:
    """One way, driven by lines on stdin: each line asks for one round of ``steps`` steps."""
    import torch

    from protolith.distributed.single import SingleEngine
    from protolith.model.build import build_model
    from protolith.model.loss import LossModel
    from protolith.training.optim import build_adamw, parameter_groups

    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**SHAPE, "vocab_size": vocab}))
        module = build_model(folder, seed=0).module
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(vocab, (ROWS, SEQ_LEN + 1), generator=generator)
    inputs_BT, targets_BT = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    if way == "bare":
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)

        def step() -> float:
            loss = module(input_ids=inputs_BT, labels=inputs_BT).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return float(loss.detach())
    else:
        optimizer = build_adamw(
            parameter_groups(module), learning_rate=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01
        )
        loss_model = LossModel(module)
        called = torch.compile(loss_model) if way == "compiled" else loss_model
        engine = SingleEngine(
            module, called, optimizer, device=torch.device("cpu"), precision="fp32", max_grad_norm=1.0
        )
        num_targets = targets_BT.numel()

        def step() -> float:
            loss_sum = float(engine.forward_backward(inputs_BT, targets_BT, num_targets))
            engine.step(1e-3, apply=True)
            return loss_sum / num_targets

    start = time.perf_counter()
    step()
    first_s = time.perf_counter() - start
    best_s, loss = float("inf"), 0.0
    print(json.dumps({"first_s": first_s}), flush=True)
    for _ in range(rounds):
        sys.stdin.readline()
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        best_s = min(best_s, (time.perf_counter() - start) / steps)
        print(json.dumps({"step_s": best_s, "loss": loss, "peak_bytes": peak_bytes()}), flush=True)


def peak_bytes() -> int:
    """Most memory this process ever held (the kernel's high-water mark)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def compare(
    vocab: int, ways: list[str], threads: int, rounds: int, steps: int
) -> dict[str, dict[str, float]]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    processes: dict[str, subprocess.Popen[str]] = {}
    results: dict[str, dict[str, float]] = {}
    for way in ways:
        command = [sys.executable, __file__, "--worker", way, "--vocab", str(vocab)]
        command += ["--threads", str(threads), "--rounds", str(rounds), "--steps", str(steps)]
        processes[way] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        results[way] = json.loads(read_line(processes[way]))
    for _ in range(rounds):
        for way, process in processes.items():
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            results[way].update(json.loads(read_line(process)))
    for process in processes.values():
        process.communicate()
    return results


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended early with code {process.wait()}")
    return line


def table(vocab: int, results: dict[str, dict[str, float]]) -> None:
    bare = results["bare"]
    print(f"\nvocabulary {vocab:,}, {ROWS} x {SEQ_LEN} tokens a step, fp32")
    print(f"{'way':<10}{'tokens/s':>10}{'of bare':>9}{'peak GiB':>10}{'of bare':>9}{'first step':>12}  goal")
    for way, result in results.items():
        speed, memory = bare["step_s"] / result["step_s"], result["peak_bytes"] / bare["peak_bytes"]
        goal = GOALS.get(vocab, {}).get(way)
        verdict = ""
        if goal is not None:
            met = speed >= goal[0] and memory <= goal[1]
            verdict = f">= {goal[0]:.2f}x, <= {goal[1]:.2f} memory: {'met' if met else 'NOT met'}"
        print(
            f"{way:<10}{ROWS * SEQ_LEN / result['step_s']:>10,.0f}{speed:>8.2f}x"
            f"{result['peak_bytes'] / 2**30:>10.2f}{memory:>8.2f}x{result['first_s']:>10.1f} s  {verdict}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[4096, 151_936])
    parser.add_argument("--ways", nargs="+", default=["bare", "eager", "compiled"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--steps", type=int, default=0, help="steps a round; default: 8, or 2 at a large vocabulary"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for vocab in options.vocab:
        steps = options.steps or (8 if vocab <= 32_768 else 2)
        if options.worker:
            worker(vocab, options.worker, options.threads, options.rounds, steps)
        else:
            table(vocab, compare(vocab, options.ways, options.threads, options.rounds, steps))


if __name__ == "__main__":
    main()
