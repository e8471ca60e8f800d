"""What went wrong with remote storage, in the words of our own errors, and what is worth another try.

Comes in: an action that asks a server for something, and the URL it asks for.
Goes out: the answer, or a typed error that names the URL.

- *No such object, no such bucket*: ``NotFoundError``, at once.
- *The server says no* (wrong key, no rights, no credentials): ``NotAllowedError``, at once.
- *The request itself is wrong* (a bucket name that cannot be): ``DataError``, at once.
- *Everything that is the network's or the server's*: tried again after waits that grow from 0.2 to 5 s, for
  ``RETRY_S`` in all, then ``UnreachableError``. A server that is stopped for seconds, restarted or busy is
  thus only waited for; after 5 s that is said, in a warning to the log, once a minute at most.
- Anything else is a fault of a program and passes through.

Faults are told apart without importing any client: which one is behind a URL is not known here. What a server
says is quoted without passwords, keys and tokens.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from protolith.errors import DataError, NotAllowedError, NotFoundError, ProtolithError, UnreachableError

#: How long a server that does not answer is waited for, in all.
RETRY_S = 60.0
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_QUOTED_CHARACTERS = 300
_SAID_AFTER_S = 5.0
_SAID_AGAIN_S = 60.0

_log = logging.getLogger("protolith.storage")
_last_said = [-_SAID_AGAIN_S]

#: Packages whose errors are the network's or the server's when nothing more exact is known.
_CLIENTS = {
    "adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google", "http", "requests",
    "s3fs", "urllib3",
}  # fmt: skip
_NO_CREDENTIALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "DefaultCredentialsError",
    "ProfileNotFound",
)
_NOT_ALLOWED_CODES = ("401", "403", "Forbidden", "Unauthorized", "AccessDenied", "SignatureDoesNotMatch")
_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_STORAGE_KEY")
_CREDENTIALS_HINT = (
    "give credentials as the storage's own tools take them: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a"
    " profile, a role"
)

Answer = TypeVar("Answer")


class ObjectChangedError(Exception):
    """The object is not the one that was opened: it was written again. Internal: becomes a ``DataError``."""


def asked(action: Callable[[], Answer], url: str) -> Answer:
    """What ``action`` returns, after as many tries as it takes within ``RETRY_S``.

    Raises:
        NotFoundError, NotAllowedError, DataError, UnreachableError: with the URL as the place.
    """
    started, pause = time.monotonic(), _FIRST_PAUSE_S
    while True:
        try:
            return action()
        except (ProtolithError, ObjectChangedError):
            raise
        except Exception as error:  # told apart below; what is not the storage's is raised again
            final = _final(error, url)
            if final is not None:
                raise final from error
            if not _may_pass(error):
                raise
            waited = time.monotonic() - started
            if waited + pause > RETRY_S:
                raise UnreachableError(
                    f"the storage does not answer (tried for {waited:.0f} s): {quoted(error)}",
                    where=shown(url),
                    hint="is the server up, the network there, and the endpoint (AWS_ENDPOINT_URL) right? A"
                    " run that was saved goes on with --resume",
                ) from error
            if waited > _SAID_AFTER_S:
                _say(error, url)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _say(error: BaseException, url: str) -> None:
    """Threads that wait for the same server say it once. Without a log set up, Python prints it on stderr."""
    now = time.monotonic()
    if now - _last_said[0] >= _SAID_AGAIN_S:
        _last_said[0] = now
        _log.warning("waiting for %s, at most %.0f s: %s", shown(url), RETRY_S, quoted(error))


def _final(error: BaseException, url: str) -> ProtolithError | None:
    """The error that no other try would change; None: unknown, or it may pass."""
    for cause in _chain(error):
        if type(cause).__name__ in _NO_CREDENTIALS:
            return NotAllowedError(
                f"no usable credentials: {quoted(cause)}", where=shown(url), hint=_CREDENTIALS_HINT
            )
        code, status = _code_of(cause)
        if isinstance(cause, PermissionError) or code in _NOT_ALLOWED_CODES or status in (401, 403):
            return NotAllowedError(
                f"the storage refuses: {quoted(error)}", where=shown(url), hint=_CREDENTIALS_HINT
            )
        if isinstance(cause, FileNotFoundError) or status == 404:
            what = "no such bucket" if code == "NoSuchBucket" else "no such file or folder"
            return NotFoundError(what, where=shown(url), hint="look at the spelling of bucket and folder")
        if isinstance(cause, ValueError) or type(cause).__name__ == "ParamValidationError":
            return DataError(f"not a usable address: {quoted(error)}", where=shown(url))
        if isinstance(cause, OSError) and cause.errno == errno.EINVAL:
            return DataError(f"the storage cannot do this: {quoted(error)}", where=shown(url))
    return None


def _may_pass(error: BaseException) -> bool:
    """Whether this is the network's or the server's fault."""
    return isinstance(error, (OSError, EOFError, TimeoutError)) or _package(error) in _CLIENTS


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _chain(error: BaseException) -> list[BaseException]:
    """The error and what it was made of, outermost first."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found and len(found) < 8:
        found.append(cause)
        cause = cause.__cause__
    return found


def _code_of(error: BaseException) -> tuple[str, int]:
    """The server's word for what is wrong, and the status it came with; ("", 0) when there is none."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        code = str(response.get("Error", {}).get("Code", ""))
        return code, int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    status = getattr(error, "status", 0)
    return "", status if isinstance(status, int) else 0


def status_of(error: BaseException) -> int:
    """The HTTP status somewhere behind an error; 0 when there is none."""
    return next((status for _code, status in map(_code_of, _chain(error)) if status), 0)


def quoted(error: BaseException) -> str:
    """What the error says, in one line, without secrets."""
    text = " ".join(str(error).split()) or type(error).__name__
    for name in _SECRETS:
        if os.environ.get(name):
            text = text.replace(os.environ[name], "***")
    return shown(text[:_QUOTED_CHARACTERS])


def shown(url: str) -> str:
    """A URL without the password it may carry, and without the signature of a web address."""
    url = re.sub(r"(https?://[^\s?]*)\?\S*", r"\1", url)
    return re.sub(r"(\w://)[^/@\s]+@", r"\1***@", url)
