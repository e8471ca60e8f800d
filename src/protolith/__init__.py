"""Protolith: pretrain language models from scratch.

    import protolith
    state = protolith.pretrain(model="my-model", dataset="corpus.jsonl", num_epochs=1)

Names are loaded when they are first used, so that ``import protolith`` costs nothing and loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolith.version import __version__

if TYPE_CHECKING:
    from protolith.config.schema import TrainConfig
    from protolith.errors import ProtolithError
    from protolith.training.api import pretrain
    from protolith.training.request import TrainState

_PLACES = {
    "pretrain": "protolith.training.api",
    "TrainState": "protolith.training.request",
    "TrainConfig": "protolith.config.schema",
    "ProtolithError": "protolith.errors",
}

__all__ = ["ProtolithError", "TrainConfig", "TrainState", "__version__", "pretrain"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'protolith' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
