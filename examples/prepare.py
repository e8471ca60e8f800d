"""Make what the examples train on: text, a tokenizer, a model folder, token shards.

    python examples/prepare.py            # from the repository root; writes output/example-data

The text is made of sentences about stones, drawn from a small grammar, so that a very small model learns
something within seconds. Nothing is downloaded, and the same files come out every time.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from protolith.data.tokenizer import TextTokenizer
from protolith.data.train_tokenizer import train_tokenizer
from protolith.formats.shard_files import ShardWriter

DEFAULT_FOLDER = Path("output/example-data")
VOCABULARY = 384

STONES = ("granite", "gneiss", "basalt", "marble", "slate", "schist", "limestone", "quartzite")
LOOKS = ("grey", "dark", "pale", "banded", "folded", "old", "heavy", "fine-grained")
PLACES = ("under the hill", "along the river", "in the quarry", "below the moraine", "by the lake")
VERBS = ("lies", "rests", "weathers", "breaks", "shines")
BECOMES = {"limestone": "marble", "granite": "gneiss", "sandstone": "quartzite", "shale": "slate"}

#: A small Qwen3. The vocabulary and the end-of-text token are filled in from the tokenizer.
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
}


def document(number: int) -> str:
    """Document ``number``: 3 to 30 sentences."""
    draw = random.Random(number)
    sentences = []
    for _ in range(draw.randint(3, 30)):
        if draw.random() < 0.3:
            before, after = draw.choice(sorted(BECOMES.items()))
            sentences.append(f"Heat and pressure turn {before} into {after}.")
        else:
            look, stone, verb, place = (draw.choice(words) for words in (LOOKS, STONES, VERBS, PLACES))
            sentences.append(f"The {look} {stone} {verb} {place}.")
    return " ".join(sentences)


def write_jsonl(path: Path, numbers: range) -> None:
    with open(path, "w", encoding="utf-8") as out:
        for number in numbers:
            out.write(json.dumps({"text": document(number)}) + "\n")


def write_shard(path: Path, tokenizer: TextTokenizer, texts: Iterator[str]) -> None:
    """One ``.ds`` shard with its index and metadata, as datatrove would write it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with ShardWriter(path, tokenizer.token_bytes, tokenizer.name) as shard:
        for ids in tokenizer.encode_documents(list(texts)):
            shard.write(ids)


def prepare(folder: Path = DEFAULT_FOLDER) -> None:
    """Write everything below ``folder``; what is there is written anew."""
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = range(0, 600), range(600, 640)
    write_jsonl(folder / "corpus.jsonl", train)
    write_jsonl(folder / "held-out.jsonl", held_out)
    model = folder / "model"
    tokenizer = train_tokenizer([str(folder / "corpus.jsonl")], VOCABULARY, model, overwrite=True)
    config = {**MODEL, "vocab_size": tokenizer.vocab_size, "eos_token_id": tokenizer.eos_id}
    (model / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    half = len(train) // 2
    write_shard(folder / "shards/train/00000.ds", tokenizer, map(document, train[:half]))
    write_shard(folder / "shards/train/00001.ds", tokenizer, map(document, train[half:]))
    write_shard(folder / "shards/val/00000.ds", tokenizer, map(document, held_out))


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    prepare(target)
    sys.stdout.write(f"wrote {target}: corpus.jsonl, held-out.jsonl, model/, shards/train/, shards/val/\n")
