"""What people and programs see: aligned text, no byte that steers a terminal, one JSON document."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys

import pytest

from protolith.cli import render


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, naïve 漢字", "plain text, naïve 漢字"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bar\rover", "bar\\x0dover"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("a\u2028b", "a\\u2028b"),
        (os.fsdecode(b"name-\xff"), "name-\\udcff"),
        ("two\nlines\tand a tab", "two\\x0alines\\x09and a tab"),
    ],
)
def test_control_characters_become_visible_escapes(text, shown):
    assert render.clean(text) == shown


def test_text_of_several_lines_keeps_line_ends_and_tabs_only():
    assert render.clean("a\n\tb\x07\r\n", lines=True) == "a\n\tb\\x07\\x0d\n"


def test_tables_without_a_terminal_are_aligned_plain_text(capsys):
    render.table(
        ("name", "loss"), [("short", "1.25"), ("漢字 wide", "10.5"), ("\x1b[2J", "x")], right=("loss",)
    )
    out = capsys.readouterr().out
    assert out == "name       loss\nshort      1.25\n漢字 wide  10.5\n\\x1b[2J       x\n"


def test_facts_are_aligned_and_nested(capsys):
    render.facts(
        {"a": 1_234_567, "longer": None, "inner": {"x": 0.5, "y": [1, "b\x1b"]}, "none": {}, "flag": True}
    )
    assert capsys.readouterr().out == (
        "a:      1,234,567\nlonger: -\ninner:\n  x: 0.5\n  y: 1, b\\x1b\nnone: none\nflag:   yes\n"
    )


def test_json_is_strict_ascii_and_writes_non_finite_numbers_as_text(capsys):
    render.print_json({"loss": math.nan, "perplexity": math.inf, "name": "漢\x1b\x9b"})
    out = capsys.readouterr().out
    assert out.isascii() and "\x1b" not in out
    value = json.loads(out, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert value == {"loss": "nan", "perplexity": "inf", "name": "漢\x1b\x9b"}


SHOW = (
    "from protolith.cli import render; render.heading('title');"
    "render.table(('a', 'b'), [('[red]x[/]', '\\x1b[1m')])"
)


def on_a_terminal(**environment: str) -> bytes:
    """What a process writes to a terminal."""
    leader, follower = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", SHOW], stdout=follower, stderr=follower, env={**environ, **environment}
    )
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(leader)
    assert process.wait(timeout=60) == 0
    return written.replace(b"\r\n", b"\n")


def test_a_terminal_gets_styles_but_never_those_of_the_data():
    written = on_a_terminal(TERM="xterm-256color")
    assert b"\x1b[1m" in written
    assert b"[red]x[/]" in written and b"\\x1b[1m" in written


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}, {}])
def test_a_dumb_terminal_or_no_color_gets_no_escape_byte_and_no_carriage_return(environment):
    written = on_a_terminal(**environment)
    assert b"\x1b" not in written and b"\r" not in written
    assert written.splitlines()[:2] == [b"title", b"a          b"]
