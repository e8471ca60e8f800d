"""One writer a cache entry, and what dead writers left.

The lock is ``flock`` on a small file: the kernel frees it when its holder ends, however it ends. Where a
file system has no locks, writers work side by side: each writes aside and renames, so nothing breaks; the
same work is merely done twice.
"""

from __future__ import annotations

import errno
import fcntl
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_ASIDE = re.compile(r"\.aside-(?P<key>[0-9a-f]{32})-[0-9a-f]{8}\Z")
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_POLL_S = 0.1


@contextmanager
def held(root: Path, key: str, poll: Callable[[], None]) -> Iterator[bool]:
    """Hold the entry's lock; waits for another holder, polling. Yields False where locks do not work."""
    with open(root / f".lock-{key}", "ab") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                poll()
                time.sleep(_POLL_S)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                yield False
                return
            else:
                yield True
                return


def sweep(root: Path, own: str | None) -> int:
    """Remove folders aside whose writers are gone; returns how many.

    ``own``: the key whose lock the caller holds; None when locks do not work, and then nothing is removed.
    """
    if own is None:
        return 0
    removed = 0
    for path in list(root.iterdir()):
        match = _ASIDE.match(path.name)
        if match and (match["key"] == own or not _is_held(root, match["key"])):
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
    return removed


def _is_held(root: Path, key: str) -> bool:
    try:
        with open(root / f".lock-{key}", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
