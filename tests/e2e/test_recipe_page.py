"""The recipe page's YAML, changed in nothing but paths, sizes and strategy, from text to a model."""

from __future__ import annotations

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from protolith.formats.rundir import RunDir, read_json, read_metrics
from tests.support import tiny

PAGE = """
recipe: pretrain
method: full

model:
  name: {folder}/model

data:
  path: {folder}/corpus.jsonl
  format: text
  packing: true
  max_seq_length: 64
  streaming: true

trainer:
  batch_size: 4
  gradient_accumulation: 8
  learning_rate: 3e-4
  num_epochs: 1
  warmup_steps: 10
  weight_decay: 0.01
  mixed_precision: bf16
  strategy: auto

logging:
  backends: [console, tensorboard, wandb]
  project: pretrain-run
  log_every_n_steps: 10

eval:
  every_n_steps: 500
  metrics: [loss, perplexity]

output:
  dir: {folder}/output/pretrain
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    tiny.write_corpus(folder / "corpus.jsonl")
    tiny.write_model(folder / "model")
    (folder / "recipe.yaml").write_text(PAGE.format(folder=folder))
    result = tiny.cli(
        "pretrain",
        folder / "recipe.yaml",
        env={"WANDB_MODE": "offline", "PROTOLITH_HOME": str(folder / "home")},
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, result.stdout + result.stderr


def test_it_runs_to_the_end_of_its_epoch(done):
    folder, output = done
    run_dir = RunDir(folder / "output" / "pretrain")
    status, ledger = read_json(run_dir.status), read_json(run_dir.ledger)
    words = sum(1 + len(tiny.document(number).split()) for number in range(400))
    assert (status["state"], status["stopped_by"]) == ("completed", "epochs")
    assert words - 16 <= ledger["trained"] < words
    steps = -(-ledger["trained"] // (64 * 32))
    assert steps <= status["step"] <= steps + 1
    numbers = read_metrics(run_dir.metrics)
    assert {1, 10, status["step"]} <= set(numbers)
    assert numbers[status["step"]]["loss/mean"] < numbers[1]["loss/mean"]
    assert numbers[status["step"]]["progress/epoch"] == 1.0
    assert output.count("init: scratch") == 1


def test_its_trackers_have_the_numbers(done):
    folder, _output = done
    run = folder / "output" / "pretrain"
    assert list((run / "monitors" / "tensorboard").rglob("events.out.tfevents.*"))
    assert list(run.rglob("offline-run-*"))


def test_nothing_of_the_text_is_kept_in_a_cache(done):
    folder, _output = done
    assert not list((folder / "home").rglob("*.ds")) if (folder / "home").exists() else True


def test_its_model_loads_in_transformers(done):
    folder, _output = done
    model_dir = folder / "output" / "pretrain" / "model"
    assert AutoModelForCausalLM.from_pretrained(model_dir).config.vocab_size > 0
    assert AutoTokenizer.from_pretrained(model_dir).eos_token == tiny.EOS


def test_the_page_itself_parses_unchanged_but_names_what_is_not_there_yet(done):
    folder, _output = done
    page = yaml.safe_load(PAGE.format(folder=folder))
    page["trainer"]["strategy"] = "deepspeed"
    (folder / "sharded.yaml").write_text(yaml.safe_dump(page))
    result = tiny.cli("pretrain", folder / "sharded.yaml")
    assert result.returncode == 2
    assert "strategy" in result.stdout + result.stderr
    assert "streaming" not in result.stderr.replace("data.streaming", "")
