"""config.json plus overrides -> a transformers config whose values agree with each other.

Overrides name what config.json names. What config.json derives from a changed value (one entry per layer, the
head width of hidden/heads, as many key/value heads as heads) follows it, and each such change is a note; what
config.json sets on its own (Qwen3's head width) stays. Nothing is executed from the model's folder.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from protolith.errors import InvalidValueError, ModelError

#: Identity and bookkeeping, not dimensions: what an override may not touch.
_FIXED = frozenset(
    {
        "model_type",
        "architectures",
        "auto_map",
        "transformers_version",
        "dtype",
        "torch_dtype",
        "_name_or_path",
    }
)
_SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_EXPERT_KEYS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_experts_per_tok",
)


def read_config_dict(folder: Path) -> dict[str, Any]:
    """The JSON object in ``folder/config.json``.

    Raises:
        ModelError: it is missing or not a JSON object.
    """
    path = folder / "config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"config.json cannot be read: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise ModelError("config.json is not a JSON object", where=str(path))
    return value


def make_config(
    raw: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str = "config.json"
) -> tuple[PretrainedConfig, tuple[str, ...]]:
    """The config of ``raw`` with ``overrides`` applied, and notes on what had to follow.

    Raises:
        ModelError: an architecture that transformers lacks, that is not causal, or that has experts.
        InvalidValueError: an override that names nothing, or gives an impossible value.
    """
    kind = _require_known(raw, where)
    base = _construct(kind, dict(raw), where=where)
    known = _override_names(raw, base)
    for key in overrides:
        if key in _FIXED:
            raise InvalidValueError(
                f"{key} cannot be overridden",
                where=f"model.overrides.{key}",
                hint="choose another model.name",
            )
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
            raise InvalidValueError(
                f"{raw['model_type']} has no setting {key!r}",
                where=f"model.overrides.{key}",
                hint=f"did you mean {near[0]}?" if near else "",
            )
    _require_whole(base, overrides)
    merged = {**raw, **overrides}
    notes = _follow(raw, base, overrides, merged)
    if overrides:
        _require_divisible(base, overrides, merged)
    if merged.get("pad_token_id", base.pad_token_id) is not None:
        # An embedding built with a padding index gives that row no gradient, and tokenizers often pad with
        # the end-of-text token, which must be learned. Padded positions have no targets here: no index is
        # needed.
        merged["pad_token_id"] = None
        notes.append("pad_token_id is not used in training: every embedding row learns")
    for name in ("bos_token_id", "eos_token_id"):
        if _beyond(merged.get(name, getattr(base, name, None)), merged.get("vocab_size", base.vocab_size)):
            merged[name] = None
            notes.append(f"{name} of config.json lies beyond the vocabulary and was left out")
    config = _construct(
        kind, merged, where="model.overrides" if overrides else where, overridden=bool(overrides)
    )
    _require_layer_types(config)
    return config, tuple(notes)


def _require_known(raw: Mapping[str, Any], where: str) -> str:
    kind = raw.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ModelError("config.json has no model_type", where=where)
    if kind not in CONFIG_MAPPING:
        remote = " (its own code, auto_map, is never run)" if raw.get("auto_map") else ""
        raise ModelError(
            f"this transformers knows no model_type {kind!r}{remote}",
            where=where,
            hint="a newer transformers may know it",
        )
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"{kind} is not a causal language model",
            where=where,
            hint="choose an architecture with a …ForCausalLM class, such as qwen3 or llama",
        )
    return kind


def _construct(
    kind: str, values: dict[str, Any], *, where: str, overridden: bool = False
) -> PretrainedConfig:
    try:
        config = CONFIG_MAPPING[kind].from_dict(dict(values))
    except Exception as error:  # config classes raise whatever they like on bad values
        kind_of_error = InvalidValueError if overridden else ModelError
        reason = " ".join(str(error).split())
        raise kind_of_error(f"impossible {kind} settings: {reason}", where=where) from error
    require_dense(config, where=where)
    return config


def require_dense(config: PretrainedConfig, *, where: str = "model") -> None:
    """Refuse what the loss here does not train.

    Raises:
        ModelError: experts, or an encoder.
    """
    kind = config.model_type
    if any(_number(getattr(config, key, None)) > 1 for key in _EXPERT_KEYS):
        raise ModelError(
            f"{kind} is a mixture of experts: its routing loss is not trained here",
            where=where,
            hint="choose a dense architecture",
        )
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} is an encoder-decoder, not a causal language model", where=where)


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) else 0


def _override_names(raw: Mapping[str, Any], base: PretrainedConfig) -> list[str]:
    names = set(raw) | set(base.to_dict()) | set(getattr(base, "attribute_map", {}))
    if "rope_parameters" in names:
        names |= {"rope_theta", "rope_scaling"}
    return sorted(name for name in names - _FIXED if not name.startswith("_"))


def _follow(
    raw: Mapping[str, Any], base: PretrainedConfig, overrides: Mapping[str, Any], merged: dict[str, Any]
) -> list[str]:
    """Let values that config.json derives from overridden ones follow them; say each."""
    notes: list[str] = []
    layers = getattr(base, "num_hidden_layers", None)
    wanted = _value(base, overrides, "num_hidden_layers")
    if isinstance(wanted, int) and wanted != layers:
        for key, value in raw.items():
            if isinstance(value, list) and len(value) == layers and key not in overrides and "layer" in key:
                if len({json.dumps(item) for item in value}) == 1:
                    merged[key] = [value[0]] * wanted
                else:
                    merged.pop(key)
                notes.append(f"{key} follows num_hidden_layers {wanted}")
    heads = getattr(base, "num_attention_heads", None)
    hidden = getattr(base, "hidden_size", None)
    new_heads = _value(base, overrides, "num_attention_heads")
    new_hidden = _value(base, overrides, "hidden_size")
    if (
        isinstance(heads, int)
        and raw.get("num_key_value_heads") == heads
        and new_heads != heads
        and "num_key_value_heads" not in overrides
    ):
        merged["num_key_value_heads"] = new_heads
        notes.append(f"num_key_value_heads follows num_attention_heads {new_heads}")
    width = raw.get("head_dim")
    if (
        isinstance(width, int)
        and isinstance(heads, int)
        and isinstance(hidden, int)
        and width * heads == hidden
        and (new_heads, new_hidden) != (heads, hidden)
        and "head_dim" not in overrides
        and isinstance(new_heads, int)
        and isinstance(new_hidden, int)
        and new_heads > 0
    ):
        merged["head_dim"] = new_hidden // new_heads
        notes.append(f"head_dim follows hidden_size / num_attention_heads = {merged['head_dim']}")
    return notes


def _value(base: PretrainedConfig, overrides: Mapping[str, Any], name: str) -> Any:
    """An overridden value under its standard name or the architecture's own (GPT-2's n_embd), else the
    base's."""
    own = getattr(base, "attribute_map", {}).get(name, name)
    for key in (name, own):
        if key in overrides:
            return overrides[key]
    return getattr(base, name, None)


def _require_whole(base: PretrainedConfig, overrides: Mapping[str, Any]) -> None:
    attributes = getattr(base, "attribute_map", {})
    for name in _SIZES:
        for key in {name, attributes.get(name, name)} & set(overrides):
            value = overrides[key]
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidValueError(
                    f"{key} must be a whole number above 0, not {value!r}", where=f"model.overrides.{key}"
                )


def _require_divisible(
    base: PretrainedConfig, overrides: Mapping[str, Any], merged: Mapping[str, Any]
) -> None:
    heads, hidden = _value(base, overrides, "num_attention_heads"), _value(base, overrides, "hidden_size")
    kv_heads = merged.get("num_key_value_heads", getattr(base, "num_key_value_heads", None))
    if isinstance(heads, int) and isinstance(kv_heads, int) and kv_heads > 0 and heads % kv_heads:
        key = "num_key_value_heads" if "num_key_value_heads" in overrides else "num_attention_heads"
        raise InvalidValueError(
            f"{heads} attention heads cannot share {kv_heads} key/value heads",
            where=f"model.overrides.{key}",
            hint="num_attention_heads must be a multiple of num_key_value_heads",
        )
    width_is_free = merged.get("head_dim", getattr(base, "head_dim", None)) is not None
    if isinstance(heads, int) and isinstance(hidden, int) and hidden % heads and not width_is_free:
        key = "hidden_size" if "hidden_size" in overrides else "num_attention_heads"
        raise InvalidValueError(
            f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}",
            where=f"model.overrides.{key}",
        )


def _beyond(token: Any, vocab_size: int) -> bool:
    tokens = token if isinstance(token, list) else [token]
    return any(isinstance(item, int) and item >= vocab_size for item in tokens)


def _require_layer_types(config: PretrainedConfig) -> None:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None and len(kinds) != config.num_hidden_layers:
        raise InvalidValueError(
            f"layer_types has {len(kinds)} entries for {config.num_hidden_layers} layers",
            where="model.overrides.layer_types",
            hint="override layer_types too",
        )
