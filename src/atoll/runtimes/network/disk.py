"""Files that are whole or not there, and folders that one process at a time may write to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20


class Unwritable(OSError):
    """A file cannot be written; what it held before is untouched."""


def hold(file: int, path: Path) -> None:
    """Keep every other process from writing here; the hold ends with this process, however it ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sentence = f"{path} is in use by another process: stop that one first, or work in another folder"
        raise Unwritable(sentence) from None


def sync_folder(folder: Path) -> None:
    """Make a new or renamed file last through a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_body(path: Path, body: bytes | BinaryIO, digest: str) -> None:
    """Write a body so that the file is whole or not there; one that its digest does not fit is refused.

    It is not synced: a question does not outlive its server, so after a power cut nobody asks for its answers.
    """
    part = path.with_name(path.name + ".part")
    found = sha256()
    try:
        with part.open("xb") as file:
            for chunk in _chunks(body):
                found.update(chunk)
                file.write(chunk)
        if found.hexdigest() != digest:
            raise ValueError(f"a body with sha256 {found.hexdigest()} was sent as {digest}: send it again")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text so that the file is whole or as it was before."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Unwritable(f"cannot write to {path.parent}: {error.strerror}; choose another folder") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _chunks(body: bytes | BinaryIO) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body
        return
    while chunk := body.read(_CHUNK):
        yield chunk
