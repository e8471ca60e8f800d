"""Every config under examples/ runs to its end, and shows what it says it shows."""

from __future__ import annotations

import importlib.util
import io
import json
import math
from pathlib import Path

import pytest

from protolith.config.load import load_config
from protolith.formats.rundir import RunDir, read_json, read_metrics
from protolith.training.pretrain import run
from protolith.training.request import Request, TrainState
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
CONFIGS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".yaml", ".toml"))


def prepare(folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("prepare", EXAMPLES / "prepare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.prepare(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    prepare(folder / "output/example-data")
    return folder


@pytest.fixture
def example(place, monkeypatch):
    """Runs an example as from the root of the repository; one that has run is not run again."""
    monkeypatch.chdir(place)

    def go(name: str) -> tuple[TrainState | None, RunDir]:
        loaded = load_config(EXAMPLES / name)
        run_dir = RunDir(Path(loaded.config.output.dir))
        if (run_dir.model / "model.safetensors").exists():
            return None, run_dir
        return run(loaded, Request(stream=io.StringIO())), run_dir

    return go


def losses(run_dir: RunDir, name: str = "loss/mean") -> list[float]:
    return [float(line[name]) for line in read_metrics(run_dir.metrics).values() if name in line]


def test_there_is_a_test_for_every_example():
    tested = {value for name, value in globals().items() if name.startswith("EXAMPLE_")}
    assert set(CONFIGS) == tested


EXAMPLE_MINIMAL = "minimal.yaml"
EXAMPLE_WINDOWS = "windows-and-validation.yaml"
EXAMPLE_DOCUMENTS = "documents.yaml"
EXAMPLE_ACCUMULATION = "accumulation.yaml"
EXAMPLE_TOKENS = "tokens.toml"
EXAMPLE_CONTINUE = "continue.yaml"


@pytest.mark.parametrize("name", CONFIGS)
def test_an_example_says_nothing_that_its_settings_do_not_mean(name):
    assert load_config(EXAMPLES / name).warnings == ()


def test_minimal_learns(example):
    state, run_dir = example(EXAMPLE_MINIMAL)
    if state is not None:
        assert state.step == 80 and state.stopped_by == "steps"
    curve = losses(run_dir)
    assert curve[0] == pytest.approx(math.log(384), abs=0.3)
    assert curve[-1] < 2


def test_windows_and_validation_shows_held_out_loss_and_samples(example):
    _, run_dir = example(EXAMPLE_WINDOWS)
    held_out = losses(run_dir, "val/loss")
    assert len(held_out) == 4 and held_out == sorted(held_out, reverse=True)
    samples = [json.loads(line) for line in (run_dir.monitors / "samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0, 20, 40, 60]
    assert {sample["prompt"] for sample in samples} == {"Heat and pressure turn"}
    kept = sorted(path.name for path in run_dir.checkpoints.iterdir() if path.name.startswith("step_"))
    assert kept == ["step_40", "step_60"]
    assert read_json(run_dir.model / "config.json")["num_hidden_layers"] == 3


def test_documents_counts_what_is_cut_and_padded(example):
    state, run_dir = example(EXAMPLE_DOCUMENTS)
    if state is not None:
        assert state.stopped_by == "epochs" and state.epoch == 1.0
    total = read_json(run_dir.ledger)
    assert total["cut"] > 0 and total["padded"] > 0
    assert total["read"] == total["trained"] + total["masked"] + total["cut"]
    assert len(losses(run_dir, "val/loss")) == 1


def test_accumulation_makes_one_batch_of_four_passes(example):
    _, run_dir = example(EXAMPLE_ACCUMULATION)
    batch = read_json(run_dir.plan)["batch"]
    assert (batch["micro_batch_rows"], batch["accumulation"], batch["global_rows"]) == (4, 4, 16)
    assert losses(run_dir)[-1] < losses(run_dir)[0]


def test_tokens_trains_on_shards_and_validates_on_their_own(example):
    _, run_dir = example(EXAMPLE_TOKENS)
    assert len(losses(run_dir)) == 60
    assert losses(run_dir, "val/loss")[-1] < losses(run_dir, "val/loss")[0] < 6


def test_continue_begins_where_minimal_ended(example):
    _, first = example(EXAMPLE_MINIMAL)
    _, second = example(EXAMPLE_CONTINUE)
    assert losses(second)[0] < losses(first)[0] - 3
