"""Clears up after a process that may be killed. It is run by its path and imports nothing of Atoll, to be small."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TRIES = 50  # a process that waits for a disk cannot be ended at once


def tenants(folder: str) -> set[int]:
    """Return Ray's processes that live in a folder; none where the system does not say.

    They were told it in an option, or have taken a title (ray::…) and have a file there open. Others may have one too:
    whoever the run's process has forked, or somebody who reads a log.
    """
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone since, or not ours
            said = (process / "cmdline").read_bytes()
            titled = said.startswith(b"ray::") and any(f.startswith(f"{folder}/") for f in files(process))
            if titled or f"={folder}/".encode() in said:
                found.add(int(process.name))
    return found


def files(process: Path) -> Iterator[str]:
    """Name the files that a process has open."""
    for link in (process / "fd").iterdir():
        with suppress(OSError):  # closed since
            yield os.readlink(link)


def sweep(folder: str) -> None:
    """End those of Ray's processes that live in a folder, then remove it."""
    for _ in range(TRIES):
        left = tenants(folder)
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            break
        time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # it ends when the process that started this one does, in whatever way
    sweep(sys.argv[1])
