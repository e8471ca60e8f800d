"""The pages of the documentation as data: fenced blocks and links.

A fence's info string says what a block is. The first word is its language, for highlighting. Then may come
``file=PATH`` (the block is that file, relative to the reader's folder) or ``exit=N`` (the command ends with
that exit code). Blocks of language ``bash`` are commands that a reader types and the tests run; ``sh`` blocks
are shown only; ``text`` blocks show output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=ticks)\s*$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*src=\"([^\"]+)\"|srcset=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+\s+(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line`` is where its fence stands."""

    language: str
    options: dict[str, str]
    body: str
    line: int


def pages() -> list[Path]:
    """Every page, the README first."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        language, *options = match["info"].split() or [""]
        pairs = dict(option.split("=", 1) for option in options)
        found.append(Block(language, pairs, match["body"], text.count("\n", 0, match.start()) + 1))
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return [next(filter(None, match.groups())) for match in _LINK.finditer(prose(page))]


def anchors(page: Path) -> set[str]:
    """Names that a link may point to in a page: its headings, as GitHub spells them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in _HEADING.findall(prose(page))
    }
