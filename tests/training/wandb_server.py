"""A stand-in for a W&B server on localhost, good or bad, and a reader of the files W&B writes offline."""

from __future__ import annotations

import gzip
import json
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KEY = "a" * 40


class WandbServer:
    """``mode``: "works", "error" (500 to everything) or "silent" (accepts and never answers)."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[dict[str, Any]] = []
        self.run_ids: set[str] = set()
        self.released = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if server.mode == "silent":
                    server.released.wait(60)
                    self.close_connection = True
                    return
                if server.mode == "error":
                    self._answer(500, {})
                    return
                message = {} if self.path == "/upload" else json.loads(body or b"{}")
                server.requests.append((self.path, message))
                self._answer(200, server.answer(self.path, message))

            do_PUT = do_GET = do_POST

            def _answer(self, code: int, value: Any) -> None:
                data = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def answer(self, path: str, message: dict[str, Any]) -> Any:
        if path.endswith("file_stream"):
            files = message.get("files") or {}
            for line in files.get("wandb-history.jsonl", {}).get("content", []):
                self.rows.append(json.loads(line))
            return {}
        query, variables = message.get("query", ""), message.get("variables", {})
        bucket = {
            "id": "internal",
            "name": variables.get("name"),
            "displayName": "shown",
            "historyLineCount": len(self.rows),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]),
            "eventsTail": "[]",
            "summaryMetrics": "{}",
            "config": "{}",
            "tags": [],
            "notes": "",
            "wandbConfig": '{"t": 1}',
            "project": {"id": "p", "name": "protolith", "entity": {"id": "e", "name": "me"}},
        }
        if "RunResumeStatus" in query:
            known = variables["name"] in self.run_ids
            entity = {"id": "e", "name": "me"}
            return {
                "data": {
                    "model": {"id": "p", "name": "x", "entity": entity, "bucket": bucket if known else None}
                }
            }
        if "UpsertBucket" in query:
            new = variables["name"] not in self.run_ids
            self.run_ids.add(variables["name"])
            return {"data": {"upsertBucket": {"bucket": bucket, "inserted": new}}}
        if "CreateRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/upload"} for name in variables["files"]]
            return {"data": {"createRunFiles": {"runID": "internal", "uploadHeaders": [], "files": files}}}
        return {"data": {}}

    def wait_until_streaming(self, seconds: float = 30.0) -> None:
        """Until the run is made and its first values have come."""
        end = time.monotonic() + seconds
        while not any(path.endswith("file_stream") for path, _ in self.requests):
            assert time.monotonic() < end, "nothing came"
            time.sleep(0.05)

    def die(self) -> None:
        """From now on nobody listens."""
        self.mode = "silent"
        self.released.set()
        self._http.shutdown()
        self._http.server_close()


def recorded(folder: Path) -> Iterator[tuple[str, Any]]:
    """(kind, record) of all run files below ``folder``, oldest file first: what ``wandb sync`` would send."""
    from wandb.proto import wandb_internal_pb2

    block, lead = 32768, 7
    for path in sorted(folder.glob("*run-*/*.wandb"), key=lambda path: path.parent.name):
        data, at, whole = path.read_bytes(), lead, b""
        assert data[:4] == b":W&B"
        while at + lead <= len(data):
            if block - at % block < lead:
                at += block - at % block
                continue
            _crc, length, kind = struct.unpack("<IHB", data[at : at + lead])
            if kind == 0:
                break
            whole += data[at + lead : at + lead + length]
            at += lead + length
            if kind in (1, 4):  # a whole record, or the last piece of one
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                whole = b""
                yield record.WhichOneof("record_type"), record


def recorded_rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for kind, record in recorded(folder)
        if kind == "history"
    ]


def recorded_ids(folder: Path) -> list[str]:
    return [record.run.run_id for kind, record in recorded(folder) if kind == "run"]
