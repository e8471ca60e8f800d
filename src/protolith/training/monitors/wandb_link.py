"""Our end of W&B: a process of its own does the talking, and can be left or killed at any moment.

W&B's library keeps threads, a helper process, signal and exit hooks. None of that enters the training
process: ``wandb_process.py`` runs it and is told rows over a pipe, one JSON object a line. It answers with
what became of it. It stands in a session of its own, so Ctrl-C reaches only the trainer, and it ends when
the pipe ends.

``monitors/wandb.json`` keeps the id of the W&B run, so that a resumed run goes on in the same curve. The
axis is our own step number, not W&B's counter: W&B drops rows that count backwards, and a run that comes
back from an earlier checkpoint does count backwards. Each row carries the number of its attempt, and the
run's config lists the steps from which attempts went on, so a rewound stretch can be told from the first.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protolith.formats.rundir import RunDir, jsonable, read_json, write_json

DEFAULT_PROJECT = "protolith"
_PROCESS = Path(__file__).with_name("wandb_process.py")
_ID_LETTERS = string.ascii_lowercase + string.digits


class WandbLink:
    """See ``external.Sink``. ``resume_step`` 0 means from the start."""

    def __init__(
        self,
        run_dir: RunDir,
        project: str | None,
        run_name: str | None,
        config: Mapping[str, Any],
        resume_step: int,
    ) -> None:
        self._folder = run_dir.monitors
        self._project = project or os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT
        self._run_name = run_name or os.environ.get("WANDB_NAME") or run_dir.root.resolve().name
        self._config = config
        self._resume_step = resume_step
        self._attempt = 0
        self._process: subprocess.Popen[str] | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._listener: threading.Thread | None = None
        self._complaint: str | None = None
        self._finished = False
        files = f"{shlex.quote(str(self._folder / 'wandb'))}/*run-*"
        self.later = f"To send what was recorded: wandb sync {files}"

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        record = self._remember()
        begin = {
            "id": record["run_id"],
            "project": self._project,
            "name": self._run_name,
            "folder": str(self._folder),
            "config": jsonable(self._config),
            "resumed_from_steps": [s["resume_step"] for s in record["attempts"][1:]],
        }
        # The library leaves folders behind when it is killed, and its process removes this one when we are.
        self._temporary = tempfile.TemporaryDirectory(prefix="protolith-wandb-", ignore_cleanup_errors=True)
        begin["temporary"] = self._temporary.name
        with open(self._folder / "wandb.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROCESS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**_environment(), "TMPDIR": self._temporary.name},
                start_new_session=True,
                text=True,
                encoding="utf-8",
            )
        self._attempt = len(record["attempts"])
        self._listener = threading.Thread(target=self._listen, name="wandb-answers", daemon=True)
        self._listener.start()
        self._tell(begin)

    def write(self, step: int, numbers: Mapping[str, Any]) -> None:
        plain = {name: value for name, value in numbers.items() if isinstance(value, (int, float))}
        self._tell({"row": {**plain, "step": step, "attempt": self._attempt}})

    def flush(self) -> None:
        """Rows go out one by one; nothing waits here."""

    def close(self, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        self._tell({"end": True, "deadline_s": deadline_s})
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._complain("did not take everything in time")
            self.kill()
            self._process.wait(1.0)
        if self._listener is not None:
            self._listener.join(1.0)
        self._temporary_goes()
        if not self._finished:
            self._complain("its process ended before everything was recorded")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._temporary_goes()

    def _temporary_goes(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def complaint(self) -> str | None:
        return self._complaint

    def _complain(self, text: str) -> None:
        self._complaint = self._complaint or text

    def _tell(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            if self._listener is not None:
                self._listener.join(1.0)  # its last words say more than a broken pipe
            self._temporary_goes()
            raise ConnectionError(self._complaint or "its process has ended") from None

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                if answer["event"] == "complaint":
                    self._complain(str(answer["text"]))
                elif answer["event"] == "finished":
                    self._finished = True

    def _remember(self) -> dict[str, Any]:
        """Read or begin ``wandb.json`` and add this attempt to it. Another project means another run."""
        path = self._folder / "wandb.json"
        try:
            record = read_json(path)
            known = isinstance(record["run_id"], str) and record["project"] == self._project
            attempts = list(record["attempts"]) if known else []
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            known, record, attempts = False, {}, []
        record = {
            "run_id": record["run_id"] if known else "".join(secrets.choice(_ID_LETTERS) for _ in range(10)),
            "project": self._project,
            "name": self._run_name,
            "attempts": [*attempts, {"resume_step": self._resume_step}],
        }
        write_json(path, record)
        return record


def _environment() -> dict[str, str]:
    """The user's environment without what would make W&B another run, with nothing reported home."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_SERVICE", "WANDB_DIR")
    }
    environment.setdefault("WANDB_ERROR_REPORTING", "false")
    environment["PYTHONUNBUFFERED"] = "1"
    return environment
