"""``protolith demo``: the whole job on text that every Python installation carries, with no network.

The parts are those that a person uses on their own text: train a tokenizer, describe a model, write a
recipe, pretrain, sample. Everything stays in the folder, to look at and to run again.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from protolith.errors import ConflictError

_VOCABULARY = 2048
_CORPUS_BYTES = 6_000_000
_CHUNK_CHARACTERS = 6_000

_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
}

_RECIPE = """\
# The recipe of `protolith demo`. Run it again with:  protolith pretrain {recipe} --overwrite
recipe: pretrain
model:
  name: {model}
data:
  path: {corpus}
  eval_split: 0.03
  max_seq_length: 256
trainer:
  batch_size: 8
  learning_rate: 3.0e-3
  max_steps: {steps}
  warmup_steps: 30
  weight_decay: 0.05
  min_lr_ratio: 0.05
  mixed_precision: fp32
  checkpoint_every_n_steps: 250
  keep_last: 2
logging:
  log_every_n_steps: 20
eval:
  every_n_steps: 150
output:
  dir: {run}
"""


def demo(
    dir: Annotated[Path, typer.Option(help="Folder for the demo's files.")] = Path("demo"),
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=2)] = 750,
) -> None:
    """Learn a language model from the text of this Python installation, in about three minutes."""
    if dir.exists() and any(dir.iterdir()) and not (dir / "recipe.yaml").exists():
        raise ConflictError(
            f"{dir} holds other files", where=str(dir), hint="give an empty folder with --dir"
        )
    dir.mkdir(parents=True, exist_ok=True)
    corpus, model_dir, recipe, run_dir = dir / "corpus.jsonl", dir / "model", dir / "recipe.yaml", dir / "run"

    print(f"1. corpus: the standard library's sources and help topics -> {corpus}")
    documents, size = _write_corpus(corpus)
    print(f"   {documents:,} documents, {size / 1e6:.1f} MB")

    print(f"2. tokenizer: protolith tokenizer train {corpus} --vocab-size {_VOCABULARY} --output {model_dir}")
    from protolith.data.train_tokenizer import train_tokenizer

    tokenizer = train_tokenizer([str(corpus)], vocab_size=_VOCABULARY, output_dir=model_dir, overwrite=True)
    config = {
        **_MODEL,
        "vocab_size": tokenizer.vocab_size,
        "eos_token_id": tokenizer.eos_id,
        "bos_token_id": None,
    }
    (model_dir / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(f"   {tokenizer.vocab_size:,} tokens; {model_dir}/config.json describes a small Qwen3")

    recipe.write_text(
        _RECIPE.format(recipe=recipe, model=model_dir, corpus=corpus, run=run_dir, steps=steps),
        encoding="utf-8",
    )
    print(f"3. protolith pretrain {recipe} --overwrite")
    from protolith.config.load import load_config
    from protolith.training.pretrain import run
    from protolith.training.request import Request

    state = run(load_config(recipe).config, Request(overwrite=True))
    if state.resumable:
        raise typer.Exit(8)
    _conclude(state.metrics, recipe, run_dir, tokenizer)


def _conclude(metrics: dict[str, Any], recipe: Path, run_dir: Path, tokenizer: Any) -> None:
    import torch

    from protolith.config.load import load_config
    from protolith.config.mixture import ONLY_SOURCE
    from protolith.data.unigram import unigram_loss
    from protolith.formats.rundir import RunDir, read_metrics
    from protolith.model.export import load_exported
    from protolith.model.generate import generate
    from protolith.training.datasets import open_datasets

    config = load_config(recipe).config
    data = open_datasets(
        config,
        tokenizer,
        vocab_size=tokenizer.vocab_size,
        working=lambda *_: None,
        should_stop=lambda: False,
    )
    unigram = unigram_loss(data.rows, data.held_out[ONLY_SOURCE], tokenizer.vocab_size)
    curve = read_metrics(RunDir(run_dir).metrics)
    print("\n4. what it learned (mean loss per token of held-out text, in nats)")
    for step, numbers in curve.items():
        if "val/loss" in numbers:
            print(f"   step {step:>4}   validation loss {numbers['val/loss']:.3f}")
    print(f"   a unigram model of the same corpus: {unigram:.3f}")
    print(f"   this model:                         {metrics['val/loss']:.3f}")

    prompt = "def __init__(self"
    module = load_exported(run_dir / "model")
    with torch.no_grad():
        ids = generate(
            module,
            tokenizer.encode(prompt),
            eos_id=tokenizer.eos_id,
            max_new_tokens=60,
            temperature=0.7,
            seed=7,
        )
    print(f"\n5. protolith generate {run_dir} --prompt {prompt!r} --temperature 0.7 --seed 7")
    print("   " + (prompt + tokenizer.decode(ids)).replace("\n", "\n   "))
    print(f"\nA Hugging Face model lies in {run_dir}/model, the curves in {run_dir}/monitors/metrics.jsonl.")
    sys.stdout.flush()


def _write_corpus(path: Path) -> tuple[int, int]:
    count, size = 0, 0
    with open(path, "w", encoding="utf-8") as out:
        for text in _texts():
            line = json.dumps({"text": text}, ensure_ascii=False) + "\n"
            out.write(line)
            count, size = count + 1, size + len(line.encode())
            if size >= _CORPUS_BYTES:
                break
    return count, size


def _texts() -> Iterator[str]:
    """Help topics first, then library sources in a fixed order, long files in pieces."""
    try:
        from pydoc_data import topics

        yield from (topics.topics[name] for name in sorted(topics.topics))
    except ImportError:
        pass  # some distributions leave the topics out; the sources are enough
    root = Path(sysconfig.get_paths()["stdlib"])
    for source in sorted(root.glob("*.py")) + sorted(root.glob("*/*.py")):
        if source.parent.name in ("test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3"):
            continue
        try:
            text = source.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for start in range(0, len(text), _CHUNK_CHARACTERS):
            piece = text[start : start + _CHUNK_CHARACTERS]
            if piece.strip():
                yield piece
