"""Attacks on the promise itself: canaries that bound ε from below, and outputs that give their input away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.tree import Array

Release = Callable[[bool, int], Array]


@dataclass(frozen=True)
class PrivacyAudit:
    """A lower bound on the ε that a mechanism spends, beside the ε that it claims.

    Args:
        lower: the lower bound.
        claimed: the claimed ε.

    Example:
        >>> from atoll.privacy import PrivacyAudit
        >>> PrivacyAudit(lower=4.0, claimed=0.6).caught
        True
    """

    lower: float
    claimed: float

    @property
    def caught(self) -> bool:
        """Whether the claim is refuted."""
        return self.lower > self.claimed


def _lower_bounds(
    hits: Array | int, trials: int, false_hits: Array | int, false_trials: int, delta: float, confidence: float
) -> Array:
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
    """Return a lower bound on ε, from how often a test said "present" when a canary was present and when it was not.

    (ε, δ)-privacy demands true ≤ e^ε·false + δ, and the same of the opposite answers (Kairouz, Oh, Viswanath 2015). The
    two rates are bounded after Clopper and Pearson.

    Args:
        hits: trials with the canary in which the test said "present".
        trials: trials with the canary, 1 or more.
        false_hits: trials without the canary in which the test said "present".
        false_trials: trials without the canary, 1 or more.
        delta: the δ of the guarantee, 0 or more and below 1.
        confidence: probability that the bound holds, above 0 and below 1. Default 0.95.

    Example:
        >>> from atoll.privacy import lower_bound
        >>> round(lower_bound(900, 1000, 100, 1000, delta=1e-5), 2)
        1.99
    """
    for name, count, most in (("hits", hits, trials), ("false_hits", false_hits, false_trials)):
        if not 0 <= count <= most or most < 1:
            raise Mismatch(f"{name}={count} of {most}: a count lies between 0 and its trials, of which there are some")
    if not 0 < confidence < 1:
        raise Mismatch(f"confidence={confidence}: a confidence is above 0 and below 1")
    return float(_lower_bounds(hits, trials, false_hits, false_trials, delta, confidence))


def audit(
    mechanism: Release, claimed_epsilon: float, delta: float, samples: int = 10**6, confidence: float = 0.95
) -> PrivacyAudit:
    """Try to refute a claimed ε with scores of a canary.

    Half of the scores choose the threshold and the other half are tested. Noise of half the claimed size is found at a
    claimed multiplier of 2 with 20,000 samples, at 1 only with some 10^6.

    Args:
        mechanism: mechanism(present, n) returns n scores, which are higher if the canary is present.
        claimed_epsilon: the ε to refute.
        delta: the δ of the guarantee, 0 or more and below 1.
        samples: scores with the canary, and as many without, 100 or more. Default 10^6.
        confidence: probability that the bound holds, above 0 and below 1. Default 0.95.

    Example:
        >>> import numpy as np
        >>> from atoll.privacy import audit
        >>> rng = np.random.default_rng(0)
        >>> def weak(present, n):
        ...     return present + rng.normal(0, 0.25, n)
        >>> audit(weak, claimed_epsilon=1.0, delta=1e-5, samples=2000).caught
        True
    """
    if samples < 100:
        raise Mismatch(f"samples={samples}: an audit needs at least 100 of each kind")
    count = 2 * (samples // 2)
    present, absent = (np.asarray(mechanism(kind, count)).ravel() for kind in (True, False))
    if not len(present) == len(absent) == count:
        raise Mismatch(f"scores={len(present)} and {len(absent)}: the mechanism was asked for {count} of each")
    return audit_scores(present, absent, claimed_epsilon, delta, confidence)


def audit_scores(
    present: Array, absent: Array, claimed_epsilon: float, delta: float, confidence: float = 0.95
) -> PrivacyAudit:
    """Try to refute a claimed ε with scores that are there already. The first half of each kind chooses the threshold.

    Args:
        present: scores with the canary, independent of each other, two or more.
        absent: scores without it, which are lower, two or more.
        claimed_epsilon: the ε to refute.
        delta: the δ of the guarantee, 0 or more and below 1.
        confidence: probability that the bound holds, above 0 and below 1. Default 0.95.

    Example:
        >>> import numpy as np
        >>> from atoll.privacy import audit_scores
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.normal(0, 0.25, 400), rng.normal(0, 0.25, 9000)
        >>> audit_scores(*scores, claimed_epsilon=1.0, delta=1e-5).caught
        True
    """
    if min(len(present), len(absent)) < 2:
        raise Mismatch(f"{len(present)} and {len(absent)} scores: two of each kind are needed")
    train = [np.sort(side[: len(side) // 2]) for side in (present, absent)]
    test = [side[len(side) // 2 :] for side in (present, absent)]
    # The best threshold often lies far out, so candidates are dense at both ends.
    candidates = np.unique(np.concatenate([side[at] for side in train for at in _ends(len(side))]))
    (first, hits), (second, false_hits) = ((len(side), len(side) - np.searchsorted(side, candidates)) for side in train)
    best = candidates[np.argmax(_lower_bounds(hits, first, false_hits, second, delta, confidence))]
    found, false = (int(np.sum(side >= best)) for side in test)
    return PrivacyAudit(lower_bound(found, len(test[0]), false, len(test[1]), delta, confidence), claimed_epsilon)


def _ends(count: int) -> tuple[Array, Array]:
    """Return indices into sorted scores, dense at their lower and at their upper end."""
    ranks = np.unique(np.geomspace(1, max(count / 2, 1), 80).astype(int))
    return ranks - 1, count - ranks


def floating_point_attack(outputs: Array, possible: Callable[[Array], Array]) -> float:
    """Return the fraction of outputs of one input that a neighbouring input could never give (Mironov 2012).

    A fraction above δ breaks the guarantee, whatever the noise.

    Args:
        outputs: outputs of a mechanism on one input.
        possible: possible(outputs) says of each output whether the neighbouring input can give it.

    Example:
        >>> import numpy as np
        >>> from atoll.privacy import floating_point_attack
        >>> floating_point_attack(np.array([0.5, 1.0, 1.5, 2.0]), lambda outputs: outputs % 1 == 0)
        0.5
    """
    reachable = np.asarray(possible(outputs), bool)
    if reachable.shape != np.shape(outputs) or not reachable.size:
        raise Mismatch(f"outputs of shape {np.shape(outputs)}: one answer for each of them is needed, and one at least")
    return float(np.mean(~reachable))
