"""How evenly a value is spread over parties: functions of one value for each party."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.core.errors import Mismatch
from atoll.core.tree import Array


def worst_fraction(values: ArrayLike, fraction: float = 0.1, better: str = "high") -> float:
    """Return the mean value of the worst parties.

    Args:
        values: one value for each party, at least one.
        fraction: fraction of the parties, above 0 and at most 1, rounded down to whole parties but at least one.
            Default 0.1.
        better: "high" (the default) if larger values are better, "low" if smaller ones are.

    Example:
        >>> from atoll.metrics import worst_fraction
        >>> worst_fraction([0.5, 0.75, 0.9, 1.0], fraction=0.5)
        0.625
    """
    if not 0 < fraction <= 1:
        raise Mismatch(f"worst_fraction(fraction={fraction}): a fraction is above 0 and at most 1")
    scores = _some(values, "worst_fraction") * _sign(better)
    worst = np.sort(scores)[: max(1, int(len(scores) * fraction + 1e-9))]  # 0.29 × 100 is 28.999…
    return float(_sign(better) * worst.mean())


def jain(values: ArrayLike) -> float:
    """Return Jain's index (Σv)² / (n Σv²): 1 if all parties have the same value, 1/n if one party has everything.

    Args:
        values: one value for each party, at least one, none below 0. If all are 0, the index is 1.

    Example:
        >>> from atoll.metrics import jain
        >>> jain([1, 1, 1, 1]), jain([4, 0, 0, 0])
        (1.0, 0.25)
    """
    found = _some(values, "jain")
    if found.min() < 0:
        raise Mismatch(f"jain is for values of at least 0, got {found.min():g}: shift them or use worst_fraction")
    largest = found.max()
    if largest == 0:
        return 1.0
    found = found / largest  # squares of very large or small values would overflow or vanish
    return float(found.sum() ** 2 / (len(found) * (found**2).sum()))


def spread(values: ArrayLike, better: str = "high") -> dict[str, float]:
    """Return the mean over parties, the mean of the worst tenth of them, and the best: "mean", "worst10", "best".

    Args:
        values: one value for each party. For fewer than two parties nothing is returned.
        better: "high" (the default) if larger values are better, "low" if smaller ones are.

    Example:
        >>> from atoll.metrics import spread
        >>> spread([0.5, 1.0])
        {'mean': 0.75, 'worst10': 0.5, 'best': 1.0}
    """
    sign = _sign(better)
    scores = sign * np.asarray(values, np.float64)
    if len(scores) < 2:
        return {}
    return {
        "mean": float(sign * scores.mean()),
        "worst10": worst_fraction(sign * scores, 0.1, better),
        "best": float(sign * scores.max()),
    }


def _sign(better: str) -> float:
    if better not in ("high", "low"):
        raise Mismatch(f"better={better!r}: use 'high' or 'low'")
    return 1.0 if better == "high" else -1.0


def _some(values: ArrayLike, name: str) -> Array:
    found = np.asarray(values, np.float64)
    if not found.size or found.ndim != 1:
        raise Mismatch(f"{name} needs a vector with a value for each of one or more parties, got shape {found.shape}")
    return found
