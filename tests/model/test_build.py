from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from protolith.errors import (
    InvalidValueError,
    MissingExtraError,
    ModelError,
    NotFoundError,
    ProtolithError,
    TokenizerError,
)
from protolith.model.attention import resolve_attention
from protolith.model.build import build_model, resolve_model_dir
from protolith.model.checkpointing import enable_activation_checkpointing
from protolith.model.config import make_config
from protolith.model.loss import LossModel
from protolith.model.vocabulary import check_vocabulary

CPU = torch.device("cpu")


def same(first: nn.Module, second: nn.Module) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_folder_with_only_a_config_is_enough(folder):
    built = build_model(folder("qwen3"), seed=1)
    assert type(built.module).__name__ == "Qwen3ForCausalLM" and built.module.training
    assert {p.dtype for p in built.module.parameters()} == {torch.float32}
    assert all(p.requires_grad for p in built.module.parameters())
    assert built.num_parameters == sum(p.numel() for p in built.module.parameters())
    assert built.init == "scratch" and built.attention == "sdpa"


def test_weights_in_the_folder_are_not_read_from_scratch(folder):
    place = folder("llama")
    expected = build_model(place, seed=1).module
    (place / "model.safetensors").write_bytes(b"not a weight file")
    assert same(build_model(place, seed=1).module, expected)


def test_the_seed_alone_decides_the_weights_and_random_states_are_left_alone(folder):
    place = folder("qwen3")
    torch.manual_seed(1)
    first = build_model(place, seed=7).module
    torch.manual_seed(2)
    np.random.seed(5)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    second = build_model(place, seed=7).module
    LossModel(second)
    assert torch.equal(state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()
    assert same(first, second) and not same(first, build_model(place, seed=8).module)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_is_set_and_the_first_loss_is_that_of_a_guess(folder, kind, tied):
    """Nothing constant but norms and biases; loss within 0.3 of ln V (T35)."""
    module = build_model(folder(kind, tie_word_embeddings=tied, vocab_size=512), seed=0).module
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        assert tensor.device.type == "cpu" and torch.isfinite(tensor.float()).all(), name
        if tensor.numel() > 1 and not any(word in name for word in ("norm", "ln_", "bias")):
            assert tensor.float().std() > 0, name
    ids = torch.randint(512, (4, 33), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        value = LossModel(module)(ids[:, :-1], ids[:, 1:]).item() / 128
    assert abs(value - math.log(512)) < 0.3


def test_a_tensor_that_the_architecture_forgets_to_fill_is_an_error(folder, monkeypatch):
    """Memory that nothing wrote holds nan while building, whatever lay there before (T35)."""
    from transformers.models.llama import modeling_llama

    original = modeling_llama.LlamaForCausalLM.__init__

    def forgetful(self, config):
        original(self, config)
        self.extra = nn.Parameter(torch.empty(3, 3))

    monkeypatch.setattr(modeling_llama.LlamaForCausalLM, "__init__", forgetful)
    with pytest.raises(ModelError, match="extra was not initialised"):
        build_model(folder("llama"))


def test_no_embedding_row_is_shut_out_of_learning(folder):
    built = build_model(folder("llama", pad_token_id=3))
    assert built.module.get_input_embeddings().padding_idx is None
    assert built.module.get_input_embeddings().weight[3].abs().max() > 0
    assert any("pad_token_id" in note for note in built.notes)


def test_a_plan_needs_no_memory(folder):
    place = folder("qwen3")
    planned = build_model(place, meta=True)
    assert all(p.is_meta for p in planned.module.parameters())
    assert planned.num_parameters == build_model(place).num_parameters
    assert planned.flops_per_token(64) > 6 * 32 * 97


class TestOverrides:
    def test_dimensions_change_and_what_depends_on_them_follows(self, folder):
        built = build_model(
            folder("llama", num_key_value_heads=4),
            overrides={"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 6, "vocab_size": 50},
        )
        config = built.hf_config
        assert (config.head_dim, config.num_key_value_heads, config.vocab_size) == (8, 6, 50)
        assert len(built.module.model.layers) == 3
        assert len([note for note in built.notes if "follows" in note]) == 2
        LossModel(built.module)

    def test_one_entry_per_layer_follows_the_number_of_layers(self, folder):
        for layers in (1, 5):
            built = build_model(folder("qwen3"), overrides={"num_hidden_layers": layers})
            assert built.hf_config.layer_types == ["full_attention"] * layers
            assert any("layer_types" in note for note in built.notes)

    def test_a_pattern_of_layers_is_made_anew_by_the_architecture(self, folder):
        kinds = ["sliding_attention", "full_attention"]
        built = build_model(folder("gemma2", layer_types=kinds), overrides={"num_hidden_layers": 4})
        assert built.hf_config.layer_types == kinds * 2

    def test_a_head_width_of_its_own_stays(self, folder):
        built = build_model(folder("qwen3"), overrides={"hidden_size": 64})
        assert built.hf_config.head_dim == 16

    def test_names_of_the_architecture_itself_work(self, folder):
        built = build_model(folder("gpt2"), overrides={"n_layer": 1, "num_attention_heads": 2})
        assert (built.hf_config.n_layer, built.hf_config.n_head) == (1, 2)

    def test_rope_theta_takes_effect(self, folder):
        place = folder("qwen3")
        slow = build_model(place, overrides={"rope_theta": 1e6}).module
        fast = build_model(place).module
        assert not torch.equal(slow.model.rotary_emb.inv_freq, fast.model.rotary_emb.inv_freq)

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("num_hiden_layers", 2, "num_hidden_layers"),
            ("hiddensize", 64, "hidden_size"),
            ("model_type", "llama", "cannot be overridden"),
            ("num_hidden_layers", "two", "num_hidden_layers"),
            ("num_hidden_layers", 0, "above 0"),
            ("vocab_size", -1, "above 0"),
            ("num_attention_heads", 3, "cannot share"),
            ("layer_types", ["full_attention"], "layer"),
            ("hidden_act", "no such thing", "no such thing"),
        ],
    )
    def test_what_cannot_be_is_refused_by_the_users_own_key(self, folder, key, value, words):
        with pytest.raises((InvalidValueError, ModelError), match=words) as caught:
            build_model(folder("qwen3"), overrides={key: value})
        if key != "hidden_act":
            assert caught.value.where.startswith("model.overrides")

    def test_the_given_mapping_is_not_changed(self):
        raw = {"model_type": "qwen3", "layer_types": ["full_attention"] * 2, "num_hidden_layers": 2}
        kept, overrides = json.loads(json.dumps(raw)), {"num_hidden_layers": 1}
        make_config(raw, overrides)
        assert raw == kept and overrides == {"num_hidden_layers": 1}


class TestNotForTraining:
    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({}, "no model_type"),
            ({"model_type": "qwen99"}, "knows no model_type"),
            ({"model_type": "mine", "auto_map": {"AutoModel": "code.M"}}, "never run"),
            ({"model_type": "vit"}, "not a causal"),
            ({"model_type": "mixtral", "num_local_experts": 4}, "mixture of experts"),
            ({"model_type": "qwen3_moe", "num_experts": 8}, "mixture of experts"),
        ],
    )
    def test_architectures(self, tmp_path, values, words):
        (tmp_path / "config.json").write_text(json.dumps(values))
        with pytest.raises(ModelError, match=words):
            build_model(tmp_path, meta=True)

    def test_a_model_that_sees_to_the_right(self, folder):
        place = folder("bert", hidden_dropout_prob=0.0)
        with pytest.raises(ModelError, match="to the right"):
            LossModel(build_model(place).module)

    def test_code_in_the_folder_is_never_run(self, folder, tmp_path):
        place = folder("llama", auto_map={"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"})
        (place / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        build_model(place)
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("text", ["", "[1]", "{", "\x00"])
    def test_broken_config(self, tmp_path, text):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ModelError, match=r"config\.json"):
            build_model(tmp_path)


class TestDirectory:
    def test_folder_then_named_model_then_a_clear_error(self, folder, tmp_path, monkeypatch):
        place = folder("llama")
        assert resolve_model_dir(place) == place
        home = tmp_path / "home"
        shutil.copytree(place, home / "models" / "org" / "small")
        monkeypatch.setenv("PROTOLITH_HOME", str(home))
        assert resolve_model_dir("org/small") == home / "models" / "org" / "small"
        for missing in ("org/other", "other", "/nowhere/at/all", "./x", ""):
            with pytest.raises(NotFoundError) as caught:
                resolve_model_dir(missing)
            assert caught.value.where == "model.name" and caught.value.hint

    def test_a_folder_without_config_and_a_file(self, tmp_path):
        with pytest.raises(ModelError, match=r"no config\.json"):
            resolve_model_dir(tmp_path)
        (tmp_path / "file").write_text("x")
        with pytest.raises(ModelError, match="a file"):
            resolve_model_dir(tmp_path / "file")


class TestPretrained:
    @pytest.fixture(params=["qwen3-tied", "llama", "gpt2"])
    def saved(self, request, folder):
        kind, _, tied = request.param.partition("-")
        place = folder(kind, tie_word_embeddings=bool(tied) or kind == "gpt2")
        module = build_model(place, seed=9).module
        module.save_pretrained(place)
        return place, module

    def test_every_tensor_is_read(self, saved):
        place, module = saved
        built = build_model(place, init="pretrained", seed=1)
        assert same(built.module, module) and built.module.training and built.init == "pretrained"

    def test_sharded_files_are_read_and_a_lost_one_is_loud(self, saved):
        place, module = saved
        (place / "model.safetensors").unlink()
        module.save_pretrained(place, max_shard_size="20KB")
        assert len(list(place.glob("model-*.safetensors"))) > 1
        assert same(build_model(place, init="pretrained").module, module)
        next(iter(sorted(place.glob("model-*.safetensors")))).unlink()
        with pytest.raises(ModelError, match="missing"):
            build_model(place, init="pretrained")

    def test_missing_surplus_and_misshapen_tensors_are_loud(self, saved):
        """Nothing stays random in silence (T37)."""
        place, module = saved
        file = place / "model.safetensors"
        tensors = load_file(file)
        matrix = next(n for n, t in tensors.items() if t.ndim == 2 and ("mlp" in n or "proj" in n))
        for changed, words in (
            ({n: t for n, t in tensors.items() if n != matrix}, "missing"),
            ({**tensors, "model.extra.weight": torch.ones(2)}, "unexpected"),
            ({**tensors, matrix: torch.ones(3, 3)}, "mismatched"),
        ):
            save_file(changed, file, metadata={"format": "pt"})
            with pytest.raises(ModelError, match=words):
                build_model(place, init="pretrained")
        save_file(tensors, file, metadata={"format": "pt"})
        assert same(build_model(place, init="pretrained").module, module)

    def test_pickles_are_refused(self, folder):
        place = folder("llama")
        torch.save({}, place / "pytorch_model.bin")
        with pytest.raises(ModelError, match="pickle"):
            build_model(place, init="pretrained")

    def test_no_weights_and_damaged_weights(self, folder):
        place = folder("llama")
        with pytest.raises(ModelError, match="none"):
            build_model(place, init="pretrained")
        (place / "model.safetensors").write_bytes(b"\x00" * 100)
        with pytest.raises(ProtolithError):
            build_model(place, init="pretrained")

    def test_bf16_weights_become_fp32(self, folder):
        place = folder("llama")
        module = build_model(place).module
        module.to(torch.bfloat16).save_pretrained(place)
        built = build_model(place, init="pretrained")
        assert {p.dtype for p in built.module.parameters()} == {torch.float32}
        assert torch.equal(built.module.lm_head.weight, module.lm_head.weight.float())


def test_a_loaded_model_is_taken_as_it_is(folder):
    hf = AutoModelForCausalLM.from_pretrained if False else build_model(folder("llama"), seed=4).module
    hf.to(torch.bfloat16).eval()
    built = build_model(hf, eos_id=5, tokenizer_size=90)
    assert built.module is hf and built.init == "loaded" and hf.training
    assert built.hf_config.eos_token_id == 5 and hf.config.eos_token_id != 5
    assert hf.lm_head.weight.dtype == torch.float32 and any("fp32" in note for note in built.notes)
    with pytest.raises(InvalidValueError, match="already built"):
        build_model(hf, overrides={"num_hidden_layers": 1})
    with pytest.raises(ModelError, match="no config"):
        build_model(nn.Linear(2, 2))


class TestVocabulary:
    def test_larger_model_is_fine_smaller_is_an_error(self):
        """Tokenizer of 120 or id 100 against a model of 100: error; 90 against 128: fine (T38)."""
        for size, top in ((120, None), (90, 100)):
            with pytest.raises(TokenizerError) as caught:
                check_vocabulary(100, size, top)
            assert "vocab_size" in caught.value.hint
        assert check_vocabulary(100, 100, 99) == ()
        assert "38 rows" in check_vocabulary(128, 90, 89)[0]

    def test_it_is_checked_before_building(self, folder):
        with pytest.raises(TokenizerError, match="knows 120 tokens"):
            build_model(folder("llama"), tokenizer_size=120)
        assert build_model(folder("llama"), tokenizer_size=90, eos_id=89).hf_config.eos_token_id == 89


class TestAttention:
    def test_auto_says_what_it_chose(self):
        chosen = resolve_attention("auto", CPU)
        assert chosen.implementation == "sdpa" and "sdpa" in chosen.note

    def test_asked_for_by_name_it_is_used_or_refused(self, folder):
        for name in ("eager", "sdpa"):
            built = build_model(folder("qwen3"), attention=name)
            assert built.attention == name
            assert built.module.config._attn_implementation == name
        assert resolve_attention("flex", torch.device("cuda")).implementation == "flex_attention"
        with pytest.raises(InvalidValueError, match="no backward pass on a CPU"):
            build_model(folder("qwen3"), attention="flex")
        with pytest.raises(InvalidValueError, match="needs a GPU"):
            resolve_attention("flash", CPU)
        with pytest.raises(MissingExtraError, match="not installed"):
            resolve_attention("flash", torch.device("cuda"), precision="bf16")
        with pytest.raises(InvalidValueError, match="unknown attention"):
            resolve_attention("fast", CPU)
        with pytest.raises(InvalidValueError, match="has no sdpa"):
            build_model(folder("gemma2"), attention="sdpa")

    def test_kernels_agree(self, folder):
        place = folder("llama")
        ids = torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(0))
        values = [
            LossModel(build_model(place, attention=name).module)(ids[:, :-1], ids[:, 1:]).item()
            for name in ("eager", "sdpa")
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_activation_checkpointing_changes_neither_loss_nor_gradient(folder, kind):
    module = build_model(folder(kind)).module  # gpt2: with dropout
    loss, results = LossModel(module), []
    ids = torch.randint(97, (2, 17), generator=torch.Generator().manual_seed(0))
    for setting in ("none", "full", "none"):
        enable_activation_checkpointing(module, setting)
        torch.manual_seed(3)
        value = loss(ids[:, :-1], ids[:, 1:])
        value.backward()
        results.append((value.item(), [p.grad.clone() for p in module.parameters()]))
        module.zero_grad()
    for value, gradients in results[1:]:
        assert value == results[0][0]
        assert all(torch.equal(a, b) for a, b in zip(gradients, results[0][1], strict=True))
    with pytest.raises(InvalidValueError):
        enable_activation_checkpointing(module, "some")
