"""A folder with config.json -> a transformers module, ready to train in fp32 on the CPU.

``init: scratch`` reads config.json and nothing else; the weights come from the architecture's own rule and
the seed. ``init: pretrained`` reads safetensors, never a pickle, and every tensor must find its place.
Building neither depends on the random state around it nor changes it. No code from the model's folder is run.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from protolith.errors import InvalidValueError, ModelError
from protolith.formats.checkpoint_files import SHARDS
from protolith.model.attention import resolve_attention, supported_kernels
from protolith.model.config import make_config, read_config_dict, require_dense
from protolith.model.directory import resolve_model_dir
from protolith.model.flops import flops_per_token
from protolith.model.vocabulary import check_vocabulary
from protolith.tensors.shards import shard_files
from protolith.tensors.stored import weights_of

__all__ = [
    "INITS",
    "BuiltModel",
    "build_model",
    "count_parameters",
    "empty_model",
    "quiet_transformers",
    "resolve_model_dir",
]

INITS = ("scratch", "pretrained")


@dataclass(frozen=True)
class BuiltModel:
    """``module`` in training mode, fp32, on the CPU. ``num_parameters`` counts tied tensors once.

    ``init``: "scratch", "pretrained" or "loaded". ``attention``: transformers' name of the kernel.
    ``source_dir``: where config.json was; None for a loaded module. ``notes``: to be said once.
    """

    module: nn.Module
    hf_config: PretrainedConfig
    num_parameters: int
    source_dir: Path | None
    init: str
    attention: str
    notes: tuple[str, ...]

    def flops_per_token(self, seq_len: int) -> float:
        """Training FLOPs per token; see ``formats.hf_config.flops_per_token``."""
        return flops_per_token(self.hf_config, seq_len)


def build_model(
    name: str | Path | nn.Module,
    *,
    init: str = "scratch",
    overrides: Mapping[str, Any] | None = None,
    attention: str = "auto",
    seed: int = 42,
    tokenizer_size: int | None = None,
    eos_id: int | None = None,
    device: torch.device | None = None,
    precision: str = "fp32",
    meta: bool = False,
) -> BuiltModel:
    """Build the model called ``name``.

    Args:
        name: see ``resolve_model_dir``; or a loaded transformers module, which is taken as it is (its weights
            are trained, ``init`` and ``overrides`` do not apply to it).
        init: "scratch" or "pretrained".
        overrides: settings of config.json to change before building.
        attention: see ``resolve_attention``; chosen for ``device`` and ``precision``.
        seed: of the weights under ``init: scratch``.
        tokenizer_size: entries of the tokenizer; more than the model's vocabulary is an error before
            building.
        eos_id: the tokenizer's end-of-text id, written into the config.
        device: where it will train (default CPU). The module is built on the CPU all the same.
        meta: shapes only, no memory and no weights: for plans.

    Raises:
        NotFoundError, ModelError, InvalidValueError: see ``resolve_model_dir``, ``make_config``.
        TokenizerError: see ``check_vocabulary``.
    """
    if init not in INITS:
        raise InvalidValueError(
            f"unknown init {init!r}", where="model.init", hint=f"one of {', '.join(INITS)}"
        )
    if isinstance(name, nn.Module):
        return _take(name, overrides or {}, tokenizer_size, eos_id)
    folder = resolve_model_dir(name, weights=init == "pretrained" and not meta)
    raw = read_config_dict(folder)
    config, notes = make_config(raw, overrides or {}, where=str(folder / "config.json"))
    notes += check_vocabulary(config.vocab_size, tokenizer_size, eos_id)
    if eos_id is not None:
        config.eos_token_id = eos_id
    config.use_cache = False
    kernel = resolve_attention(
        attention,
        device or torch.device("cpu"),
        precision=precision,
        supported=supported_kernels(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]),
    )
    notes = (*notes, *([kernel.note] if kernel.note else []))
    if meta:
        module = empty_model(config, kernel.implementation)
    else:
        with _own_randomness(seed), quiet_transformers():
            if init == "scratch":
                module = _from_scratch(config, kernel.implementation)
            else:
                module = _from_weights(folder, config, kernel.implementation)
        notes += _check_filled(module, scratch=init == "scratch")
    _make_trainable(module)
    return BuiltModel(module, config, count_parameters(module), folder, init, kernel.implementation, notes)


def empty_model(config: PretrainedConfig, attention: str = "eager") -> nn.Module:
    """The module of ``config`` on the meta device: names and shapes, no memory."""
    with torch.device("meta"), quiet_transformers():
        return _from_scratch(copy.deepcopy(config), attention)


def _take(
    module: nn.Module, overrides: Mapping[str, Any], tokenizer_size: int | None, eos_id: int | None
) -> BuiltModel:
    """A loaded module, made ready: fp32 weights, every row of the embedding learning."""
    config = getattr(module, "config", None)
    if not isinstance(config, PretrainedConfig):
        raise ModelError(f"{type(module).__name__} is not a transformers model: it has no config")
    if overrides:
        raise InvalidValueError(
            "overrides cannot change a model that is already built", where="model.overrides"
        )
    require_dense(config)
    notes = check_vocabulary(int(module.get_input_embeddings().weight.shape[0]), tokenizer_size, eos_id)
    kinds = {p.dtype for p in module.parameters()}
    if kinds - {torch.float32}:
        module.float()
        notes += ("the loaded model's weights were made fp32",)
    _make_trainable(module)
    own_config = copy.deepcopy(config)
    if eos_id is not None:
        own_config.eos_token_id = eos_id
    notes += _check_filled(module, scratch=False)
    attention = str(getattr(config, "_attn_implementation", None) or "its own")
    return BuiltModel(module, own_config, count_parameters(module), None, "loaded", attention, notes)


def _make_trainable(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.requires_grad_(True)
    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.padding_idx = None  # see make_config; some architectures invent one
    module.train()


def count_parameters(module: nn.Module) -> int:
    """Number of parameters; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def _from_scratch(config: PretrainedConfig, attention: str) -> nn.Module:
    try:
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=attention, dtype=torch.float32, trust_remote_code=False
        )
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError, ImportError, AttributeError) as error:
        raise _cannot_build(config, error) from error


def _from_weights(folder: Path, config: PretrainedConfig, attention: str) -> nn.Module:
    shards = shard_files(folder / SHARDS)
    if not shards:
        _require_safetensors(folder)
    try:
        kind = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] if shards else AutoModelForCausalLM
        module, loading = kind.from_pretrained(
            None if shards else str(folder),
            state_dict=dict(weights_of(folder)) if shards else None,
            config=config,
            attn_implementation=attention,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except SafetensorError as error:
        raise ModelError(f"the weights cannot be read: {error}", where=str(folder)) from error
    except (ValueError, RuntimeError, TypeError, KeyError, ImportError, OSError, AttributeError) as error:
        raise _cannot_build(config, error) from error
    faults = []
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        found = sorted(str(item) for item in loading.get(what) or ())
        if found:
            rest = f" and {len(found) - 3} more" if len(found) > 3 else ""
            faults.append(f"{what.removesuffix('_keys')}: {', '.join(found[:3])}{rest}")
    if loading.get("error_msgs"):
        faults.append(str(loading["error_msgs"])[:300])
    if faults:
        raise ModelError(
            f"the weights do not fit the model ({'; '.join(faults)})",
            where=str(folder),
            hint="weights and config.json must belong together; use init: scratch to train from nothing",
        )
    return module


def _require_safetensors(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"the index of the weights cannot be read: {error}", where=str(index)) from error
        missing = sorted(name for name in names if not (folder / str(name)).is_file())
        if missing:
            raise ModelError(f"weight files are missing: {', '.join(missing[:5])}", where=str(folder))
        return
    if (folder / "model.safetensors").is_file():
        return
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    if pickles:
        raise ModelError(
            f"the weights are pickles ({pickles[0]}), which can run code when they are read",
            where=str(folder),
            hint="convert them to safetensors first",
        )
    raise ModelError(
        "init: pretrained needs model.safetensors, and there is none",
        where=str(folder),
        hint="use init: scratch to train from nothing",
    )


def _cannot_build(config: PretrainedConfig, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(f"{config.model_type} cannot be built: {reason[:500]}", where="model")


def _check_filled(module: nn.Module, *, scratch: bool) -> tuple[str, ...]:
    """Every tensor set: not finite is an error, a constant weight matrix is told.

    Under ``_own_randomness`` memory that nothing filled holds NaN, so a forgotten tensor shows here.
    """
    constant = []
    for name, tensor in _named_tensors(module):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"{name} was not initialised: it holds values that are not finite",
                hint="this architecture does not set all its weights; it cannot be trained from scratch"
                if scratch
                else "the weights are damaged",
            )
        is_matrix = tensor.ndim >= 2 and tensor.numel() > 1 and isinstance(tensor, nn.Parameter)
        if scratch and is_matrix and bool((tensor == tensor.flatten()[0]).all()):
            constant.append(name)
    if not constant:
        return ()
    return (
        f"the architecture starts {len(constant)} matrices at one constant value: {', '.join(constant[:3])}",
    )


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """The CPU generator at ``seed`` inside, as it was outside; memory from ``torch.empty`` holds NaN
    inside."""
    state = torch.get_rng_state()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.default_generator.manual_seed(seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.set_rng_state(state)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """What transformers would say while building is said by our own notes and errors."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
