"""The way back: from the ε one may spend to the noise it takes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Literal

from atoll.core.errors import Mismatch
from atoll.privacy.account import Account
from atoll.privacy.events import Mechanism, SamplingKind, Spend, Unit

_PER_DECADE = 900
_SMALLEST = -2  # the grid of multipliers starts at 0.01
_DECADES = 8


def _multiplier(i: int) -> float:
    """Return the i-th number of three digits: 0.0100, 0.0101, … 0.0999, 0.100, …"""
    decade, digits = divmod(i, _PER_DECADE)
    return float(f"{100 + digits}e{decade + _SMALLEST - 2}")


def smallest(
    account: Callable[[float], Account], epsilon: float, rounds: int, accountant: Literal["rdp", "pld"] = "rdp"
) -> float:
    """Return the smallest multiplier of three digits whose account keeps so many rounds within ε.

    `accountant="pld"` finds a smaller one, and takes some seconds.
    """
    if not epsilon > 0:
        raise Mismatch(f"epsilon={epsilon}: a budget is above 0")
    if rounds < 1:
        raise Mismatch(f"rounds={rounds}: noise is planned for at least one round")
    if accountant not in ("rdp", "pld"):
        raise Mismatch(f"accountant={accountant!r}: choose one of rdp, pld")

    def within(i: int) -> bool:
        return account(_multiplier(i)).epsilon(rounds) <= epsilon

    def within_tight(i: int) -> bool:
        spent = account(_multiplier(i)).tight(rounds)
        if spent is None:
            raise Mismatch("accountant='pld' covers Poisson sampling and none, not this spend: use 'rdp'")
        return spent <= epsilon

    last = _PER_DECADE * _DECADES
    found = bisect_left(range(last), True, key=within)
    if found == last:
        raise Mismatch(f"epsilon={epsilon}: no noise keeps {rounds} rounds within it, ask for less")
    if accountant == "pld":
        step = 16
        while found >= step and within_tight(found - step):
            found, step = found - step, 2 * step
        found = bisect_left(range(found), True, lo=max(found - step, 0), key=within_tight)
    return _multiplier(found)


def multiplier_for(
    epsilon: float,
    delta: float,
    rounds: int,
    rate: float = 1.0,
    sampling: SamplingKind = "poisson",
    *,
    population: int | None = None,
    unit: Unit = "party",
    mechanism: Mechanism = "gaussian",
    times: int = 1,
    epoch: int | None = None,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> float:
    """Return the smallest noise multiplier, of three digits, with which all rounds stay within (ε, δ).

    Args:
        epsilon: the largest ε, above 0.
        delta: the δ of the guarantee, above 0 and below 1.
        rounds: number of rounds, 1 or more.
        rate: probability that a unit takes part in a round, above 0 and at most 1. Default 1.0.
        sampling: "poisson" (the default), "fixed" or "none", as in `Spend`.
        population: number of units to sample from. "fixed" needs it.
        unit: what is protected, "party" (the default) or "example".
        mechanism: "gaussian" (the default), "local" or "tree".
        times: runs of the mechanism in one round, 1 or more. Default 1.
        epoch: for "tree", rounds of one tree.
        accountant: "rdp" (the default), or "pld", which finds a smaller multiplier and takes some seconds.

    Example:
        >>> from atoll.privacy import multiplier_for
        >>> multiplier_for(epsilon=3.0, delta=1e-5, rounds=500, rate=0.01)
        0.798
    """

    def account(z: float) -> Account:
        return Account(Spend(z, sampling, rate, unit, mechanism, population, times, epoch), delta)

    return smallest(account, epsilon, rounds, accountant)


def delta_for(population: int) -> float:
    """Return the customary δ = N^-1.1. A δ is the probability that the guarantee fails, so it must be below 1/N.

    Args:
        population: number of units N, 2 or more.

    Example:
        >>> from atoll.privacy import delta_for
        >>> round(delta_for(1000), 6)
        0.000501
    """
    if population < 2:
        raise Mismatch(f"population={population}: a single unit cannot hide, 2 or more are needed")
    return float(population**-1.1)
