"""A Hugging Face model folder that anyone's transformers can load.

    config.json  generation_config.json  model.safetensors (several with an index when large)  tokenizer files

In:   weights by transformers' own names (prefixes of torch.compile and other wrappers are taken off), the
      config, and something that writes tokenizer files.
Out:  a folder, written aside and renamed: whole or absent. Tensors are stored as they are, tied ones once;
      names and shapes are compared with those of the architecture first. The caller's tensors and config stay
      as they are. Cost: the module is built once more without memory (meta device); tensors are not copied.
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
from torch import Tensor, nn
from transformers import GenerationConfig, PretrainedConfig

from protolith.errors import ModelError, OutputInUseError, ProtolithError
from protolith.formats.rundir import from_os_error, fsync_dir
from protolith.model.build import build_model, empty_model, quiet_transformers

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
        weights: the module, or its tensors by name.
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
    tensors = _fit(clean_names(weights), model)
    if dtype is not None:
        tensors = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    stored = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    model.to(stored)
    model.generation_config = _generation(config)
    aside = output_dir.with_name(f".{output_dir.name}.{secrets.token_hex(4)}.tmp")
    try:
        aside.mkdir(parents=True)
        with quiet_transformers():
            model.save_pretrained(aside, state_dict=tensors, max_shard_size=_MAX_FILE_SIZE)
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


def _fit(tensors: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The tensors that ``model`` stores, tied ones once, after comparing names and shapes."""
    wanted: dict[str, Tensor] = dict(model.state_dict())
    tied: dict[str, str] = dict(getattr(model, "all_tied_weights_keys", None) or {})
    for copy_name, source in tied.items():
        if copy_name in tensors and source not in tensors:
            tensors[source] = tensors[copy_name]
        twin = tensors.pop(copy_name, None)
        if twin is not None and not torch.equal(twin, tensors[source]):
            raise ModelError(f"{copy_name} and {source} are tied in the config but differ")
        wanted.pop(copy_name, None)
    missing, surplus = sorted(set(wanted) - set(tensors)), sorted(set(tensors) - set(wanted))
    if missing or surplus:
        raise ModelError(
            f"the tensors are not those of {type(model).__name__}: "
            f"missing {missing[:5]}, surplus {surplus[:5]}"
        )
    for name, tensor in wanted.items():
        if tensor.shape != tensors[name].shape:
            raise ModelError(
                f"{name} has shape {tuple(tensors[name].shape)}, the config says {tuple(tensor.shape)}"
            )
    return {name: tensors[name].contiguous() for name in wanted}


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
