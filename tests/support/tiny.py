"""The smallest things that can be pretrained on: a corpus, a tokenizer, a model, a recipe.

TINY is 2 layers, hidden 64, 4 heads, rows of 64, batch 2, CPU, fp32. CORPUS is 400 documents, document i
being the word ``docNNNN`` and 5 to 200 words drawn from a list of 50 with seed i.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer, models, pre_tokenizers

from protolith.config.load import load_config
from protolith.formats.rundir import RunDir, read_metrics
from protolith.training.pretrain import run
from protolith.training.request import Request, TrainState

WORDS = [a + b for a in ("ka", "lo", "mi", "nu", "pe") for b in "abcdefghij"]
EOS = "<|endoftext|>"


def document(number: int, low: int = 5, high: int = 200) -> str:
    draw = random.Random(number)
    return " ".join([f"doc{number:04d}", *draw.choices(WORDS, k=draw.randint(low, high))])


def write_corpus(path: Path, documents: int = 400, *, first: int = 0, low: int = 5, high: int = 200) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps({"text": document(first + i, low, high)}) for i in range(documents))
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def write_tokenizer(folder: Path, words: list[str] | None = None, **special: str) -> Path:
    """A word-level tokenizer: one token a word, so that counts can be done in the head."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [EOS, "<unk>", *(words or [*WORDS, *(f"doc{i:04d}" for i in range(400))])]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(entries)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([EOS])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"eos_token": EOS, "unk_token": "<unk>", **special}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**6, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def model_config(family: str = "qwen3", *, vocab_size: int, **changes: Any) -> dict[str, Any]:
    names = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
    config: dict[str, Any] = {
        "architectures": [names[family]],
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": vocab_size,
        "max_position_embeddings": 512,
        "tie_word_embeddings": family == "qwen3",
        "rms_norm_eps": 1e-6,
        "attention_dropout": 0.0,
        "eos_token_id": 0,
        "bos_token_id": None,
        "pad_token_id": None,
    }
    return {**config, **changes}


def write_model(folder: Path, family: str = "qwen3", **changes: Any) -> Path:
    """A directory with tokenizer and config, and no weights."""
    write_tokenizer(folder)
    entries = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    config = model_config(family, **{"vocab_size": entries, **changes})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    """A recipe as a dictionary; ``changes`` are ``section__key=value``."""
    value: dict[str, Any] = {
        "recipe": "pretrain",
        "model": {"name": str(folder / "model"), "compile": False},
        "data": {"path": str(folder / "corpus.jsonl"), "max_seq_length": 64, "seed": 7, "num_workers": 0},
        "trainer": {
            "batch_size": 2,
            "learning_rate": 1e-3,
            "mixed_precision": "fp32",
            "seed": 7,
            "max_steps": 12,
            "checkpoint_every_n_steps": 5,
        },
        "logging": {"log_every_n_steps": 1},
        "eval": {"every_n_steps": 1000},
        "output": {"dir": str(folder / "run")},
    }
    for name, change in changes.items():
        section, key = name.split("__")
        if change is None:
            value[section].pop(key, None)
        else:
            value.setdefault(section, {})[key] = change
    return value


def write_recipe(folder: Path, **changes: Any) -> Path:
    path = folder / f"recipe{os.environ.get('RANK', '')}.yaml"  # several ranks write at one time
    path.write_text(yaml.safe_dump(recipe(folder, **changes), sort_keys=False))
    return path


def train(folder: Path, *, request: Request | None = None, **changes: Any) -> TrainState:
    """Run a recipe in this process."""
    return run(load_config(write_recipe(folder, **changes)).config, request or Request())


def losses(run_dir: Path) -> dict[int, float]:
    """Training loss by step, as a reader of the metrics file sees it."""
    values = read_metrics(RunDir(Path(run_dir)).metrics)
    return {step: line["loss/mean"] for step, line in values.items() if "loss/mean" in line}


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **changes}


def cli(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "protolith", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", 120),
        env=environment(**options.pop("env", {})),
        check=False,
        **options,
    )


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """The real command, running, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "protolith", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=environment(**options.pop("env", {})),
        **options,
    )
