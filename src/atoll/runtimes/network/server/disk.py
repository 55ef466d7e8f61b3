"""Files that are whole or not there, and folders that one process at a time may write to."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from atoll.core.disk import replace_file
from atoll.core.errors import Unwritable
from atoll.core.tree import Tree
from atoll.journal.sealed import save

_CHUNK = 1 << 20


def hold(file: int, path: Path, otherwise: str = "or work in another folder") -> None:
    """Keep every other process from writing here; the hold ends with this process, however it ends.

    Args:
        file: its descriptor.
        path: what the sentence names that refuses another process.
        otherwise: what else that sentence says to do.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sentence = f"{path} is in use by another process: stop that one first, {otherwise}"
        raise Unwritable(sentence) from None


def hold_soon(file: int, path: Path, otherwise: str = "or work in another folder") -> None:
    """Hold a file that somebody may be looking at: a look takes no time, a process that works does."""
    until = time.monotonic() + 1.0
    while True:
        try:
            return hold(file, path, otherwise)
        except Unwritable:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def is_held(path: Path) -> bool:
    """Whether a process holds this file now."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(file)


def write_body(path: Path, body: bytes | BinaryIO, digest: str) -> None:
    """Write a body so that the file is whole or not there; one that its digest does not fit is refused.

    It is not synced: a question does not outlive its server, so after a power cut nobody asks for its answers.
    """
    replace_file(path, _checked(body, digest), mode=0o600, sync=False)


def write_arrays(path: Path, tree: Tree) -> None:
    """Write arrays so that the file is whole or as it was before, also after a power cut, and damage is noticed."""
    try:
        save(path, tree)
    except OSError as error:
        raise Unwritable(f"cannot write to {path.parent}: {error.strerror}; choose another folder") from None


def _checked(body: bytes | BinaryIO, digest: str) -> Iterator[bytes]:
    """Yield a body in pieces; refuse one that its digest does not fit, after the last piece."""
    found = sha256()
    file = BytesIO(body) if isinstance(body, bytes) else body
    while chunk := file.read(_CHUNK):
        found.update(chunk)
        yield chunk
    if found.hexdigest() != digest:
        raise ValueError(f"a body with sha256 {found.hexdigest()} was sent as {digest}: send it again")
