"""From a file to a config: read, rename, validate, and tell every fault at once.

    text -> Document (values and lines, yaml_reader / toml_reader)
         -> changes of --set, in the names of the file
         -> user keys that exist, the rest are faults            (names.Spelling)
         -> canonical keys with this spelling's defaults         (job.to_canonical; a recipe needs none)
         -> the schema                                           (faults.validate)

The schema's class is an argument here, so that ``TrainConfig.from_file`` can use this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, cast

from protolith.config import job
from protolith.config.checks import config_warnings
from protolith.config.document import Document, KeyPath, read_text
from protolith.config.faults import Fault, together, validate
from protolith.config.fields import show
from protolith.config.names import Spelling, SpellingName
from protolith.config.recipe import recipe_spelling
from protolith.config.toml_reader import read_toml, read_toml_value
from protolith.config.yaml_reader import read_yaml, read_yaml_value
from protolith.errors import ConfigError, UnknownKeyError, UsageError

if TYPE_CHECKING:
    from protolith.config.schema import TrainConfig


@dataclass(frozen=True)
class LoadedConfig:
    """A config and where it came from.

    Attributes:
        config: the validated config.
        spelling: "recipe" (YAML), "job" (TOML) or "call" (Python arguments).
        origins: place of each canonical key that the user gave, such as ``recipe.yaml:12`` or ``--set ...``;
            what is not here is a default.
        warnings: settings without effect in this combination, one sentence each.
        names: the user's own name of each canonical key that has one.
    """

    config: TrainConfig
    spelling: SpellingName
    origins: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def say(self, key: str) -> str:
        """The user's own name of a canonical key, for messages."""
        return self.names.get(key, key)


def job_spelling() -> Spelling:
    """Names of a TOML config, with those of the recipe known for hints."""
    return replace(job.JOB, foreign=dict(recipe_spelling().keys))


def read_config(root: type[TrainConfig], path: str | PathLike[str], sets: Sequence[str] = ()) -> LoadedConfig:
    """Read a config file; the spelling follows from its name.

    Raises:
        NotFoundError, NotAllowedError: the file is not there or may not be read.
        UsageError: a ``--set`` that is no ``key=value``.
        ConfigError: everything else, with all faults in ``problems``.
    """
    name = fspath(path)
    suffix = PurePath(name).suffix.lower()
    if suffix not in (".yaml", ".yml", ".json", ".toml"):
        # Whether the file exists is the better news, so it is told first.
        read_text(path)
        raise ConfigError(
            f"cannot tell YAML from TOML by the name {PurePath(name).name}",
            where=name,
            hint="name it .yaml or .toml",
        )
    text = read_text(path)
    if suffix == ".toml":
        document, spelling = read_toml(text, name), job_spelling()
    else:
        document, spelling = read_yaml(text, name), recipe_spelling()
    apply_sets(document, sets, spelling)
    return resolve(root, document, spelling)


def apply_sets(document: Document, sets: Sequence[str], spelling: Spelling) -> None:
    """Put ``--set a.b=value`` over the values of the file; the last one of a key wins."""
    for text in sets:
        key, equals, raw = text.partition("=")
        path = tuple(part.strip() for part in key.split("."))
        if not equals or not all(path):
            raise UsageError(
                f'"{text}" is not key=value', where="--set", hint="such as --set trainer.batch_size=8"
            )
        try:
            value = read_toml_value(raw.strip()) if spelling.name == "job" else read_yaml_value(raw.strip())
        except ConfigError as error:
            raise ConfigError(error.message, where=f"--set {text}", hint=error.hint) from error
        here: Any = document.values
        for depth, part in enumerate(path[:-1], 1):
            if here.get(part) is None:
                here[part] = {}
            here = here[part]
            if not isinstance(here, dict):
                raise UsageError(
                    f"{'.'.join(path[:depth])} is {show(here)}, not a section",
                    where=f"--set {text}",
                    hint="set it as a whole",
                )
        here[path[-1]] = value
        for known in [known for known in document.lines if known[: len(path)] == path]:
            del document.lines[known]
        document.changed[path] = text


def resolve(root: type[TrainConfig], document: Document, spelling: Spelling) -> LoadedConfig:
    """Names, defaults, validation.

    Raises:
        ConfigError: with every fault found in ``problems``.
    """
    if spelling.name == "job" and (fault := job.wrong_mode(document.values)):
        raise together([*document.problems, fault.error(document)])
    values, sections, faults = _known_values(document, spelling)
    used, clashes = _one_name_each(values, spelling)
    faults += clashes

    def say(canonical: str) -> str:
        return spelling.say(canonical, used)

    if spelling.name == "job":
        flat, more = job.to_canonical(values, sections)
        faults += more
    else:
        flat = {spelling.keys[key]: value for key, value in values.items()}
    config, more = validate(root, flat, say)
    # What lies inside a key that is at fault already would only say the same again.
    told = [fault.path for fault in faults]
    faults += [fault for fault in more if not any(fault.path[: len(path)] == path for path in told)]
    problems = [*document.problems, *(fault.error(document) for fault in faults)]
    if problems or config is None:
        raise together(problems)
    typed = cast("TrainConfig", config)
    origins = {canonical: document.where(tuple(key.split("."))) for canonical, key in used.items()}
    return LoadedConfig(
        config=typed,
        spelling=spelling.name,
        origins=origins,
        warnings=config_warnings(typed, used.keys(), say),
        names={canonical: say(canonical) for canonical in spelling.keys.values()},
    )


def _known_values(
    document: Document, spelling: Spelling
) -> tuple[dict[str, Any], frozenset[str], list[Fault]]:
    """Values by dotted user key, sections that are there, and a fault for each name that does not exist."""
    values: dict[str, Any] = {}
    sections: set[str] = set()
    faults: list[Fault] = []

    def walk(here: Mapping[str, Any], path: KeyPath) -> None:
        for name, value in here.items():
            place = (*path, name)
            key = ".".join(place)
            # A quoted key may itself hold dots; it is then no key of ours.
            exists = len(place) == key.count(".") + 1
            if key in spelling.refused:
                message, hint = spelling.refused[key]
                faults.append(Fault(place, message, hint, UnknownKeyError))
            elif exists and key in spelling.keys:
                values[key] = value
            elif exists and key in spelling.sections:
                sections.add(key)
                if isinstance(value, Mapping):
                    walk(value, place)
                elif value is not None:
                    message = f"{key}: expected a section of keys and values, got {show(value)}"
                    hint = _section_value_hint(spelling, key, value)
                    faults.append(Fault(place, message, hint))
            elif isinstance(value, Mapping) and value and spelling.knows_foreign_section(key):
                walk(value, place)  # each of its keys is told what it is called here
            else:
                hint = spelling.hint_for(place, is_section=isinstance(value, Mapping))
                faults.append(Fault(place, f"{key}: {_unknown(spelling, value)}", hint, UnknownKeyError))

    walk(document.values, ())
    return values, frozenset(sections), faults


def _unknown(spelling: Spelling, value: Any) -> str:
    if spelling.name == "call":
        return "unknown argument"
    return "unknown section" if isinstance(value, Mapping) else "unknown key"


def _section_value_hint(spelling: Spelling, key: str, value: Any) -> str:
    """``model: my-model`` and ``data: corpus.jsonl`` are what people try first."""
    usual = {
        "model": "model.name",
        "data": spelling.say("data.path"),
        "output": "output.dir",
        "val": "val.data.paths",
    }
    target = usual.get(key, "")
    return f"did you mean {target}?" if target and target in spelling.keys and isinstance(value, str) else ""


def _one_name_each(values: Mapping[str, Any], spelling: Spelling) -> tuple[dict[str, str], list[Fault]]:
    """The user's key of each canonical one, and a fault where one setting was given by two names."""
    used: dict[str, str] = {}
    faults: list[Fault] = []
    for key in values:
        canonical = spelling.keys[key]
        if canonical in used:
            message = f"{used[canonical]} and {key} are one setting, and both are given"
            faults.append(Fault(tuple(key.split(".")), message, "keep one of them"))
        else:
            used[canonical] = key
    return used, faults
