"""Both readers on text that is wrong, hostile, or merely unusual."""

# One case a line, with messages quoted whole.
# ruff: noqa: E501
from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolith.config.document import MAX_BYTES
from protolith.config.load import load_config
from protolith.config.toml_reader import read_toml, read_toml_value
from protolith.config.yaml_reader import plain_scalar, read_yaml, read_yaml_value
from protolith.errors import ConfigError, ProtolithError

RECIPE = "recipe: pretrain\nmodel:\n  name: m\ndata:\n  path: c.jsonl\n"
JOB = 'mode = "pretrain"\nmax_steps = 1\n[model]\nname = "m"\n[data]\npaths = ["d"]\n'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("False", False), ("TRUE", True),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("Off", "Off"), ("y", "y"), ("n", "n"),
        ("", None), ("~", None), ("null", None), ("Null", None), ("none", "none"),
        ("0", 0), ("-7", -7), ("+7", 7), ("1_000", 1000), ("1__0", "1__0"), ("_1", "_1"),
        ("010", "010"), ("0o17", 15), ("0x1F", 31), ("0b11", "0b11"),
        ("1:30", "1:30"), ("1:30:15", "1:30:15"), ("2024-01-02", "2024-01-02"), ("1.2.3", "1.2.3"),
        ("3e-4", 3e-4), ("1e5", 1e5), ("1E+5", 1e5), (".5", 0.5), ("5.", 5.0), ("1_0.5", 10.5), ("-.5e1", -5.0),
        ("e5", "e5"), (".", "."), ("-", "-"), ("1e", "1e"), ("nan", "nan"), ("inf", "inf"),
        (".inf", float("inf")), ("-.Inf", float("-inf")), ("=", "="), ("<<", "<<"),
    ],
)  # fmt: skip
def test_plain_words_of_yaml_mean_what_they_say(text, value):
    found = plain_scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_quoted_words_are_text():
    values = read_yaml("a: \"3e-4\"\nb: 'true'\nc: |\n  12\nd: ! 5\n", "f").values
    assert values["a"] == "3e-4"
    assert values["b"] == "true"
    assert values["c"] == "12\n"


@pytest.mark.parametrize("name", ["recipe.yaml", "pretrain.toml"])
@pytest.mark.parametrize("change", ["bom", "crlf", "both", "no last line end"])
def test_bom_and_line_ends_do_not_matter(write, name, change):
    text = RECIPE if name.endswith("yaml") else JOB
    data = text.encode()
    if change in ("crlf", "both"):
        data = data.replace(b"\n", b"\r\n")
    if change in ("bom", "both"):
        data = b"\xef\xbb\xbf" + data
    if change == "no last line end":
        data = data.rstrip()
    assert load_config(write(data, name)).config.model.name == "m"


@pytest.mark.parametrize("name", ["c.yaml", "c.toml"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"\n  \n", "the file is empty"),
        (b"# only this\n", "the file is empty (it holds comments only)"),
        (b"\xef\xbb\xbf", "the file is empty"),
        ("recipe: pretrain".encode("utf-16"), "the file is UTF-16 (save it as UTF-8)"),
        (b"a\n\nname: \xe9\n", ":3: not UTF-8: byte 0xe9 (save the file as UTF-8)"),
        (b"x" * (MAX_BYTES + 1), "a config file may have at most 1 MiB (is this the right file?)"),
    ],
)
def test_files_that_are_no_text_or_no_config(write, said, name, data, words):
    (text,) = said(load_config, write(data, name))
    assert text.startswith(name)
    assert text.endswith(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer:\n\tbatch_size: 4\n", "c.yaml:2: not YAML: a tab in the indentation (YAML is indented with spaces)"),
        ("trainer:\n  \tbatch_size: 4\n", "c.yaml:2: not YAML: a tab in the indentation (YAML is indented with spaces)"),
        ("a: 1\n\tb: 2\n", "c.yaml:2: not YAML: a tab in the indentation (YAML is indented with spaces)"),
        ("- a\n- b\n", "c.yaml: expected sections of key: value pairs, found a list (start with  recipe: pretrain)"),
        ("just words\n", "c.yaml: expected sections of key: value pairs, found a single value (start with  recipe: pretrain)"),
        ("a: 1\na: 2\n", "c.yaml:2: a: given twice, first on line 1 (keep one of them)"),
        ("a:\n  b: 1\n  c: 2\n  b: 1\n", "c.yaml:4: a.b: given twice, first on line 2 (keep one of them)"),
        ("path: *.jsonl\n", 'c.yaml:1: not YAML: a value that starts with "*" needs quotes ("*.jsonl")'),
        ("path: *all\n", 'c.yaml:1: *all refers to nothing (a pattern needs quotes: "*all")'),
        ("a: @x\n", 'c.yaml:1: not YAML: a value that starts with "@" needs quotes ("@x")'),
        ("a: b: c\n", "c.yaml:1: not YAML: mapping values are not allowed in this context (check the indentation; a text that holds ': ' needs quotes)"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2: a second document starts here (---) (one config a file)"),
        ("a: !!python/object/apply:os.system [ls]\n", "c.yaml:1: tags such as tag:yaml.org,2002:python/object/apply:os.system are not supported (write the plain value)"),
        ("? {a: b}\n: c\n", "c.yaml:1: a key must be a plain name (quote the value if it holds { [ or *)"),
        ("a: &x [*x]\n", "c.yaml:1: *x holds itself"),
        ("a: [1,\nb: 2\n", "c.yaml:3: not YAML: did not find expected ',' or ']'"),
        ("a: \x00\n", "c.yaml:1: not YAML: control characters are not allowed"),
    ],
)  # fmt: skip
def test_what_is_no_yaml_is_told_with_its_line(write, said, text, expected):
    """Duplicate keys, tabs, a list at the top and the like are loud (T49)."""
    assert expected in said(load_config, write(text, "c.yaml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[optim]\nlr = 1\nlr = 2\n", "c.toml:3: optim.lr: given twice (keep one of them)"),
        ("a = 1\na = 2", "c.toml:2: a: given twice (keep one of them)"),
        ("[a]\nb = 1\n[a]\nc = 2\n", "c.toml:3: [a]: this section is given twice (put its keys in one place)"),
        ("a = 1\nb = word\n", 'c.toml:2: not TOML: invalid value (text needs quotes: b = "word")'),
        ("b = True\n", "c.toml:1: not TOML: invalid value (truth values are true and false, in small letters)"),
        ("trainer:\n  x: 1\n", "c.toml:1: not TOML: expected '=' after a key in a key/value pair (TOML writes key = value; a YAML recipe is named .yaml)"),
        ('a = "x\n', "c.toml:1: not TOML: illegal character '\\n'"),
        ("a = \n", "c.toml:1: not TOML: invalid value"),
    ],
)  # fmt: skip
def test_what_is_no_toml_is_told_with_its_line(write, said, text, expected):
    assert said(load_config, write(text, "c.toml")) == [expected]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "a: " + "[" * 10_000),
        ("c.yaml", "a: " + "[" * 60 + "]" * 60),
        ("c.yaml", "".join(" " * n + "a:\n" for n in range(60))),
        ("c.yaml", "{a: " * 10_000),
        ("c.toml", "a = " + "[" * 10_000 + "]" * 10_000),
        ("c.toml", "a = " + "[" * 60 + "]" * 60),
        ("c.toml", ".".join("a" * 100_000) + " = 1"),
        ("c.toml", "[" + ".".join(["'a b'"] * 60) + "]\n"),
        ("c.toml", "x = {" + " . ".join("a" * 60) + " = 1}\n"),
    ],
)
def test_deep_nesting_is_refused_at_once(write, said, name, text):
    begin = time.monotonic()
    (told,) = said(load_config, write(text, name))
    assert "nested more than 50 levels deep" in told
    assert time.monotonic() - begin < 5


def test_aliases_cannot_blow_up(write, said):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    (told,) = said(load_config, write("\n".join(lines), "c.yaml"))
    assert "more than 50000 values" in told


def test_an_alias_is_a_copy():
    values = read_yaml("a: &x {b: [1]}\nc: *x\n", "f").values
    assert values == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert values["a"]["b"] is not values["c"]["b"]


@pytest.mark.parametrize(("name", "sign"), [("c.yaml", ": "), ("c.toml", " = ")])
def test_numbers_without_end_are_refused(write, said, name, sign):
    told = said(load_config, write(f"a{sign}{'9' * 5000}\n", name))
    assert told
    assert all(len(text) < 300 for text in told)


def test_dots_in_toml_values_are_no_nesting():
    values = read_toml(f'a = "{"." * 200}"\nb = "{".".join("x" * 100)}"\n', "f").values
    assert len(values["a"]) == 200


def test_toml_lines_are_found_behind_everything_that_hides_them():
    text = '''\
a = """
b = 1  # no key
\\""" still text
"""
'c d' = 'x # y'
e.f = [ # comment ]
  "]", '[',
  {g = 1},
]
[h.i]  # header
"j k" = 1
l = {m = 2}
[[n]]
o = 1
[n.p]
q = 1
[[n]]
o = 2
r = \'\'\'
s = 1\'\'\'
t = ""
u = 1979-05-27T07:32:00
'''
    lines = read_toml(text, "f").lines
    expected = {
        ("a",): 1, ("c d",): 5, ("e", "f"): 6, ("h",): 10, ("h", "i"): 10, ("h", "i", "j k"): 11, ("h", "i", "l"): 12,
        ("n", "0", "o"): 14, ("n", "0", "p", "q"): 16, ("n", "1", "o"): 18, ("n", "1", "r"): 19, ("n", "1", "t"): 21,
        ("n", "1", "u"): 22,
    }  # fmt: skip
    assert {path: lines[path] for path in expected} == expected
    assert ("b",) not in lines
    assert ("s",) not in lines


_WORD = st.text(st.characters(codec="utf-8"), max_size=12)
_KEY = st.text("ab_-1", min_size=1, max_size=4)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab:-# \n\t[]{}&*!|>'\"%@`,?=.1"), max_size=60))
def test_any_text_is_read_or_refused_and_never_crashes(text):
    for read in (read_yaml, read_toml):
        try:
            read(text, "f")
        except ConfigError as error:
            assert error.where.startswith("f")


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(_KEY, _WORD), max_size=8, unique_by=lambda pair: pair[0]))
def test_toml_keys_are_found_on_their_lines(pairs):
    import json

    lines = [f'"{key}" = {json.dumps(value)}' for key, value in pairs if "\x7f" not in value]
    kept = [key for key, value in pairs if "\x7f" not in value]
    if not kept:
        return
    text = "\n".join(lines)
    try:
        document = read_toml(text, "f")
    except ConfigError:  # escapes that JSON has and TOML has not
        return
    assert [document.lines[(key,)] for key in kept] == list(range(1, len(kept) + 1))


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_config_error_or_a_config(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    for name in ("fuzz.yaml", "fuzz.toml"):
        (folder / name).write_bytes(data)
        with pytest.raises(ProtolithError):
            load_config(folder / name)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4), ("8", 8), ("true", True), ("no", "no"), ("null", None), ("", None), ("[a, b]", ["a", "b"]),
        ("*.jsonl", "*.jsonl"), ("a: b", "a: b"), ("- x", "- x"), ('"3"', "3"), ("{a: 1}", {"a": 1}), ("@x", "@x"),
        ("data/corpus.jsonl", "data/corpus.jsonl"), ("#x", None),
    ],
)  # fmt: skip
def test_values_of_set_in_yaml(text, value):
    assert read_yaml_value(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4), ("8", 8), ("true", True), ('["a", "b"]', ["a", "b"]), ("cosine", "cosine"), ("", ""),
        ('"8"', "8"), ("data/train", "data/train"), ("1_000", 1000), ("1\nb = 2", None),
    ],
)  # fmt: skip
def test_values_of_set_in_toml(text, value):
    if value is None:
        with pytest.raises(ConfigError):
            read_toml_value(text)
    else:
        assert read_toml_value(text) == value
