"""Numbers as people read them."""

from __future__ import annotations


def in_bytes(n: float) -> str:
    """Write a number of bytes: 19.2 kB."""
    units = ("B", "kB", "MB", "GB", "TB")
    step = 0
    while n >= 999.5 and step < len(units) - 1:  # 999.5 would already be written as 1000
        n, step = n / 1000, step + 1
    return f"{n:.0f} {units[step]}" if step == 0 else f"{n:.3g} {units[step]}"


def count(n: int, noun: str) -> str:
    """Count something: 1 party, 20 parties."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n:,} {noun if n == 1 else many}"


def in_seconds(s: float) -> str:
    """Write a time: 840 ms, 3.2 s, 12 min."""
    if s < 0.9995:
        return f"{s * 1000:.3g} ms"
    if s < 120:
        return f"{s:.3g} s"
    return f"{s / 60:.0f} min" if s < 7200 else f"{s / 3600:.1f} h"
