"""The commands of the README, the getting-started pages and the guides, run as a reader would run them."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block, blocks, name_of

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/getting-started").glob("*.md")),
    *sorted((ROOT / "docs/guides").glob("*.md")),
]
RUN = [page for page in PAGES if any(block.language == "bash" for block in blocks(page))]
TIMEOUT_S = 240
#: Output that does not depend on the machine: its first line is looked for in what was printed.
COMPARED = ("error: ", "skipped ")


@pytest.fixture
def reader(tmp_path):
    """A folder with the examples in it, and a shell in which ``protolith`` and ``python`` are ours."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }

    def shell(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    return tmp_path, shell


def give_corpus_and_config(folder: Path) -> None:
    """What the README takes for granted: text, and the description of a model."""
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "examples/prepare.py")
    assert spec is not None and spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    prepare.write_jsonl(folder / "corpus.jsonl", range(300))
    (folder / "model").mkdir()
    config = {**prepare.MODEL, "vocab_size": prepare.VOCABULARY, "eos_token_id": 0}
    (folder / "model/config.json").write_text(json.dumps(config))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_commands_of_a_page_do_what_it_says(page, reader):
    folder, shell = reader
    if page.name == "README.md":
        give_corpus_and_config(folder)
    printed = ""
    for block in blocks(page):
        place = f"{name_of(page)}:{block.line}"
        if "file" in block.options:
            path = folder / block.options["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.body, encoding="utf-8")
        elif block.language == "bash":
            done = shell(block.body)
            printed = done.stdout
            wanted = int(block.options.get("exit", 0))
            assert done.returncode == wanted, f"{place} ended with {done.returncode}:\n{printed}"
        elif block.language == "text" and block.body.startswith(COMPARED):
            said = block.body.splitlines()[0]
            assert said in printed.splitlines(), f"{place} was not said:\n{said}\nbut:\n{printed}"


def test_every_kind_of_block_is_known():
    """A misspelt instruction would be a command that nobody runs."""
    known = {"bash", "sh", "text", "yaml", "toml", "json", "python"}
    for page in PAGES:
        for block in blocks(page):
            assert block.language in known, f"{name_of(page)}:{block.line} is {block.language!r}"
            assert set(block.options) <= {"file", "exit", "signature"}, f"{name_of(page)}:{block.line}"


def commands_of(block: Block) -> list[str]:
    return [line for line in block.body.splitlines() if line.strip() and not line.startswith("#")]


def test_commands_that_are_only_shown_exist():
    """``sh`` blocks are not run; what they call of ours must at least be a command."""
    from protolith.cli.main import COMMANDS

    for page in PAGES:
        for block in blocks(page):
            for line in commands_of(block) if block.language == "sh" else []:
                words = line.split()
                if words[0] == "protolith":
                    assert words[1] in COMMANDS or " ".join(words[1:3]) in COMMANDS, line
                elif words[0] == "make":
                    assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(), line
