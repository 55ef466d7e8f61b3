"""Numbers as people read them."""

from __future__ import annotations


def in_bytes(n: float) -> str:
    """Write a number of bytes: 19.2 kB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    raise AssertionError


def in_seconds(s: float) -> str:
    """Write a time: 840 ms, 3.2 s, 12 min."""
    if s < 1:
        return f"{s * 1000:.3g} ms"
    if s < 120:
        return f"{s:.3g} s"
    return f"{s / 60:.0f} min" if s < 7200 else f"{s / 3600:.1f} h"
