"""Rows of scores and targets in one shape, and sums of them by party. Positions of a sequence count as rows."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.tree import Array

LARGEST = 1e100  # its squares, added a billion times, are still finite


class Scored(NamedTuple):
    """What a network said of rows: scores (rows, outputs), targets, and the party of each row."""

    scores: Array
    y: Array
    party: Array


def flat(scores: Array, y: Array, party: Array, parties: int) -> Scored:
    """Give positions of sequences rows of their own; targets keep their last axis if it is that of the outputs."""
    # Indices are made of party numbers: small integers would overflow.
    scores, y, party = np.asarray(scores), np.asarray(y), np.asarray(party).astype(np.int64, copy=False)
    if scores.ndim < 2:
        scores, y = scores.reshape(-1, 1), y.reshape(-1)
    *lead, outputs = scores.shape
    if y.shape not in (tuple(lead), scores.shape) or party.shape != (lead[0],):
        raise Mismatch(
            f"scores {scores.shape}, targets {y.shape} and parties {party.shape} do not match: "
            "give each row one party, and each row or position one target"
        )
    if len(party) and not 0 <= party.min() <= party.max() < parties:
        raise Mismatch(f"parties are numbered 0 to {parties - 1}, got {party.min()} to {party.max()}")
    n = prod(lead)
    if n != len(party):
        party = np.repeat(party, prod(lead[1:]))
    return Scored(scores.reshape(n, outputs), y.reshape(n, *y.shape[len(lead) :]), party)


def classes(outputs: int) -> int:
    """Return how many classes this many scores tell apart: one score is the logit of the second of two."""
    return max(outputs, 2)


def labelled(scores: Array, y: Array, party: Array, parties: int) -> Scored:
    """Return logits (rows, classes), integer labels (rows,) and parties. One score s becomes the logits (0, s)."""
    scores, y, party = flat(scores, y, party, parties)
    if scores.shape[1] == 1:
        scores, y = np.concatenate([np.zeros_like(scores), scores], axis=1), y.reshape(-1)
    if y.ndim > 1 or (y.dtype.kind not in "iub" and not np.array_equal(np.floor(y), y)):
        raise Mismatch("labels are one whole number for each row: use a metric for real targets, such as MSE()")
    if len(y) and not 0 <= y.min() <= y.max() < scores.shape[1]:
        raise Mismatch(
            f"labels are 0 to {scores.shape[1] - 1} for this model, got {y.min()} to {y.max()}: "
            "give the model an output for each class"
        )
    return Scored(scores, y.astype(np.int64, copy=False), party)


def real(scores: Array, y: Array, party: Array, parties: int) -> Scored:
    """Return predictions and targets (rows, outputs) in float64, and parties.

    Predictions are limited to ±1e100, and what is not a number counts as 1e100: a diverged model has finite values.
    """
    scores, y, party = flat(scores, y, party, parties)
    if y.size != scores.size:
        raise Mismatch(f"{scores.shape[1]} predictions for each target: use a metric for classes, such as Accuracy()")
    predicted = np.nan_to_num(scores.astype(np.float64), nan=LARGEST).clip(-LARGEST, LARGEST)
    return Scored(predicted, y.astype(np.float64).reshape(scores.shape), party)


def total(party: Array, parties: int, of: Array | None = None) -> Array:
    """Add numbers of rows (None: count the rows) by party, (parties,) in float64."""
    return np.bincount(party, of, parties).astype(np.float64, copy=False)


def ratio(part: Array, whole: Array) -> Array:
    """Return part / whole; 0 where the whole is not above 0."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.zeros(np.broadcast_shapes(part.shape, whole.shape)), where=whole > 0)[()]


def share(part: Array, whole: Array) -> Array:
    """Return part / whole, from 0 to 1; 0 of nothing. Noise can push sums out of that range."""
    return np.clip(ratio(part, whole), 0.0, 1.0)


def macro(each: Array, some: Array, default: float = 0.0) -> Array:
    """Return the mean over those classes that count, along the last axis; the default if none does."""
    return np.where(some.any(-1), ratio((each * some).sum(-1), some.sum(-1)), default)[()]
