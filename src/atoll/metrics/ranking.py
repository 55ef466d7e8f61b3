"""Metrics of the order of scores, AUC and average precision, from histograms: counts add over parties, ranks do not.

Each party counts its positive and its negative samples in `bins` bins of the score. The bins are fixed, so that the
histograms of parties add. They are of equal width in u = z / (4 + |z|), where z is the logit of the class's probability
and u is from -1 to 1. With 1,024 bins a bin is 0.008 wide at z = 0, 0.1 at z = ±10 and 0.56 at z = ±30, so that the
resolution is good for probabilities near 0 and 1 too. Scores in one bin count as equal.

Two classes give one histogram, of z = s (one score) or z = s₁ - s₀. More classes give one for each class against the
others, with z = s_c - log Σ_{j≠c} exp(s_j). A score that is not a number counts as z = 0.

Reveals: without a hidden or noised sum, a party's histograms tell its labels and the scores of its samples up to a bin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.given import number
from atoll.core.tree import Array
from atoll.metrics.rows import labelled, macro, ratio, share, total

SCALE = 4.0  # the logit at which half of the bins of one sign are used


@dataclass(frozen=True)
class _OfHistograms:
    """What is computed from the histograms of positive and of negative samples."""

    bins: int = 1024
    better: ClassVar[str] = "high"
    kind: ClassVar[str] = "classes"

    def __post_init__(self) -> None:
        number(f"{type(self).__name__}: bins", self.bins, least=2)

    def layout(self, outputs: int) -> Mapping[str, tuple[int, ...]]:
        shape = (outputs if outputs > 2 else 1, self.bins)
        return {"positive": shape, "negative": shape}

    def sums(self, scores: Array, y: Array, party: Array, parties: int) -> Mapping[str, Array]:
        return _histograms(scores, y, party, parties, self.bins)


@dataclass(frozen=True)
class AUC(_OfHistograms):
    """Area under the ROC curve: how often a positive sample has a larger score than a negative one; equal counts half.

    For more than two classes it is the mean over classes, each against the others. Scores are compared by bins (see
    this file), so the value differs from the exact one by at most half the share of pairs of a positive and a negative
    sample in the same bin. It is exact if different scores are in different bins. Classes without positive or without
    negative samples do not count; if none counts, the value is 0.5.

    Reveals: a histogram of the scores of each party, 2 × bins counts for two classes and for each class of more; under
    a hidden sum only the sum of these counts.

    Args:
        bins: bins of the score, 2 or more. Default 1,024.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import AUC, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([AUC()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([AUC()], sums)["auc"], 3)
        0.75
    """

    name: ClassVar[str] = "auc"

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        positive, negative = (np.asarray(sums[name], np.float64) for name in ("positive", "negative"))
        below = negative.cumsum(-1) - negative / 2
        p, n = positive.sum(-1), negative.sum(-1)
        each = share(ratio((positive * below).sum(-1), p), n)
        return {self.name: macro(each, (p > 0) & (n > 0), 0.5)}


@dataclass(frozen=True)
class AveragePrecision(_OfHistograms):
    """Mean precision at the thresholds of the positive samples: Σ (R_k - R_{k-1}) P_k over the bins of the score.

    For more than two classes it is the mean over classes, each against the others. Scores are compared by bins (see
    this file). Of a bin with a of the positive and b of the negative samples, above which lie A and B, the precision
    lies between (A + 1) / (A + 1 + B + b) and (A + a) / (A + a + B); the value differs from the exact one by at most
    the mean of these differences over positive samples. It is exact if different scores are in different bins. Classes
    without positive samples do not count; if none counts, the value is 0.0.

    Reveals: a histogram of the scores of each party, as AUC does.

    Args:
        bins: bins of the score, 2 or more. Default 1,024.

    Example:
        >>> import numpy as np
        >>> from atoll.metrics import AveragePrecision, totals, values
        >>> scores, y = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), np.array([0, 1, 1])
        >>> sums = {k: v.sum(axis=0) for k, v in totals([AveragePrecision()], scores, y, np.zeros(3, int), 1).items()}
        >>> round(values([AveragePrecision()], sums)["average_precision"], 3)
        0.833
    """

    name: ClassVar[str] = "average_precision"

    def values(self, sums: Mapping[str, Array]) -> Mapping[str, Array]:
        positive, negative = (np.asarray(sums[name], np.float64)[..., ::-1] for name in ("positive", "negative"))
        precision = share(positive.cumsum(-1), (positive + negative).cumsum(-1))
        p = positive.sum(-1)
        return {self.name: macro(share((positive * precision).sum(-1), p), p > 0)}


def _histograms(scores: Array, y: Array, party: Array, parties: int, bins: int) -> Mapping[str, Array]:
    scores, y, party = labelled(scores, y, party, parties)
    logits = _logits(np.clip(scores.astype(np.float64), -1e30, 1e30))
    many = logits.shape[1]
    positive = y[:, None] == (np.arange(many) if many > 1 else 1)
    row = (party[:, None] * many + np.arange(many)) * 2 + positive
    counts = total((row * bins + _bin(logits, bins)).ravel(), parties * many * 2 * bins)
    counts = counts.reshape(parties, many, 2, bins)
    return {"positive": counts[:, :, 1], "negative": counts[:, :, 0]}


def _logits(scores: Array) -> Array:
    """Return the logit of the probability of the second of two classes, (rows, 1), or of each of more."""
    if scores.shape[1] == 2:
        return scores[:, 1:] - scores[:, :1]
    scores = scores - scores.max(1, keepdims=True)
    e = np.exp(scores)
    others = e.sum(1, keepdims=True) - e
    # That of the largest score would be a small difference of large numbers: it is added up without it.
    at = np.arange(len(e)), scores.argmax(1)
    e[at] = 0.0
    others[at] = e.sum(1)
    return scores - np.log(np.fmax(others, 1e-300))


def _bin(logits: Array, bins: int) -> Array:
    z = np.nan_to_num(logits)
    u = z / (SCALE + np.abs(z))
    return np.minimum((u + 1.0) * (bins / 2), bins - 1).astype(np.int64)
