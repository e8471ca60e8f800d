"""Settings that the schema knows and that do not work yet.

They parse, so that a config written for a later version is understood, and are refused before anything is
spent: never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from protolith.config.reading import LoadedConfig
from protolith.config.schema import TrainConfig
from protolith.errors import NotAvailableError

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def check_available(config: TrainConfig | LoadedConfig) -> None:
    """Refuse what cannot be done yet. A ``LoadedConfig`` is told in the names and lines of its file.

    Raises:
        NotAvailableError: with one entry in ``problems`` for each such setting.
    """
    loaded = config if isinstance(config, LoadedConfig) else None
    found = _unavailable(loaded.config if loaded else config)  # type: ignore[arg-type]
    names: Mapping[str, str] = loaded.names if loaded else {}
    origins: Mapping[str, str] = loaded.origins if loaded else {}
    problems = []
    for key, what, hint in found:
        problems.append(
            NotAvailableError(
                f"{names.get(key) or key}: {what} is not available yet", where=origins.get(key, ""), hint=hint
            )
        )
    if problems:
        first = problems[0]
        raise NotAvailableError(first.message, where=first.where, hint=first.hint, problems=tuple(problems))


def _unavailable(config: TrainConfig) -> list[tuple[str, str, str]]:
    """(canonical key, what, hint) of each."""
    data, trainer = config.data, config.trainer
    streamed = data.streaming and data.format == "text"
    rules: list[tuple[bool, str, str, str]] = [
        (
            streamed and data.eval_split > 0,
            "data.eval_split",
            "splitting streamed text",
            "name held-out text in data.eval_path",
        ),
        (
            data.format == "tokens" and data.eval_split > 0,
            "data.eval_split",
            "splitting token shards",
            "name held-out shards in data.eval_path",
        ),
        (
            trainer.strategy == "deepspeed",
            "trainer.strategy",
            "strategy deepspeed",
            "use auto, ddp or fsdp",
        ),
        (
            trainer.strategy == "fsdp" and trainer.optimizer == "muon",
            "trainer.optimizer",
            "muon with fsdp",
            "use adamw, or ddp",
        ),
        (trainer.num_nodes > 1, "trainer.num_nodes", "training on several machines", "use 1"),
        (
            (trainer.gpus_per_node or 1) > 1,
            "trainer.gpus_per_node",
            "several machines",
            "leave it out",
        ),
        (bool(config.fsdp), "fsdp", "settings of the FSDP engine", "leave the section out"),
        (bool(config.deepspeed), "deepspeed", "the DeepSpeed engine", "leave the section out"),
        *_remote("output.dir", (config.output.dir,)),
    ]
    return [(key, what, hint) for applies, key, what, hint in rules if applies]


def _remote(key: str, paths: tuple[str, ...]) -> list[tuple[bool, str, str, str]]:
    matches: list[re.Match[str]] = [match for match in map(_URL.match, paths) if match]
    return [(True, key, f"{matches[0].group()} storage", "use a path on this machine")] if matches else []
