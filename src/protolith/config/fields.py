"""The types that the fields of the schema are made of.

They are strict: ``true`` is no number, ``"4"`` is no 4, 2.5 and 2.0 are no whole numbers, nan and inf are no
numbers. What they add to pydantic's own strictness:

- ``Paths``: one text or a list of texts, always a tuple afterwards.
- ``ManyOf``: a list becomes a tuple, so that a validated config cannot be changed by accident.
- ``Choice`` fields that mix words with true and false do not take 1 for true.

Whole numbers are bounded (10^12 for counts), so that no product of two of them is absurd.
"""

from __future__ import annotations

import math
import os
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_COUNT = 10**12

_Item = TypeVar("_Item")


def fault(message: str, hint: str = "", *, also: tuple[str, ...] = ()) -> PydanticCustomError:
    """A validation error in our own words. ``also``: other canonical keys that take part in the fault."""
    return PydanticCustomError("protolith", "{text}", {"text": message, "hint": hint, "also": also})


def _paths(value: Any) -> Any:
    items = value if isinstance(value, (list, tuple)) else (value,)
    texts = tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in items)
    if value is None:
        return ()
    for item in texts:
        if not isinstance(item, str):
            raise fault(f"expected a path or a list of paths, got {show(value)}")
        if not item.strip():
            raise fault("a path must not be empty")
        if "\0" in item:
            raise fault("a path must not hold a NUL character")
    return texts


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _no_number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise fault(
            f"expected true, false or a word, got {show(value)}", f"write {'true' if value else 'false'}"
        )
    return value


def _shuffle_word(value: Any) -> Any:
    """rows and none are other words for true and false."""
    return {"rows": True, "none": False}.get(value, value) if isinstance(value, str) else value


def _whole(value: Any) -> Any:
    """1e9 reads well for tokens, and is whole."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value


def _limit(value: int) -> int:
    if value < -1 or value == 0:
        raise fault(f"must be at least 1, or -1 for no limit, got {value}")
    return value


def _plain_name(value: str) -> str:
    if not value.strip() or len(value) > 100:
        raise fault("a name must have 1 to 100 characters")
    if value.startswith(".") or any(mark in value for mark in "/\\") or not value.isprintable():
        raise fault(
            f"a name must not start with a dot or hold /, \\ or control characters, got {show(value)}",
            "the name becomes a folder",
        )
    return value


def _empty_if_blank(value: Any) -> Any:
    return {} if value is None else value


def _json_table(value: dict[str, Any]) -> dict[str, Any]:
    """Free-form settings must survive JSON: they are saved with the run."""
    pending: list[Any] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    raise fault(f"keys must be text, got {show(key)}")
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise fault(f"expected finite numbers, got {show(item)}")
        elif item is not None and not isinstance(item, (bool, int, float, str)):
            raise fault(f"expected text, numbers, true, false, lists and sections, got {show(item)}")
    return value


def show(value: Any) -> str:
    """A value as an error message quotes it: what it is, and never more than one short line of it."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return "an empty text" if not value else f"the text {_quoted(text)}"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        # Converting a hostile number of many digits to text is refused by Python itself.
        return str(value) if value.bit_length() < 200 else "a number of more than 60 digits"
    if isinstance(value, (list, tuple)):
        return "an empty list" if not value else f"a list of {len(value)}"
    if isinstance(value, dict):
        return "a section"
    return f"a {type(value).__name__}"


def _quoted(text: str) -> str:
    return '"' + "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text) + '"'


_PATHS_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}},
    ]
}

Paths = Annotated[tuple[str, ...], BeforeValidator(_paths), WithJsonSchema(_PATHS_SCHEMA)]
ManyOf = Annotated[tuple[_Item, ...], BeforeValidator(_as_tuple)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_plain_name)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=MAX_COUNT)]
TokenCount = Annotated[
    int,
    Field(ge=1, le=10**18),
    BeforeValidator(_whole),
    WithJsonSchema({"type": "integer", "minimum": 1, "maximum": 10**18}),
]
Limit = Annotated[
    int,
    Field(le=MAX_COUNT),
    AfterValidator(_limit),
    WithJsonSchema({"type": "integer", "minimum": -1, "maximum": MAX_COUNT, "not": {"const": 0}}),
]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
PairOfBetas = Annotated[tuple[Beta, Beta], BeforeValidator(_as_tuple)]
Shuffle = Annotated[
    Literal[True, False, "blocks"],
    BeforeValidator(_shuffle_word),
    BeforeValidator(_no_number),
    WithJsonSchema({"enum": [True, False, "rows", "blocks", "none"]}),
]
Table = Annotated[dict[str, Any], BeforeValidator(_empty_if_blank), AfterValidator(_json_table)]
NoNumber = BeforeValidator(_no_number)
