"""Checks of what a run is given in Python beside its job and data: each refuses a slip in one sentence."""

from __future__ import annotations

from os import PathLike

from atoll.core.errors import Mismatch


def check_folder(name: str, folder: object) -> None:
    """Refuse what is no path."""
    if not isinstance(folder, str | PathLike):
        raise Mismatch(f"{name} must be the path of a folder, got {folder!r}")


def check_given(*, out: object, resume: object, sinks: object) -> None:
    """Refuse what is no folder, and what is no list of functions."""
    for name, folder in (("out", out), ("resume", resume)):
        if folder is not None:
            check_folder(name, folder)
    if not isinstance(sinks, list | tuple) or not all(callable(sink) for sink in sinks):
        raise Mismatch(f"sinks is a list of functions, each called with every fact: write sinks=[print], got {sinks!r}")


def check_switches(**switches: object) -> None:
    """Refuse what is neither True nor False."""
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise Mismatch(f"{name} must be True or False, got {value!r}")
