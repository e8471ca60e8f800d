"""Paths as people write them: literal first, links once, nothing twice, nothing in silence."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from protolith.data.files import FoundFiles, find_files
from protolith.errors import DataError, NotFoundError

SUFFIXES = (".jsonl", ".jsonl.gz")


def find(*paths: Path | str) -> FoundFiles:
    return find_files([str(path) for path in paths], suffixes=SUFFIXES, what="JSONL text")


def names(found: FoundFiles) -> list[str]:
    return [file.name for file in found.files]


def put(path: Path, text: str = "{}\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "my data [v1] (é)"
    for name in ("b.jsonl", "a.jsonl", "sub/deep/c.jsonl.gz"):
        put(root / name)
    return root


def test_a_folder_is_walked_in_sorted_order(tree: Path) -> None:
    found = find(tree)
    assert names(found) == ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl.gz"]
    assert found.notes == ()
    assert found.size_bytes == 9


def test_order_does_not_depend_on_when_files_were_made(tmp_path: Path) -> None:
    """(T56)"""
    for number in reversed(range(20)):
        put(tmp_path / "x" / f"{number:02d}.jsonl")
    assert names(find(tmp_path / "x")) == [f"{number:02d}.jsonl" for number in range(20)]


def test_brackets_in_an_existing_name_are_no_pattern(tmp_path: Path) -> None:
    """(T56)"""
    put(tmp_path / "part[1].jsonl")
    put(tmp_path / "part1.jsonl")
    assert names(find(tmp_path / "part[1].jsonl")) == ["part[1].jsonl"]


def test_a_pattern_is_expanded_in_order(tree: Path) -> None:
    pattern = str(tree).replace("[", "[[]") + "/*.jsonl"
    assert names(find(pattern)) == ["a.jsonl", "b.jsonl"]
    assert names(find(str(tree).replace("[", "[[]") + "/**/*.gz")) == ["c.jsonl.gz"]


def test_relative_absolute_home_and_trailing_slash_find_the_same(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(T56)"""
    monkeypatch.chdir(tree.parent)
    monkeypatch.setenv("HOME", str(tree.parent))
    expected = names(find(tree))
    for spelling in (tree.name, f"./{tree.name}", f"{tree.name}/", f"~/{tree.name}", f"{tree}/sub/.."):
        assert names(find(spelling)) == expected


def test_links_are_followed_once(tree: Path, tmp_path: Path) -> None:
    """(T56)"""
    outside = put(tmp_path / "elsewhere" / "z.jsonl").parent
    (tree / "linked").symlink_to(outside)
    (tree / "0-inside").symlink_to(tree / "sub")
    found = find(tree)
    assert names(found) == ["a.jsonl", "b.jsonl", "linked/z.jsonl", "sub/deep/c.jsonl.gz"]
    assert "read once: 0-inside" in found.notes[0]
    link = tmp_path / "way in"
    link.symlink_to(tree)
    assert names(find(link)) == names(found)


def test_loops_end_and_do_not_climb_out(tree: Path, tmp_path: Path) -> None:
    """A link to the folder's parent must not pull in the parent's other files (T56)."""
    put(tmp_path / "not-ours.jsonl")
    (tree / "up").symlink_to(tree.parent)
    (tree / "sub" / "self").symlink_to(tree / "sub")
    found = find(tree)
    assert names(found) == ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl.gz"]
    assert "2 a link back to a folder above it" in found.notes[0]


def test_a_loop_through_another_folder_ends(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    put(other / "o.jsonl")
    (tree / "there").symlink_to(other)
    (other / "back").symlink_to(tmp_path)
    assert names(find(tree)) == ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl.gz", "there/o.jsonl"]


@pytest.mark.parametrize("second", ["", "sub", "a.jsonl", "./.", "LINK"])
def test_overlapping_paths_are_read_once_and_said(tree: Path, tmp_path: Path, second: str) -> None:
    """(T58)"""
    (tmp_path / "LINK").symlink_to(tree)
    other = tmp_path / "LINK" if second == "LINK" else tree / second
    found = find(tree, other)
    assert names(found) == names(find(tree))
    assert "more than once, read once" in found.notes[0]


def test_a_file_named_before_its_folder_is_read_once(tree: Path) -> None:
    found = find(tree / "b.jsonl", tree)
    assert names(found) == ["b.jsonl", "a.jsonl", "sub/deep/c.jsonl.gz"]


def test_hidden_and_unfinished_files_are_counted(tree: Path) -> None:
    """(T7)"""
    for name in (".nfs0001", ".part.jsonl", "x.jsonl.tmp", "y.jsonl.crc", ".git/h.jsonl", "README.md"):
        put(tree / name)
    found = find(tree)
    assert names(found) == ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl.gz"]
    assert found.notes == ("passed over while looking for JSONL text: 1 *.md, 3 hidden, 2 temporary",)


def test_a_hidden_path_that_is_named_is_taken(tmp_path: Path) -> None:
    put(tmp_path / ".cache" / "a.jsonl")
    assert names(find(tmp_path / ".cache")) == ["a.jsonl"]
    assert names(find(put(tmp_path / ".b"))) == [".b"]


def test_a_missing_path_names_itself_and_the_nearest(tree: Path) -> None:
    """(T7)"""
    with pytest.raises(NotFoundError) as caught:
        find(tree.parent / "my data [v1] (e)")
    assert "my data [v1] (e)" in caught.value.where
    with pytest.raises(NotFoundError) as caught:
        find(tree / "a.json")
    assert "a.jsonl" in caught.value.hint


def test_an_empty_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    """(T7)"""
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError) as caught:
        find(tmp_path / "void")
    assert caught.value.where == str(tmp_path / "void")
    assert "empty" in caught.value.hint


@pytest.mark.parametrize(("name", "word"), [("x.parquet", "Parquet"), ("x.ds", "format: tokens")])
def test_a_folder_of_another_form_says_what_to_do(tmp_path: Path, name: str, word: str) -> None:
    put(tmp_path / "d" / "e" / name)
    with pytest.raises(DataError) as caught:
        find(tmp_path / "d")
    assert word in caught.value.hint
    with pytest.raises(DataError) as caught:
        find(tmp_path / "d" / "e" / name)
    assert word in caught.value.hint


def test_a_broken_link_is_told(tmp_path: Path) -> None:
    put(tmp_path / "d" / "a.jsonl")
    (tmp_path / "d" / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    assert "1 a broken link" in find(tmp_path / "d").notes[0]
    with pytest.raises(NotFoundError, match="nowhere"):
        find(tmp_path / "d" / "gone.jsonl")


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    put(tmp_path / "d" / "a.jsonl")
    os.mkfifo(tmp_path / "d" / "p.jsonl")
    found = find(tmp_path / "d")
    assert names(found) == ["a.jsonl"]
    assert "neither file nor folder" in found.notes[0]


@pytest.fixture
def stored():
    """A storage in this process, and how to put files into it."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    yield lambda name, text="{}\n": store.pipe_file(f"/corpus/{name}", text.encode())
    store.store.clear()


def test_a_folder_behind_a_url_follows_the_same_rules(stored) -> None:
    for name in ("b.jsonl", "a/c.jsonl.gz", "a/x.tmp", ".hidden/d.jsonl", ".hidden/e.jsonl", "f.csv"):
        stored(name)
    found = find("memory://corpus")
    assert names(found) == ["a/c.jsonl.gz", "b.jsonl"]
    assert [file.size_bytes for file in found.files] == [3, 3]
    assert all(file.version and file.stat == found.listed[file.path] for file in found.files)
    assert found.notes == ("passed over while looking for JSONL text: 1 *.csv, 1 hidden, 1 temporary",)


def test_a_url_of_a_file_is_meant_literally(stored) -> None:
    stored("x.tmp.jsonl")
    stored("x.ds")
    assert names(find("memory://corpus/x.tmp.jsonl")) == ["x.tmp.jsonl"]
    with pytest.raises(DataError, match="this is no JSONL text") as caught:
        find("memory://corpus/x.ds")
    assert "tokens" in caught.value.hint


def test_a_pattern_in_a_url_matches_files_and_folders(stored) -> None:
    for name in ("part-1/a.jsonl", "part-2/a.jsonl", "part-3.jsonl", "other.jsonl"):
        stored(name)
    found = find("memory://corpus/part-*")
    assert names(found) == ["a.jsonl", "a.jsonl", "part-3.jsonl"]


def test_an_object_named_twice_is_read_once(stored) -> None:
    stored("a.jsonl")
    found = find("memory://corpus", "memory://corpus/a.jsonl")
    assert names(found) == ["a.jsonl"]
    assert found.notes == ("named or linked more than once, read once: a.jsonl",)


def test_a_url_with_nothing_to_read_says_what_is_there(stored) -> None:
    stored("a.ds")
    with pytest.raises(DataError, match="no JSONL text") as caught:
        find("memory://corpus")
    assert "a.ds" in caught.value.hint
    with pytest.raises(NotFoundError) as missing:
        find("memory://corpus/none")
    assert "memory://corpus/none" in missing.value.where
