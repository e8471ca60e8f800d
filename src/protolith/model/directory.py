"""Where a model's files are: a folder, a name in the local cache, or an id on the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path

from protolith.errors import ModelError, NotFoundError

_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
_WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")


def models_home() -> Path:
    """The folder of models known by name: ``models/`` in ``PROTOLITH_HOME`` (``~/.protolith``)."""
    return Path(os.environ.get("PROTOLITH_HOME") or "~/.protolith").expanduser() / "models"


def resolve_model_dir(name: str | Path, *, weights: bool = False) -> Path:
    """The folder that holds ``config.json`` of the model called ``name``.

    Tried in this order: a folder on this machine, a name below ``models_home()``, a hub id. From the hub come
    config and tokenizer files; weights (safetensors only) come only when ``weights`` is true.

    Raises:
        NotFoundError: nothing of that name anywhere, or the hub cannot be reached.
        ModelError: the folder is there and holds no config.json.
    """
    text = str(name)
    for folder in (Path(text).expanduser(), models_home() / text):
        if (folder / "config.json").is_file():
            return folder
        if folder.is_file():
            raise ModelError(
                "this is a file; a folder with config.json is needed", where=str(folder), hint=_FOLDER_HINT
            )
        if text and folder.is_dir():
            raise ModelError("no config.json in this folder", where=str(folder), hint=_FOLDER_HINT)
    if not text or text.startswith((".", "~", "/")) or text.count("/") > 1 or "\\" in text:
        raise NotFoundError(f"no model folder {text!r}", where="model.name", hint=_FOLDER_HINT)
    return _from_hub(text, weights=weights)


_FOLDER_HINT = "give a folder that holds config.json"


def _from_hub(name: str, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download  # optional path: most runs never touch the hub
    from huggingface_hub.errors import HFValidationError

    patterns = [*_SMALL_FILES, *(_WEIGHT_FILES if weights else ())]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns))
    except (OSError, ValueError, HFValidationError) as error:  # the hub's own errors are kinds of these
        reason = str(error).strip().splitlines()
        raise NotFoundError(
            f"no model {name!r}: not a folder, not in {models_home()}, and the hub gave none "
            f"({type(error).__name__}: {reason[0] if reason else 'no reason given'})",
            where="model.name",
            hint="give a folder that holds config.json, or download the model once while online",
        ) from error
    if not (folder / "config.json").is_file():
        raise ModelError("the hub's copy holds no config.json", where=name, hint=_FOLDER_HINT)
    return folder
