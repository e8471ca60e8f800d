"""A Hugging Face model folder that anyone's transformers can load.

    config.json  generation_config.json  model.safetensors (several with an index when large)  tokenizer files

In:   weights by transformers' own names (prefixes of torch.compile and other wrappers are taken off), the
      config, and something that writes tokenizer files.
Out:  a folder, written aside and renamed: whole or absent. Tensors are stored as they are, tied ones once;
      names and shapes are compared with those of the architecture first. The caller's tensors and config stay
      as they are. Cost: the module is built once more without memory (meta device), and one file at a time is
      put together: a model that is larger than memory can be exported from its checkpoint.
"""

from __future__ import annotations

import copy
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig

from protolith.errors import ModelError, OutputInUseError, ProtolithError
from protolith.formats.rundir import from_os_error, fsync_dir, write_json
from protolith.model.build import build_model, empty_model
from protolith.tensors.stored import StoredTensors, dtype_of, shape_of

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")
_MAX_FILE_SIZE = "5GB"
#: What an export consists of; a folder that holds anything else is not replaced.
_OWN_PATTERNS = ("*.json", "*.safetensors", "merges.txt", "vocab.txt", "*.model", "*.jinja")


class TokenizerFiles(Protocol):
    """What export needs of a tokenizer."""

    @property
    def eos_id(self) -> int: ...

    def save(self, folder: Path) -> None:
        """Write the files that ``AutoTokenizer.from_pretrained(folder)`` reads."""


def export_model(
    weights: nn.Module | Mapping[str, Tensor],
    hf_config: PretrainedConfig,
    tokenizer: TokenizerFiles | None,
    output_dir: Path,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the folder ``output_dir``. An earlier export there gives way once the new one is whole.

    Args:
        weights: the module, or its tensors by name; those of a checkpoint are read file by file.
        tokenizer: its files go along, and its end-of-text id ends generation; None = no tokenizer.
        dtype: store floating-point tensors in this type (default: as they are).

    Raises:
        OutputInUseError: ``output_dir`` holds something that is no export.
        ModelError: names or shapes are not those of the architecture.
        NoSpaceError, NotAllowedError: it cannot be written; nothing is left behind.
    """
    output_dir = Path(output_dir)
    _require_replaceable(output_dir)
    config = _config_for_others(hf_config, tokenizer)
    model = empty_model(config)
    tensors = weights if isinstance(weights, StoredTensors) else clean_names(weights)
    sources = _fit(tensors, model)
    kinds = {name: _stored_as(tensors, source, dtype) for name, source in sources.items()}
    config.architectures = [type(model).__name__]
    config.dtype = next(kind for kind in kinds.values() if kind.is_floating_point)
    aside = output_dir.with_name(f".{output_dir.name}.{secrets.token_hex(4)}.tmp")
    try:
        aside.mkdir(parents=True)
        _write_weights(aside, tensors, sources, kinds, dict(model.state_dict()))
        config.save_pretrained(aside)
        _generation(config).save_pretrained(aside)
        if tokenizer is not None:
            tokenizer.save(aside)
        for path in aside.iterdir():
            with open(path, "rb") as written:
                os.fsync(written.fileno())
        _swap(aside, output_dir)
    except OSError as error:
        raise from_os_error(error, output_dir) from error
    except Exception as error:  # safetensors reports a full disk as an error of its own
        if isinstance(error, ProtolithError) or "No space left" not in str(error):
            raise
        raise from_os_error(OSError(28, "No space left on device"), output_dir) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_companions(folder: Path, hf_config: PretrainedConfig, tokenizer: TokenizerFiles | None) -> None:
    """config.json, generation_config.json and tokenizer files into an existing folder: what weights alone
    lack."""
    config = _config_for_others(hf_config, tokenizer)
    config.save_pretrained(folder)
    _generation(config).save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save(folder)


def load_exported(directory: Path) -> nn.Module:
    """The model of an exported folder, fp32 on the CPU, in evaluation mode.

    Raises:
        ModelError: tensors are missing, surplus or of another shape.
    """
    return build_model(directory, init="pretrained").module.eval()


def clean_names(weights: nn.Module | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by transformers' own names: prefixes of wrappers are taken off wherever they stand.

    Raises:
        ModelError: two different tensors end up with one name.
    """
    given = weights.state_dict() if isinstance(weights, nn.Module) else weights
    clean: dict[str, Tensor] = {}
    for name, tensor in given.items():
        bare = name
        for wrapper in _WRAPPERS:
            bare = bare.replace(wrapper, "")
        while bare.startswith("module."):
            bare = bare.removeprefix("module.")
        if bare in clean:
            raise ModelError(f"two tensors are both called {bare} without the prefixes of wrappers")
        clean[bare] = tensor.detach()
    return clean


def _fit(tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, str]:
    """Name in ``model`` -> name in ``tensors`` of all that it stores, tied ones once; names and shapes are
    compared."""
    wanted: dict[str, Tensor] = dict(model.state_dict())
    tied: dict[str, str] = dict(getattr(model, "all_tied_weights_keys", None) or {})
    given = {name: name for name in tensors}
    for copy_name, source in tied.items():
        wanted.pop(copy_name, None)
        twin = given.pop(copy_name, None)
        if twin is None:
            continue
        if given.setdefault(source, twin) != twin and not torch.equal(tensors[twin], tensors[source]):
            raise ModelError(f"{copy_name} and {source} are tied in the config but differ")
    missing, surplus = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing or surplus:
        raise ModelError(
            f"the tensors are not those of {type(model).__name__}: "
            f"missing {missing[:5]}, surplus {surplus[:5]}"
        )
    for name, tensor in wanted.items():
        shape = shape_of(tensors, given[name])
        if tensor.shape != shape:
            raise ModelError(f"{name} has shape {tuple(shape)}, the config says {tuple(tensor.shape)}")
    return {name: given[name] for name in wanted}


def _stored_as(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype | None) -> torch.dtype:
    own = dtype_of(tensors, name)
    return dtype if dtype is not None and own.is_floating_point else own


def _write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    sources: Mapping[str, str],
    kinds: Mapping[str, torch.dtype],
    like: Mapping[str, Tensor],
) -> None:
    """One file after the other, so that no more than one of them is in memory beside what was given."""
    plan = split_torch_state_dict_into_shards(
        {name: torch.empty_like(like[name], dtype=kind, device="meta") for name, kind in kinds.items()},
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=_MAX_FILE_SIZE,
    )
    for file, names in plan.filename_to_tensors.items():
        content = {name: tensors[sources[name]].detach().to(kinds[name]).contiguous() for name in names}
        save_file(content, folder / file, metadata={"format": "pt"})
    if plan.is_sharded:
        size = {"total_parameters": sum(like[name].numel() for name in kinds), **plan.metadata}
        index = {"metadata": size, "weight_map": dict(sorted(plan.tensor_to_filename.items()))}
        write_json(folder / "model.safetensors.index.json", index)


def _config_for_others(hf_config: PretrainedConfig, tokenizer: TokenizerFiles | None) -> PretrainedConfig:
    """A copy as a user of the model wants it: with a cache, and with the end-of-text id of its own
    tokenizer."""
    config = copy.deepcopy(hf_config)
    config.use_cache = True
    if tokenizer is not None:
        config.eos_token_id = tokenizer.eos_id
    return config


def _generation(config: PretrainedConfig) -> GenerationConfig:
    ends = config.eos_token_id
    pad = ends[0] if isinstance(ends, list) else ends
    return GenerationConfig(eos_token_id=ends, bos_token_id=config.bos_token_id, pad_token_id=pad)


def _require_replaceable(folder: Path) -> None:
    if not folder.exists() and not folder.is_symlink():
        return
    hint = "choose another folder"
    if not folder.is_dir() or folder.is_symlink():
        raise OutputInUseError("this is not a folder", where=str(folder), hint=hint)
    inside = list(folder.iterdir())
    foreign = [
        p.name for p in inside if not p.is_file() or not any(p.match(pattern) for pattern in _OWN_PATTERNS)
    ]
    if foreign or (inside and not (folder / "config.json").is_file()):
        what = f"it holds {foreign[0]}" if foreign else "it has no config.json"
        raise OutputInUseError(f"this folder is not an earlier export ({what})", where=str(folder), hint=hint)


def _swap(aside: Path, target: Path) -> None:
    old = None
    if target.exists():
        old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
        os.replace(target, old)
    os.replace(aside, target)
    fsync_dir(target.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
