from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GenerationConfig

from protolith.errors import ModelError, NoSpaceError, NotAllowedError, OutputInUseError
from protolith.model.build import build_model
from protolith.model.export import clean_names, export_model, load_exported, write_companions
from protolith.model.loss import LossModel


class Tokenizer:
    eos_id = 5

    def save(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


IDS = torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(0))


def loss_of(module: torch.nn.Module) -> float:
    with torch.no_grad():
        return LossModel(module.eval())(IDS[:, :-1], IDS[:, 1:]).item()


@pytest.mark.parametrize(
    ("kind", "tied"), [("qwen3", True), ("qwen3", False), ("llama", True), ("gpt2", True), ("gemma2", True)]
)
def test_anyones_transformers_loads_it_and_gives_the_same_loss(folder, tmp_path, kind, tied):
    built = build_model(folder(kind, tie_word_embeddings=tied, eos_token_id=1), seed=2)
    expected = loss_of(built.module)
    target = tmp_path / "out" / "model"
    export_model(built.module, built.hf_config, Tokenizer(), target)
    loaded, info = AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.dtype == torch.float32 and loss_of(loaded) == expected
    assert loss_of(load_exported(target)) == expected
    assert not load_exported(target).training
    stored = load_file(target / "model.safetensors")
    assert ("lm_head.weight" in stored) == (not tied)
    config = json.loads((target / "config.json").read_text())
    assert config["architectures"] == [type(built.module).__name__] and config["eos_token_id"] == 5
    assert GenerationConfig.from_pretrained(target).eos_token_id == 5
    assert (target / "tokenizer.json").is_file()
    assert [p.name for p in target.parent.iterdir()] == ["model"]


def test_named_tensors_of_a_wrapped_module_are_enough(folder, tmp_path):
    """Prefixes of torch.compile and other wrappers do not reach the file (T37)."""
    built = build_model(folder(tie_word_embeddings=True))
    plain = {name: p.detach() for name, p in built.module.named_parameters()}
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in plain.items()}
    export_model(wrapped, built.hf_config, None, tmp_path / "m")
    assert set(load_file(tmp_path / "m" / "model.safetensors")) == set(plain)
    compiled = torch.compile(built.module)
    assert set(clean_names(compiled)) == set(built.module.state_dict())
    assert loss_of(load_exported(tmp_path / "m")) == loss_of(built.module)


def test_the_callers_module_and_config_stay_as_they_are(folder, tmp_path):
    built = build_model(folder())
    before = {name: tensor.clone() for name, tensor in built.module.state_dict().items()}
    config = built.hf_config.to_dict()
    export_model(built.module, built.hf_config, Tokenizer(), tmp_path / "m", dtype=torch.bfloat16)
    after = built.module.state_dict()
    assert all(after[name].dtype == t.dtype and torch.equal(after[name], t) for name, t in before.items())
    assert built.hf_config.to_dict() == config and built.module.training
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == "bfloat16"


def test_tensors_that_are_not_the_architectures_are_loud(folder, tmp_path):
    built = build_model(folder())
    tensors = dict(built.module.state_dict())
    first = next(iter(tensors))
    for changed, words in (
        ({n: t for n, t in tensors.items() if n != first}, "missing"),
        ({**tensors, "more": torch.ones(1)}, "surplus"),
        ({**tensors, first: torch.ones(1)}, "shape"),
        ({**tensors, f"_orig_mod.{first}": torch.ones(1)}, "both called"),
    ):
        with pytest.raises(ModelError, match=words):
            export_model(changed, built.hf_config, None, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_an_earlier_export_gives_way_and_nothing_else_does(folder, tmp_path):
    first, second = build_model(folder(), seed=1), build_model(folder(), seed=2)
    target = tmp_path / "m"
    target.mkdir()
    export_model(first.module, first.hf_config, None, target)
    export_model(second.module, second.hf_config, None, target)
    assert loss_of(load_exported(target)) == loss_of(second.module)
    (target / "notes.md").write_text("mine")
    with pytest.raises(OutputInUseError, match=r"notes\.md"):
        export_model(first.module, first.hf_config, None, target)
    with pytest.raises(OutputInUseError, match="not a folder"):
        export_model(first.module, first.hf_config, None, target / "config.json")


@pytest.mark.parametrize(("number", "kind"), [(28, NoSpaceError), (13, NotAllowedError)])
def test_a_failed_export_leaves_the_old_one_and_no_rest(folder, tmp_path, monkeypatch, number, kind):
    built = build_model(folder())
    target = tmp_path / "out" / "m"
    export_model(built.module, built.hf_config, None, target)

    class Failing(Tokenizer):
        def save(self, folder: Path) -> None:
            raise OSError(number, "failed")

    with pytest.raises(kind):
        export_model(built.module, built.hf_config, Failing(), target)
    assert [p.name for p in target.parent.iterdir()] == ["m"]
    assert loss_of(load_exported(target)) == loss_of(built.module)


def test_companions_make_a_checkpoint_folder_readable(folder, tmp_path):
    built = build_model(folder())
    write_companions(tmp_path, built.hf_config, Tokenizer())
    names = {"config.json", "generation_config.json", "tokenizer.json"}
    assert names <= {p.name for p in tmp_path.iterdir() if p.is_file()}
    assert build_model(tmp_path, meta=True).num_parameters == built.num_parameters
