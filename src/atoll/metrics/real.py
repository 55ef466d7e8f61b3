"""Metrics of predicted numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.tree import Array
from atoll.metrics.rows import macro, ratio, real, total


@dataclass(frozen=True)
class MSE:
    """Mean squared error, over rows and outputs. 0.0 without rows.

    Predictions are limited to ±1e100, and one that is not a number counts as 1e100.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import MSE, totals, values
        >>> scores, y = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 4.0])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([MSE()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([MSE()], sums)["mse"], 3)
        0.333
    """

    better: ClassVar[str] = "low"
    kind: ClassVar[str] = "real"
    name: ClassVar[str] = "mse"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return {"squares": (), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        scores, y, party = real(scores, y, party, parties)
        squares = ((scores - y) ** 2).sum(1)
        return {"squares": total(party, parties, squares), "n": total(party, parties) * y.shape[1]}

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: np.maximum(ratio(sums["squares"], sums["n"]), 0.0)}


@dataclass(frozen=True)
class MAE:
    """Mean absolute error, over rows and outputs, in the unit of the target. 0.0 without rows.

    Predictions are limited to ±1e100, and one that is not a number counts as 1e100.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import MAE, totals, values
        >>> scores, y = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 4.0])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([MAE()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([MAE()], sums)["mae"], 3)
        0.333
    """

    better: ClassVar[str] = "low"
    kind: ClassVar[str] = "real"
    name: ClassVar[str] = "mae"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return {"absolute": (), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        scores, y, party = real(scores, y, party, parties)
        absolute = np.abs(scores - y).sum(1)
        return {"absolute": total(party, parties, absolute), "n": total(party, parties) * y.shape[1]}

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        return {self.name: np.maximum(ratio(sums["absolute"], sums["n"]), 0.0)}


@dataclass(frozen=True)
class R2:
    """Fraction of the variance of the targets that the predictions explain: 1 - Σ(y - ŷ)² / Σ(y - ȳ)², at most 1.

    The mean ȳ is that of all parties. Of several outputs it is the mean of their values. Outputs whose targets are all
    equal do not count; if none counts, or without rows, the value is 0.0. The variance comes from Σy and Σy², so
    targets count as equal if their standard deviation is below a millionth of their size: subtract a constant from
    such targets. Predictions are limited as in MSE.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import R2, totals, values
        >>> scores, y = np.array([1.0, 2.0, 4.0]), np.array([1.0, 3.0, 4.0])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([R2()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([R2()], sums)["r2"], 3)
        0.786
    """

    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "real"
    name: ClassVar[str] = "r2"

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        return {"squares": (outputs,), "y": (outputs,), "yy": (outputs,), "n": ()}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        scores, y, party = real(scores, y, party, parties)
        many = y.shape[1]
        at = (party[:, None] * many + np.arange(many)).ravel()
        sums = {
            name: total(at, parties * many, of.ravel()).reshape(parties, many)
            for name, of in (("squares", (scores - y) ** 2), ("y", y), ("yy", y**2))
        }
        return {**sums, "n": total(party, parties)}

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        squares, y, yy, n = (np.asarray(sums[name], np.float64) for name in ("squares", "y", "yy", "n"))
        spread = yy - ratio(y**2, n[..., None])
        some = (spread > 1e-12 * yy) & (n[..., None] > 0)  # below, it is rounding
        with np.errstate(over="ignore"):
            each = np.clip(1.0 - squares / np.where(some, spread, 1.0), -1e300, 1.0)
        return {self.name: macro(each, some)}
