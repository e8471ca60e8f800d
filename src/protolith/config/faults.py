"""Faults found in a config, and how they are told.

Validation speaks of types and bounds; people get a sentence with their own key, what was expected and what
was found: ``recipe.yaml:12: trainer.batch_size: expected a whole number, got 2.5``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from protolith.config.checks import Say
from protolith.config.document import Document, KeyPath
from protolith.config.fields import show
from protolith.config.names import nearest_word
from protolith.errors import ConfigError, InvalidValueError

_LINE = re.compile(r":(\d+)\Z")
_FALSY = ("no", "off", "false", "n", "0", "none")
_TRUTHY = ("yes", "on", "true", "y", "1")


@dataclass(frozen=True)
class Fault:
    """One fault at one key, in the user's own names. The message is whole: it names the key."""

    path: KeyPath
    message: str
    hint: str = ""
    kind: type[ConfigError] = InvalidValueError

    def error(self, document: Document) -> ConfigError:
        return self.kind(self.message, where=document.where(self.path), hint=self.hint)


def together(errors: Iterable[ConfigError]) -> ConfigError:
    """One error that speaks for the first fault and carries all of them, in the order of the file."""
    ordered = sorted(errors, key=_line)
    first = ordered[0]
    return type(first)(first.message, where=first.where, hint=first.hint, problems=tuple(ordered))


def _line(error: ConfigError) -> int:
    match = _LINE.search(error.where)
    return int(match.group(1)) if match else 0


def validate(root: type[BaseModel], flat: dict[str, Any], say: Say) -> tuple[BaseModel | None, list[Fault]]:
    """Validate values by canonical key.

    Rules between keys can only be tried on a valid config, so when single keys are at fault, the rules are
    tried on what is left without them: a person gets everything at once.
    """
    try:
        return root.model_validate(nest(flat), context={"say": say}), []
    except ValidationError as error:
        lines = error.errors(include_url=False)
    faults = [_told(line, say) for line in lines]
    bad = {_leaf(line["loc"], flat) for line in lines}
    if all(_is_rule(line) for line in lines):
        return None, faults
    rest = {key: value for key, value in flat.items() if key not in bad}
    rest.setdefault("model.name", "?")
    if bad & {"data.path", "data.sources"}:
        rest.setdefault("data.path", "?")
    try:
        root.model_validate(nest(rest), context={"say": say})
    except ValidationError as error:
        for line in error.errors(include_url=False):
            keys = {_leaf(line["loc"], flat), *line.get("ctx", {}).get("also", ())}
            if _is_rule(line) and not keys & bad:
                faults.append(_told(line, say))
    return None, faults


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys to nested dicts; ``model`` and ``data`` are always there: what they lack has a name."""
    made: dict[str, Any] = {"model": {}, "data": {}}
    for key, value in flat.items():
        *sections, last = key.split(".")
        here = made
        for name in sections:
            here = here.setdefault(name, {})
        here[last] = value
    return made


def _leaf(loc: tuple[int | str, ...], flat: dict[str, Any]) -> str:
    """The key of ``flat`` that a place inside it belongs to, or the place itself."""
    for end in range(len(loc), 0, -1):
        key = ".".join(str(part) for part in loc[:end])
        if key in flat:
            return key
    return ".".join(str(part) for part in loc)


def _is_rule(line: Any) -> bool:
    """Whether a line comes from a rule between keys (those carry no input)."""
    return bool(line["type"] == "protolith") and line["input"] is None


def _told(line: Any, say: Say) -> Fault:
    path = _user_path(line["loc"], say)
    name = _written(path)
    if line["type"] == "protolith":
        text, hint = line["ctx"]["text"], line["ctx"]["hint"]
        return Fault(path, text if _is_rule(line) else f"{name}: {_without(text, hint)}", hint)
    text, hint = describe(line)
    return Fault(path, f"{name}: {text}", hint)


def _without(text: str, hint: str) -> str:
    return text.removesuffix(f"; {hint}") if hint else text


def _user_path(loc: tuple[int | str, ...], say: Say) -> KeyPath:
    parts = tuple(str(part) for part in loc)
    for end in range(len(parts), 0, -1):
        name = say(".".join(parts[:end]))
        if name:
            return (*name.split("."), *parts[end:])
    return parts


def _written(path: KeyPath) -> str:
    """``data.path[1]`` for an item of a list, dots elsewhere."""
    text = ""
    for part in path:
        text += f"[{part}]" if part.isdigit() and text else (f".{part}" if text else part)
    return text


def describe(line: Any) -> tuple[str, str]:
    """(what is wrong, what to do) for one line of a pydantic error."""
    kind, value, ctx = line["type"], line["input"], line.get("ctx", {})
    if kind == "missing":
        return "required, but not given", ""
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        bound, word = _BOUNDS[kind]
        return f"must be {word} {_number(ctx[bound])}, got {show(value)}", ""
    if kind == "finite_number":
        return f"expected a finite number, got {show(value)}", ""
    if kind == "literal_error":
        return _not_a_choice(ctx["expected"], value)
    if kind == "string_too_short":
        return "must not be empty", ""
    if kind in ("too_short", "too_long"):
        size = ctx.get("min_length", ctx.get("max_length"))
        return f"expected {size} entries, got {show(value)}", ""
    for prefix, (what, help_) in _KINDS.items():
        if kind.startswith(prefix):
            return f"expected {what}, got {show(value)}", help_(value)
    return str(line["msg"]), ""


def _not_a_choice(expected: str, value: Any) -> tuple[str, str]:
    """Pydantic lists the choices as ``'a', 'b' or True``."""
    words = [_choice(word) for word in re.split(r", | or ", expected)]
    text = f"expected {words[0]}" if len(words) == 1 else f"expected one of {', '.join(words)}"
    hint = ""
    if isinstance(value, str):
        near = nearest_word(value, words)
        hint = f"did you mean {near}?" if near else _truth_hint(value) if "true" in words else ""
        if not hint and "fp32" in words and value.lower() in ("no", "none", "off", "float32", "32"):
            hint = "write fp32 for full precision"
    elif value is False and "fp32" in words:
        hint = "write fp32 for full precision"
    elif isinstance(value, bool) and "none" in words:
        hint = "write full or none"
    return f"{text}; got {show(value)}", hint


def _choice(word: str) -> str:
    return {"True": "true", "False": "false"}.get(word, word.strip("'"))


def _number_hint(value: Any) -> str:
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return ""
        return (
            "write the number without quotes"
            if not value.strip().startswith("0") or "." in value
            else ("write the number without quotes and without a leading zero")
        )
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return f"write {int(value)}"
    return ""


def _truth_hint(value: Any) -> str:
    word = str(value).strip().lower()
    if isinstance(value, (str, int, float)):
        return "write false" if word in _FALSY else "write true" if word in _TRUTHY else ""
    return ""


def _text_hint(value: Any) -> str:
    if isinstance(value, (bool, int, float)):
        return f'write it in quotes: "{show(value)}"'
    return ""


def _list_hint(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        return ""
    return "write " + json.dumps([part.strip() for part in value.split(",")], ensure_ascii=False)


def _no_hint(_value: Any) -> str:
    return ""


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "greater than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_KINDS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "int": ("a whole number", _number_hint),
    "float": ("a number", _number_hint),
    "bool": ("true or false", _truth_hint),
    "string": ("text", _text_hint),
    "tuple": ("a list", _list_hint),
    "list": ("a list", _list_hint),
    "dict": ("a section of key: value pairs", _no_hint),
    "model": ("a section of key: value pairs", _no_hint),
}
