"""Attacks on the promise itself: canaries that bound ε from below, and outputs that give their input away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.keys import Array

Mechanism = Callable[[bool, int], Array]


@dataclass(frozen=True)
class Audit:
    """An ε that the mechanism spends with near certainty, beside the one that it claims."""

    lower: float
    claimed: float

    @property
    def caught(self) -> bool:
        """Whether the claim is refuted."""
        return self.lower > self.claimed


def _lower_bounds(hits: Any, trials: int, false_hits: Any, false_trials: int, delta: float, confidence: float) -> Array:
    from scipy.special import betaincinv

    doubt = (1 - confidence) / 2
    hits, false_hits = np.asarray(hits, float), np.asarray(false_hits, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Clopper and Pearson; at the ends, where their formula has no value, the bound is the end itself.
        true_rate = np.where(hits > 0, betaincinv(hits, trials - hits + 1, doubt), 0.0)
        above = betaincinv(false_hits + 1, false_trials - false_hits, 1 - doubt)
        false_rate = np.where(false_hits < false_trials, above, 1.0)
        present = np.log(np.maximum(true_rate - delta, 0) / false_rate)
        absent = np.log(np.maximum(1 - false_rate - delta, 0) / (1 - true_rate))
    return np.maximum(np.maximum(present, absent), 0.0)


def lower_bound(
    hits: int, trials: int, false_hits: int, false_trials: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the ε that a mechanism spends at least, given how often a test said "present" when it was and was not.

    (ε, δ)-privacy demands true ≤ e^ε·false + δ, and the same of the opposite answers (Kairouz, Oh, Viswanath 2015);
    the two rates are bounded after Clopper and Pearson, so the answer is wrong with at most 1 − confidence.
    """
    for name, count, most in (("hits", hits, trials), ("false_hits", false_hits, false_trials)):
        if not 0 <= count <= most or most < 1:
            raise ValueError(
                f"{name}={count} of {most}: a count lies between 0 and its trials, of which there are some"
            )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: a confidence is above 0 and below 1")
    return float(_lower_bounds(hits, trials, false_hits, false_trials, delta, confidence))


def audit(
    mechanism: Mechanism, claimed_epsilon: float, delta: float, samples: int = 10**6, confidence: float = 0.95
) -> Audit:
    """Try to refute a claim: `mechanism(present, n)` gives n scores, higher when the canary is present.

    Half of the scores choose the threshold and the other half are tested, so that the choice cannot flatter. Noise of
    half the claimed size is found at a claimed multiplier of 2 with 20,000 samples, at 1 only with some 10^6.
    """
    if samples < 100:
        raise ValueError(f"samples={samples}: an audit needs at least 100 of each kind")
    half = samples // 2
    present, absent = (np.asarray(mechanism(kind, 2 * half)).ravel() for kind in (True, False))
    if not len(present) == len(absent) == 2 * half:
        raise ValueError(f"scores={len(present)} and {len(absent)}: the mechanism was asked for {2 * half} of each")
    train = [np.sort(side[:half]) for side in (present, absent)]
    # The best threshold often lies far out, so candidates are dense at both ends.
    ranks = np.unique(np.geomspace(1, half / 2, 80).astype(int))
    candidates = np.unique(np.concatenate([side[at] for side in train for at in (ranks - 1, half - ranks)]))
    seen = [half - np.searchsorted(side, candidates) for side in train]
    best = candidates[np.argmax(_lower_bounds(seen[0], half, seen[1], half, delta, confidence))]
    hits, false_hits = (int(np.sum(side[half:] >= best)) for side in (present, absent))
    return Audit(lower_bound(hits, half, false_hits, half, delta, confidence), claimed_epsilon)


def floating_point_attack(outputs: Array, possible: Callable[[Array], Array]) -> float:
    """Return the share of outputs of one input that a neighbour could never have given (Mironov 2012).

    `possible` says of each output whether the neighbour can reach it. A share above δ breaks the promise: such
    an output names its input, whatever the noise.
    """
    reachable = np.asarray(possible(outputs), bool)
    if reachable.shape != np.shape(outputs) or not reachable.size:
        raise ValueError(
            f"outputs of shape {np.shape(outputs)}: one answer for each of them is needed, and one at least"
        )
    return float(np.mean(~reachable))
