"""How scores of two classes are evaluated: sums of each party, and metrics of added sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll.core.method import Evaluation
from atoll.core.party import Group
from atoll.core.tree import Array


def sums(group: Group, scores: Sequence[Array]) -> Mapping[str, Array]:
    """Return n, loss and correct of each party, of one array of log odds a party."""
    rows = []
    for (_, y), f in zip(group, scores, strict=True):
        rows.append((len(y), (np.logaddexp(0, f) - y * f).sum(), ((f > 0) == (y > 0)).sum()))
    return dict(zip(("n", "loss", "correct"), np.array(rows, np.float64).T, strict=True))


def _values(total: Mapping[str, Array]) -> dict[str, float]:
    n = max(float(total["n"]), 1.0)
    return {"accuracy": float(total["correct"]) / n, "loss": float(total["loss"]) / n}


def _each(total: Mapping[str, Array]) -> Array:
    return total["correct"] / total["n"]


TWO_CLASSES = Evaluation({"n": (), "loss": (), "correct": ()}, _values, {"accuracy": "high", "loss": "low"}, _each)
