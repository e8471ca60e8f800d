"""The process that talks to W&B. Run as a script; imports nothing of protolith.

stdin:   one JSON object a line: first what the run is, then ``{"row": {...}}``, at last ``{"end": true}``.
stdout:  ``{"event": "complaint", "text": ...}`` at most once; ``{"event": "finished"}`` when all is recorded.
stderr:  a log file; everything the library prints goes there too.

Online is tried when the user has not asked for offline, a key is there and the server answers; otherwise
the run is recorded offline, in files that ``wandb sync`` sends later. Nothing but the rows and the run's
config is collected: no console, code, git state, machine facts, system metrics or error reports.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

_ANSWER_S = 5.0
_INIT_S = 30.0
_ORPHANED_S = 30.0

_QUIET_AND_PRIVATE: dict[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "host": "",
    "program": "protolith",
    "init_timeout": _INIT_S,
    "quiet": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 2.0,
}


def main() -> None:
    say = _take_stdout()
    # The trainer decides when this ends: by the end of the pipe, or by SIGKILL.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.nice(5)
    first = sys.stdin.readline()
    if not first:
        return
    begin = json.loads(first)
    atexit.register(shutil.rmtree, begin["temporary"], ignore_errors=True)  # the trainer may be gone by then
    run = _start(begin, say)
    if run is None:
        return
    ended = False
    for line in sys.stdin:
        message = json.loads(line)
        if "row" in message:
            run.log(message["row"])
        if message.get("end"):
            ended = True
            _die_after(float(message["deadline_s"]))
            break
    if not ended:  # the trainer was killed
        _die_after(_ORPHANED_S)
    run.finish(exit_code=0 if ended else 1)
    say({"event": "finished"})


def _take_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep stdout for our answers; whatever anybody prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        try:
            answers.write(json.dumps(message) + "\n")
            answers.flush()
        except OSError:
            pass  # the trainer is gone; what is recorded is recorded all the same

    return say


def _start(begin: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> Any:
    """The W&B run, online or offline; None when neither could be had, or the user switched W&B off."""
    try:
        import wandb
    except Exception as error:  # noqa: BLE001 - a broken package must not look like a broken run
        say({"event": "complaint", "text": f"cannot be loaded ({type(error).__name__}: {error})"})
        return None
    known = getattr(wandb.Settings, "model_fields", {})
    settings = wandb.Settings(**{name: value for name, value in _QUIET_AND_PRIVATE.items() if name in known})
    theirs = wandb.setup().settings  # what environment and settings files say
    mode = theirs.mode
    if mode in ("disabled", "offline", "dryrun"):
        return _init(wandb, begin, settings, "offline" if mode == "dryrun" else mode)
    reason = _why_not_online(str(theirs.base_url).rstrip("/"))
    if not reason:
        try:
            return _init(wandb, begin, settings, "online")
        except Exception as error:  # noqa: BLE001 - refused key, no project, silent server: all mean offline
            reason = f"the server does not take the run ({_first_line(error)})"
            wandb.teardown(1)
    say({"event": "complaint", "text": f"{reason}, so the run is recorded offline"})
    return _init(wandb, begin, settings, "offline")


def _init(wandb: Any, begin: dict[str, Any], settings: Any, mode: str) -> Any:
    run = wandb.init(
        id=begin["id"],
        project=begin["project"],
        name=begin["name"],
        dir=begin["folder"],
        config={**begin["config"], "resumed_from_steps": begin["resumed_from_steps"]},
        resume="allow" if mode == "online" else None,
        allow_val_change=True,
        mode=mode,
        settings=settings,
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")
    return run


def _why_not_online(base_url: str) -> str:
    """A reason to record offline, or "": no key, or no answer worth the name within a few seconds."""
    try:
        from wandb.sdk.lib.wbauth import authenticate_session

        if authenticate_session(host=base_url, source="protolith", prompt=False) is None:
            return "there is no API key (wandb login makes one)"
    except ImportError:
        pass  # another version of the library; its init will say so itself
    except Exception as error:  # noqa: BLE001 - a key of the wrong form
        return f"the API key cannot be used ({_first_line(error)})"
    request = urllib.request.Request(
        f"{base_url}/graphql", data=b"{}", headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        # Below 500 it is a server that minds the missing key, so it is there.
        return f"{base_url} answers with error {error.code}" if error.code >= 500 else ""
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return ""  # there is a server; the library has certificates of its own
        return f"{base_url} cannot be reached ({_first_line(reason)})"


def _die_after(seconds: float) -> None:
    """End this process for good, whatever the library waits for; its helper sees that and ends as well."""
    timer = threading.Timer(seconds, os._exit, args=(3,))
    timer.daemon = True
    timer.start()


def _first_line(error: object) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


if __name__ == "__main__":
    main()
