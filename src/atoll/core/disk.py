"""Files that are the old or the new one, whatever happens."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, data: bytes | Iterable[bytes], *, mode: int | None = None, sync: bool = True) -> None:
    """Write a file so that it is whole, or as it was before.

    Args:
        path: the file.
        data: what it holds from now on, whole or in pieces; should making a piece fail, the file stays as it was.
        mode: who may read and write it; default: as the system makes new files.
        sync: whether that must hold after a power cut, too.
    """
    part = path.with_name(f"{path.name}.{os.urandom(8).hex()}.part")
    try:
        with part.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.writelines([data] if isinstance(data, bytes) else data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        part.replace(path)
        if sync:
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a new or renamed file last through a power cut.

    Args:
        folder: the folder that the file is in.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
