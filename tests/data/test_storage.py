"""Bytes behind URLs: the same as those of local files, and every fault typed with the URL in it."""

from __future__ import annotations

import io
import pickle
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest

from protolith.data import storage_faults
from protolith.data.storage import (
    RemotePath,
    is_remote,
    list_files,
    location,
    open_at,
    open_binary,
    read_bytes,
    stat,
)
from protolith.data.storage_faults import asked, quoted, shown
from protolith.errors import (
    DataError,
    MissingExtraError,
    NotAllowedError,
    NotFoundError,
    ShardError,
    UnreachableError,
)
from tests.support.s3 import READER_KEY, READER_SECRET, forget_clients, set_environment

CONTENT = random.Random(5).randbytes(11 << 20)


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(storage_faults, "RETRY_S", 1.5)


@pytest.fixture
def memory():
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture(params=["file", "memory", "s3"])
def somewhere(request, tmp_path, memory):
    """(folder's URL, how to write a file there) of each kind of storage."""
    if request.param == "file":
        (tmp_path / "store").mkdir()
        root = f"file://{tmp_path}/store"
        client = fsspec.filesystem("file", auto_mkdir=True)
    elif request.param == "memory":
        root, client = "memory://store", memory
    else:
        server = request.getfixturevalue("s3")
        root, client = server.place(), server.client
    return root, lambda name, content: client.pipe_file(f"{root}/{name}", content)


def test_a_url_is_told_from_a_path(tmp_path):
    assert [is_remote(text) for text in ("s3://b/x", "gs://b", "c:/x", "a/b", "/a://b")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert location(str(tmp_path)) == tmp_path
    assert location("s3://b/x") == RemotePath("s3://b/x")


def test_a_remote_path_has_the_parts_of_a_path():
    path = RemotePath("s3://bucket/a/b.ds")
    assert (path.name, path.suffix, path.parent) == ("b.ds", ".ds", RemotePath("s3://bucket/a"))
    assert path.with_name("b.ds.index") == RemotePath("s3://bucket/a/b.ds.index")
    assert str(RemotePath("ftp://me:secret@host/x")) == "ftp://***@host/x"


def test_any_place_is_read_as_it_lies(somewhere):
    root, write = somewhere
    write("x.bin", CONTENT[: 1 << 20])
    reader = open_at(RemotePath(f"{root}/x.bin"))
    assert reader.size == 1 << 20 and reader.version
    for start, count in [(0, 1), (5, 1000), ((1 << 20) - 3, 3), (77, 0)]:
        buffer = bytearray(count)
        reader.read_into(memoryview(buffer), start)
        assert buffer == CONTENT[start : start + count]
    assert read_bytes(RemotePath(f"{root}/x.bin")) == CONTENT[: 1 << 20]


def test_threads_share_a_reader(somewhere):
    root, write = somewhere
    write("x.bin", CONTENT[: 1 << 20])
    reader = open_at(RemotePath(f"{root}/x.bin"))

    def read(start):
        buffer = bytearray(1000)
        reader.read_into(memoryview(buffer), start)
        return bytes(buffer)

    with ThreadPoolExecutor(8) as threads:
        starts = range(0, 100_000, 1000)
        assert b"".join(threads.map(read, starts)) == CONTENT[:100_000]


def test_a_file_is_read_in_order_and_from_any_place(somewhere):
    root, write = somewhere
    write("x.bin", CONTENT)
    with open_binary(RemotePath(f"{root}/x.bin")) as file:
        assert file.read() == CONTENT
        assert file.read(1) == b""
        assert file.seek(-10, io.SEEK_END) == len(CONTENT) - 10
        assert file.read(100) == CONTENT[-10:]
        assert file.seek(3) == 3
        file.seek(4, io.SEEK_CUR)
        assert (file.tell(), file.read(5)) == (7, CONTENT[7:12])


def test_a_local_file_is_read_by_the_same_calls(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    buffer = bytearray(3)
    open_at(path).read_into(memoryview(buffer), 4)
    assert buffer == b"456"
    with open_binary(path) as file:
        assert file.read() == b"0123456789"
    assert stat(path).size == 10
    with pytest.raises(DataError, match="ends at byte 10"):
        open_at(path).read_into(memoryview(buffer), 8)
    with pytest.raises(NotFoundError):
        open_at(tmp_path / "none")


def test_reading_in_order_holds_two_pieces_at_most(memory, monkeypatch):
    memory.pipe_file("/x.bin", CONTENT)
    asked_for = []
    reader = open_at(RemotePath("memory://x.bin"))
    read_into = reader.read_into
    monkeypatch.setattr(
        reader, "read_into", lambda buffer, at: asked_for.append((at, len(buffer))) or read_into(buffer, at)
    )
    monkeypatch.setattr("protolith.data.storage.open_at", lambda place, known=None: reader)
    with open_binary(RemotePath("memory://x.bin")) as file:
        file.read(10)
        assert asked_for == [(0, 1 << 18)]
        while file.read(1 << 16):
            at = file.tell()
            assert max(start + count for start, count in asked_for) <= at + (9 << 20)
    assert max(count for _start, count in asked_for) == 1 << 22
    assert sum(count for _start, count in asked_for) == len(CONTENT), "nothing is fetched twice"


def test_files_are_listed_with_sizes_and_versions(somewhere):
    root, write = somewhere
    for name in ("b.ds", "a/c.ds", "a/d e[1].ds"):
        write(name, name.encode())
    found = list_files(RemotePath(root))
    assert [(f.name, f.stat.size) for f in found] == [("a/c.ds", 6), ("a/d e[1].ds", 11), ("b.ds", 4)]
    for file in found:
        assert file.stat == stat(file.path)
        assert read_bytes(file.path) == file.name.encode()
    assert [f.name for f in list_files(RemotePath(f"{root}/a"))] == ["c.ds", "d e[1].ds"]
    assert [f.name for f in list_files(RemotePath(f"{root}/b.ds"))] == ["b.ds"]
    assert [f.name for f in list_files(RemotePath(f"{root}/a/c*"))] == ["c.ds"]


def test_what_is_not_there_is_named(somewhere):
    root, write = somewhere
    write("x", b"1")
    for look in (stat, open_at, open_binary, list_files, read_bytes):
        with pytest.raises(NotFoundError) as caught:
            look(RemotePath(f"{root}/none"))
        assert f"{root}/none" in caught.value.where


def test_a_file_written_again_is_never_mixed(somewhere):
    root, write = somewhere
    write("x", b"a" * 100)
    reader = open_at(RemotePath(f"{root}/x"))
    time.sleep(0.01)
    write("x", b"b" * 100)
    with pytest.raises(DataError, match="x was written again"):
        reader.read_into(memoryview(bytearray(10)), 0)


def test_the_owner_of_a_file_chooses_the_error(somewhere):
    root, write = somewhere
    write("x", b"a" * 100)
    reader = open_at(RemotePath(f"{root}/x"), changed=lambda how: ShardError(how, where="x"))
    with pytest.raises(ShardError, match="has 100 bytes"):
        reader.read_into(memoryview(bytearray(10)), 95)


def test_a_wrong_key_is_refused(s3, monkeypatch):
    url = f"{s3.place()}/x"
    s3.client.pipe_file(url, b"1")
    set_environment(monkeypatch, s3.environment(secret="wrongsecretwrongsecret"))
    forget_clients()
    started = time.monotonic()
    for look in (stat, list_files):
        with pytest.raises(NotAllowedError) as caught:
            look(RemotePath(url))
        assert url in caught.value.where
        assert "wrongsecret" not in str(caught.value)
    assert time.monotonic() - started < 10, "nothing to wait for"


def test_no_credentials_are_said(s3, monkeypatch):
    set_environment(monkeypatch, {**s3.environment(), "AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    forget_clients()
    with pytest.raises(NotAllowedError) as caught:
        stat(RemotePath(f"{s3.place()}/x"))
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_whoever_may_only_read_can_read(s3, monkeypatch):
    url = f"{s3.place()}/x"
    s3.client.pipe_file(url, b"12345")
    set_environment(monkeypatch, s3.environment(READER_KEY, READER_SECRET))
    forget_clients()
    assert read_bytes(RemotePath(url)) == b"12345"


def test_a_missing_bucket_is_not_found(s3):
    for look in (stat, list_files):
        with pytest.raises(NotFoundError):
            look(RemotePath("s3://no-such-bucket-here/x"))


def test_a_server_that_is_stopped_is_waited_for(s3):
    url = RemotePath(f"{s3.place()}/x")
    s3.client.pipe_file(url.url, b"12345")
    reader = open_at(url)
    buffer = bytearray(5)
    with ThreadPoolExecutor(1) as threads:
        with s3.frozen():
            reading = threads.submit(reader.read_into, memoryview(buffer), 0)
            time.sleep(1)
            assert not reading.done()
        reading.result(timeout=30)
    assert buffer == b"12345"


def test_a_server_that_is_not_there_is_unreachable(s3, monkeypatch, short_patience):
    set_environment(monkeypatch, {**s3.environment(), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    forget_clients()
    started = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        stat(RemotePath("s3://bucket/x"))
    assert caught.value.exit_code == 6 and "s3://bucket/x" in caught.value.where
    assert time.monotonic() - started < 10


def test_faults_that_pass_are_tried_again():
    tries = []

    def action():
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionResetError("reset")
        return "answer"

    assert asked(action, "s3://b/x") == "answer"
    assert len(tries) == 3


def test_a_long_wait_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(storage_faults, "_SAID_AFTER_S", 0.1)
    monkeypatch.setattr(storage_faults, "RETRY_S", 1.0)
    monkeypatch.setattr(storage_faults, "_last_said", [-1000.0])

    def action():
        raise ConnectionResetError("reset")

    with pytest.raises(UnreachableError):
        asked(action, "s3://b/x")
    assert [record.getMessage() for record in caplog.records] == ["waiting for s3://b/x, at most 1 s: reset"]


def test_faults_of_a_program_pass_through():
    def action():
        raise KeyError("ours")

    with pytest.raises(KeyError):
        asked(action, "s3://b/x")


def test_a_package_that_is_missing_is_named(monkeypatch):
    def missing(*_arguments, **_options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError) as caught:
        stat(RemotePath("s3://bucket/x"))
    assert "protolith[s3]" in caught.value.hint
    with pytest.raises(MissingExtraError) as caught:
        stat(RemotePath("gs://bucket/x"))
    assert "gcsfs" in caught.value.hint


def test_an_unknown_kind_of_url_is_refused():
    with pytest.raises(DataError, match="not a usable address"):
        stat(RemotePath("nonsense://bucket/x"))


def test_secrets_are_not_quoted(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "topsecret")
    assert quoted(OSError("key topsecret refused")) == "key *** refused"
    assert shown("s3://bucket/part-?.ds") == "s3://bucket/part-?.ds"
    assert shown("https://u:p@host/x?X-Amz-Signature=abc") == "https://***@host/x"


def test_errors_and_locations_cross_processes():
    error = UnreachableError("m", where="s3://b/x", hint="h")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert pickle.loads(pickle.dumps(RemotePath("s3://b/x"))) == RemotePath("s3://b/x")


def test_a_reader_ends_its_thread(memory):
    memory.pipe_file("/x.bin", CONTENT)
    before = threading.active_count()
    file = open_binary(RemotePath("memory://x.bin"))
    file.read(3 << 20)
    file.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before
