"""Calling the command in this process, and a small exported model and run to call it on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protolith.cli.main import main
from protolith.formats import checkpoint_files


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def protolith(capsys) -> Callable[..., Answer]:
    """``protolith("runs", folder)`` -> exit code, stdout, stderr."""

    def call(*words: object) -> Answer:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.jsonl"
    words = [
        "rain",
        "falls",
        "on",
        "the",
        "stone",
        "and",
        "the",
        "stone",
        "remembers",
        "every",
        "river",
        "that",
        "ran",
        "over",
        "it",
    ]
    with open(path, "w", encoding="utf-8") as out:
        for number in range(60):
            text = " ".join(words[(number * k) % len(words)] for k in range(5, 5 + number % 40))
            out.write(json.dumps({"text": f"document {number}: {text}"}) + "\n")
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory, corpus) -> Path:
    """A Hugging Face model folder: a tokenizer of 300 entries, two thin layers."""
    from protolith.data.train_tokenizer import train_tokenizer
    from protolith.model.build import build_model
    from protolith.model.export import export_model

    root = tmp_path_factory.mktemp("model")
    source = root / "source"
    tokenizer = train_tokenizer([str(corpus)], 300, source)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_id,
    }
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    built = build_model(source, seed=1)
    export_model(built.module, built.hf_config, tokenizer, root / "exported")
    return root / "exported"


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Path]:
    """A run's folder as a trainer leaves it, without a trainer."""

    def make(name: str = "run", *, status: dict[str, Any] | None = None, metrics: list[Any] = ()) -> Path:
        root = tmp_path / "output" / name
        (root / "monitors").mkdir(parents=True)
        value = {
            "phase": "done",
            "state": "completed",
            "step": 20,
            "total": 20,
            "tokens": 5_120,
            "heartbeat": datetime.now(UTC).isoformat(),
            "attempt": 1,
            "pid": 1,
            "stopped_by": "steps",
            "error": None,
        }
        (root / "status.json").write_text(json.dumps({**value, **(status or {})}), encoding="utf-8")
        config = {
            "recipe": "pretrain",
            "model": {"name": "tiny"},
            "data": {"max_seq_length": 16, "packing": True},
        }
        (root / "config.json").write_text(json.dumps(config), encoding="utf-8")
        lines = [line if isinstance(line, str) else json.dumps(line) for line in metrics]
        (root / "monitors" / "metrics.jsonl").write_text(
            "".join(line + "\n" for line in lines), encoding="utf-8"
        )
        return root

    return make


@pytest.fixture
def add_checkpoint(model_dir) -> Callable[[Path, int], Path]:
    """A complete checkpoint of ``run`` at ``step``, holding the small model."""

    def add(run: Path, step: int) -> Path:
        aside = checkpoint_files.begin(run / "checkpoints", step)
        for file in model_dir.iterdir():
            shutil.copy(file, aside)
        (aside / "optimizer.safetensors").write_bytes(b"moments")
        return checkpoint_files.commit(aside, step)

    return add
