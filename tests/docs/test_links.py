"""Links between pages lead somewhere, and files that pages name exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, anchors, blocks, links, name_of, pages, prose

PAGES = pages()
_TICKED = re.compile(r"`([^`\n]+)`")
_OURS = ("src/", "tests/", "docs/", "examples/", "benchmarks/")
#: Folders of the package, as the internals pages name their files.
_PACKAGE = ("cli/", "config/", "data/", "distributed/", "formats/", "model/", "training/")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_pages_and_headings_that_exist(page):
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {link}: {sorted(anchors(target))}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page):
    for word in _TICKED.findall(prose(page)):
        place = word.partition(" ")[0].rstrip("/")
        if any(mark in word for mark in "*<{"):
            continue
        if word.startswith(_OURS):
            assert (ROOT / place).exists(), f"{name_of(page)} names {word}"
        elif word.startswith(_PACKAGE) and place.endswith(".py"):
            assert (ROOT / "src/protolith" / place).is_file(), f"{name_of(page)} names {word}"


def test_every_page_is_in_the_index():
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    missing = [name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in linked]
    assert missing == ["docs/README.md"]
    examples = {path for path in (ROOT / "examples").iterdir() if path.suffix in (".yaml", ".toml")}
    assert examples <= linked


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_on_a_page_is_python(page):
    for block in blocks(page):
        if block.language == "python" and "signature" not in block.options:
            compile(block.body, f"{name_of(page)}:{block.line}", "exec")
