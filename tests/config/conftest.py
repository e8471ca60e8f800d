"""Small ways to write a config and to look at what is said about it."""

from __future__ import annotations

import pytest

from protolith.config.load import load_config
from protolith.errors import ConfigError

RECIPE = """\
recipe: pretrain
model:
  name: models/tiny
data:
  path: corpus.jsonl
"""

JOB = """\
mode = "pretrain"
max_steps = 100
[model]
name = "models/tiny"
[data]
paths = ["shards/train"]
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into the current folder and give back its name, so that errors show short names."""
    monkeypatch.chdir(tmp_path)

    def make(content, name="recipe.yaml"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return make


@pytest.fixture
def recipe(write):
    """Load the smallest recipe with more lines behind it."""

    def load(more="", sets=(), base=RECIPE):
        return load_config(write(base + more), sets)

    return load


@pytest.fixture
def job(write):
    """Load the smallest TOML config with more lines behind it."""

    def load(more="", sets=(), base=JOB):
        return load_config(write(base + more, "pretrain.toml"), sets)

    return load


@pytest.fixture
def said():
    """Every fault that a call tells, as text, in order."""

    def collect(call, *args, **kwargs):
        with pytest.raises(ConfigError) as caught:
            call(*args, **kwargs)
        error = caught.value
        assert error.exit_code == 2
        if error.problems:
            assert error.problems[0].to_dict() == {
                k: v for k, v in error.to_dict().items() if k != "problems"
            }
        return [str(problem) for problem in error.problems or (error,)]

    return collect
