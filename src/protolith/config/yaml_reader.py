"""YAML text -> ``Document``.

A tree is built here from PyYAML's events, so that each key has its line, and so that three things hold which
PyYAML's own loader does not give:

- a key given twice is a fault, not the last value;
- plain words mean what they say: ``true`` and ``false`` are the only truth values (``yes``, ``no``, ``on``,
  ``off`` are text), ``3e-4`` is a number, ``0755`` and ``1:30`` are text, a date is text, ``1_000`` is 1000;
- no tags, no merge keys, and aliases cannot blow up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from protolith.config.document import MAX_DEPTH, MAX_VALUES, Document, KeyPath
from protolith.errors import ConfigError

_INTEGER = re.compile(r"[-+]?(0|[1-9](_?[0-9])*)\Z")
_RADIX = re.compile(r"0(x[0-9a-fA-F]+|o[0-7]+)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9](_?[0-9])*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_MAX_DIGITS = 400


def read_yaml(text: str, name: str) -> Document:
    """Parse a whole YAML file.

    Raises:
        ConfigError: the first thing that is no YAML, with its line.
    """
    document = Document(name)
    root = _Builder(text, document).build()
    if root is None:
        raise ConfigError("the file is empty", where=name, hint="it holds comments only")
    if not isinstance(root, dict):
        kind = "a list" if isinstance(root, list) else "a single value"
        raise ConfigError(
            f"expected sections of key: value pairs, found {kind}",
            where=name,
            hint="start with  recipe: pretrain",
        )
    document.values = root
    return document


def read_yaml_value(text: str) -> Any:
    """The value of ``--set key=text``. What is no YAML, or looks like a mapping ("a: b"), is text."""
    document = Document("--set")
    structured = text.lstrip().startswith(("[", "{", '"', "'"))
    try:
        value = _Builder(text, document).build()
    except ConfigError:
        if structured:
            raise
        return text
    if document.problems:
        raise document.problems[0]
    return text if isinstance(value, (dict, list)) and not structured else value


def plain_scalar(text: str) -> Any:
    """What an unquoted word means."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) <= _MAX_DIGITS:
        if _INTEGER.match(text):
            return int(text)
        if _RADIX.match(text):
            return int(text, 0)
        if _FLOAT.match(text):
            return float(text)
    return _SPECIAL.get(text.lower(), text)


class _Builder:
    """Turns the events of one text into nested values; counts what it makes."""

    def __init__(self, text: str, document: Document) -> None:
        import yaml  # only those who read YAML pay for it

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        self._yaml = yaml
        self._text = text
        self._document = document
        self._events: Iterator[Any] = yaml.parse(text, Loader=loader)
        self._anchors: dict[str, Any] = {}
        self._open: set[str] = set()
        self._made = 0

    def build(self) -> Any:
        yaml, value, documents = self._yaml, None, 0
        try:
            for event in self._events:
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        raise self._error("a second document starts here (---)", event, "one config a file")
                elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent, yaml.AliasEvent)):
                    value = self._value(event, (), 0)
        except yaml.YAMLError as error:
            raise self._syntax_error(error) from error
        return value

    def _value(self, event: Any, path: KeyPath, depth: int) -> Any:
        yaml = self._yaml
        self._made += 1
        if self._made > MAX_VALUES:
            raise self._error(f"more than {MAX_VALUES} values", event)
        if depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} levels deep", event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag is not None and event.tag != "!":
            raise self._error(f"tags such as {event.tag} are not supported", event, "write the plain value")
        if event.anchor:
            self._open.add(event.anchor)
        if isinstance(event, yaml.ScalarEvent):
            value = plain_scalar(event.value) if event.implicit[0] else event.value
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._mapping(path, depth)
        else:
            value = self._sequence(path, depth)
        if event.anchor:
            self._open.discard(event.anchor)
            self._anchors[event.anchor] = value
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor in self._open:
            raise self._error(f"*{event.anchor} holds itself", event)
        if event.anchor not in self._anchors:
            raise self._error(
                f"*{event.anchor} refers to nothing", event, f'a pattern needs quotes: "*{event.anchor}"'
            )
        return self._copy(self._anchors[event.anchor], event)

    def _copy(self, value: Any, event: Any) -> Any:
        """Aliases are copied, and counted, so that sharing cannot grow without bound."""
        self._made += 1
        if self._made > MAX_VALUES:
            raise self._error(f"more than {MAX_VALUES} values", event)
        if isinstance(value, dict):
            return {key: self._copy(item, event) for key, item in value.items()}
        if isinstance(value, list):
            return [self._copy(item, event) for item in value]
        return value

    def _mapping(self, path: KeyPath, depth: int) -> dict[str, Any]:
        yaml, made = self._yaml, {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            if not isinstance(event, yaml.ScalarEvent):
                raise self._error("a key must be a plain name", event, "quote the value if it holds { [ or *")
            key, here = event.value, (*path, event.value)
            line = event.start_mark.line + 1
            value = self._value(next(self._events), here, depth + 1)
            if key in made:
                first = self._document.lines[here]
                self._document.problems.append(
                    ConfigError(
                        f"{'.'.join(here)}: given twice, first on line {first}",
                        where=f"{self._document.name}:{line}",
                        hint="keep one of them",
                    )
                )
                continue
            made[key] = value
            self._document.lines[here] = line
        return made

    def _sequence(self, path: KeyPath, depth: int) -> list[Any]:
        made: list[Any] = []
        for event in self._events:
            if isinstance(event, self._yaml.SequenceEndEvent):
                break
            here = (*path, str(len(made)))
            self._document.lines[here] = event.start_mark.line + 1
            made.append(self._value(event, here, depth + 1))
        return made

    def _error(self, message: str, event: Any, hint: str = "") -> ConfigError:
        return ConfigError(message, where=f"{self._document.name}:{event.start_mark.line + 1}", hint=hint)

    def _syntax_error(self, error: Any) -> ConfigError:
        """PyYAML's words, with a line, and in ours where they are known to puzzle."""
        name = self._document.name
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            position = getattr(error, "position", None)
            line = self._text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
            reason = getattr(error, "reason", "") or "unreadable text"
            return ConfigError(f"not YAML: {reason}", where=f"{name}:{line}")
        lines = self._text.split("\n")
        here = lines[mark.line] if mark.line < len(lines) else ""
        problem = str(error.problem or "syntax error")
        value = here.partition(":")[2].strip() or here.strip().lstrip("- ")
        hint = ""
        if "\t" in here[: len(here) - len(here.lstrip())]:
            problem, hint = "a tab in the indentation", "YAML is indented with spaces"
        elif "maximum nesting" in problem:
            problem = f"nested more than {MAX_DEPTH} levels deep"
        elif value[:1] in ("*", "&", "%", "@", "`", "!"):
            problem, hint = f'a value that starts with "{value[0]}" needs quotes', f'"{value}"'
        elif "mapping values are not allowed" in problem:
            hint = "check the indentation; a text that holds ': ' needs quotes"
        return ConfigError(f"not YAML: {problem}", where=f"{name}:{mark.line + 1}", hint=hint)
