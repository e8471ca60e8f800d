"""``protolith.pretrain`` as people call it (T49)."""

from __future__ import annotations

import subprocess
import sys

import pytest

import protolith
from protolith.errors import ConfigError, OutputInUseError, UnknownKeyError, UsageError
from tests.support import tiny


@pytest.fixture
def place(tmp_path):
    tiny.write_corpus(tmp_path / "corpus.jsonl", 40)
    tiny.write_model(tmp_path / "model")
    return tmp_path


def call(place, **changes):
    arguments = {
        "model": str(place / "model"),
        "dataset": str(place / "corpus.jsonl"),
        "format": "text",
        "num_epochs": 1,
        "learning_rate": 3e-4,
        "batch_size": 4,
        "output_dir": str(place / "run"),
        "mixed_precision": "fp32",
    }
    return protolith.pretrain(**(arguments | changes))


def test_the_call_of_the_recipe_page(place, monkeypatch):
    """Rows of 2048 from a corpus of a few thousand tokens, output in the default place."""
    monkeypatch.chdir(place)
    tiny.write_corpus(place / "corpus.jsonl", 100)
    state = protolith.pretrain(
        model=str(place / "model"),
        dataset="corpus.jsonl",
        format="text",
        num_epochs=1,
        learning_rate=3e-4,
        batch_size=4,
    )
    assert state.stopped_by == "epochs"
    assert state.global_step == state.step >= 1
    assert state.epoch == 1.0
    assert state.metrics["loss"] > 0
    assert (place / "output" / "pretrain" / "model" / "model.safetensors").is_file()


def test_a_second_call_needs_a_word_and_resumes_with_it(place):
    first = call(place, max_steps=4, num_epochs=9)
    with pytest.raises(OutputInUseError):
        call(place, max_steps=4, num_epochs=9)
    again = call(place, max_steps=4, num_epochs=9, resume_from=True)
    assert again.tokens == first.tokens
    other = call(place, max_steps=2, num_epochs=9, overwrite=True)
    assert other.step == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"learning_rates": 1}, "learning_rate"),
        ({"grad_accumulation": 2}, "gradient_accumulation"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"learning_rate": "3e-4"}, "learning_rate"),
        ({"num_epochs": -1}, "num_epochs"),
        ({"model": None}, "model"),
        ({"dataset": None}, "dataset"),
    ],
)
def test_wrong_arguments_are_typed_errors_in_the_callers_words(place, arguments, says):
    with pytest.raises(ConfigError) as caught:
        call(place, **arguments)
    assert says in str(caught.value)
    assert not (place / "run").exists()


def test_an_unknown_argument_names_the_nearest(place):
    with pytest.raises(UnknownKeyError, match="warmup_steps"):
        call(place, warmup_step=3)


def test_arguments_beside_a_config_are_ignored_with_a_warning(place, capsys):
    config = protolith.TrainConfig.from_file(tiny.write_recipe(place, trainer__max_steps=2))
    state = protolith.pretrain(config=config, batch_size=9, warmup_steps=3)
    assert state.step == 2
    out = capsys.readouterr().out
    assert "these arguments are ignored: batch_size, warmup_steps" in out


def test_something_else_as_config_is_refused():
    with pytest.raises(UsageError):
        protolith.pretrain(config={"recipe": "pretrain"})


def test_loaded_objects_can_be_given(place):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place / "model"))
    before = model.model.norm.weight.clone()
    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    state = call(place, model=(model, tokenizer), max_steps=3, num_epochs=9)
    assert state.step == 3
    log = (state.run_dir / "logs" / "latest" / "rank_0.log").read_text()
    assert "init: loaded" in log
    again = AutoModelForCausalLM.from_pretrained(state.run_dir / "model")
    assert not torch.equal(again.model.norm.weight, before)
    torch.testing.assert_close(again.model.norm.weight, model.model.norm.weight.detach().cpu())


def test_continuing_from_weights(place):
    first = call(place, max_steps=6, num_epochs=9)
    config = tiny.write_recipe(
        place,
        model__name=str(first.run_dir / "model"),
        model__init="pretrained",
        output__dir=str(place / "second"),
        trainer__max_steps=2,
    )
    second = protolith.pretrain(config=protolith.TrainConfig.from_file(config))
    assert tiny.losses(second.run_dir)[1] < tiny.losses(first.run_dir)[1]
    assert "init: pretrained" in (second.run_dir / "logs" / "latest" / "rank_0.log").read_text()


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, protolith; protolith.__version__; dir(protolith)\n"
        "bad = {'torch', 'numpy', 'transformers', 'pydantic', 'yaml', 'fastapi'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
