"""Seconds spent on things that happen deep inside a call (compiling), read by whoever times the call."""

from __future__ import annotations

_spent: dict[str, float] = {}


def spend(what: str, seconds: float) -> None:
    """Add to what was spent in this process.

    Args:
        what: the name of the work.
        seconds: how long it took.
    """
    _spent[what] = _spent.get(what, 0.0) + seconds


def spent(what: str) -> float:
    """Return the seconds that were spent in this process so far.

    Args:
        what: the name of the work.
    """
    return _spent.get(what, 0.0)
