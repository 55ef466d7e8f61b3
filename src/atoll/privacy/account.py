"""The accountant: how much of the privacy budget so many rounds have spent. It computes, and it never draws."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log
from typing import Any

import numpy as np

from atoll.core.keys import Array
from atoll.privacy.events import Spend

_ORDERS = np.unique([*(1 + x / 10 for x in range(1, 100)), *range(2, 64), 128, 256, 512, 1024])
# For samples of fixed size an order takes long, and one between whole orders is only interpolated.
_FIXED_ORDERS = np.array([*(x / 2 for x in range(3, 22)), *range(11, 33), 40, 48, 63, 128, 512, 1024])
_MANY = 10**12
_GRID = 1e-4


@dataclass(frozen=True)
class Account:
    """The ε of a run that spends the same every round, at one δ."""

    spend: Spend
    delta: float

    def __post_init__(self) -> None:
        _check_delta(self.delta, self.spend.population)

    def epsilon(self, rounds: int) -> float:
        """Return ε by Rényi DP: quick, never too small, and never falling with the rounds."""
        return _epsilon(_rdp([(self.spend, rounds)]), self.delta)

    def tight(self, rounds: int) -> float | None:
        """Return ε by privacy loss distributions, for the end of a run; None where they do not apply."""
        return _pld([(self.spend, rounds)], self.delta)

    def classic(self, rounds: int) -> float:
        """Return ε as older papers print it: whole orders and the first conversion (Mironov 2017, proposition 3)."""
        rdp = _rdp([(self.spend, rounds)])
        whole = np.equal(_ORDERS, np.round(_ORDERS))
        return float(np.min(rdp[whole] - log(self.delta) / (_ORDERS[whole] - 1))) if rounds else 0.0

    def rounds_within(self, epsilon: float) -> int:
        """Return the most rounds that spend at most ε (and stop counting at 10^12)."""
        high = 1
        while high < _MANY and self.epsilon(high) <= epsilon:
            high *= 2
        return bisect_right(range(high), epsilon, lo=high // 2, key=self.epsilon) - 1 if high > 1 else 0

    def words(self) -> str:
        """Return what has to stand beside every ε of this account."""
        return words(self.spend, self.delta)


def words(spend: Spend, delta: float) -> str:
    """Say in one line what an ε protects, and from which difference.

    >>> words(Spend(1.0, "poisson", 0.01), 1e-5)
    'unit: party; neighbours: add-or-remove-one; sampling: Poisson, rate 0.01; delta: 1e-05; accountant: RDP'
    """
    sampling = {
        "poisson": f"Poisson, rate {spend.rate:g}",
        "fixed": f"{spend.sample} of {spend.population} without replacement",
        "none": "none claimed",
    }[spend.sampling]
    if spend.mechanism == "tree":
        sampling = f"none claimed, at most once in each tree of {spend.epoch} rounds"
    return f"unit: {spend.unit}; neighbours: {spend.relation}; sampling: {sampling}; delta: {delta:g}; accountant: RDP"


def compose(history: Sequence[tuple[Spend, int]], delta: float) -> tuple[float, float | None]:
    """Return ε by RDP and by PLD (or None) of a history of spends, each with its number of rounds."""
    for name in ("unit", "relation"):
        kinds = sorted({getattr(spend, name) for spend, _ in history})
        if len(kinds) > 1:
            raise ValueError(f"{name} is {' and '.join(kinds)}: they do not add up to one ε, account for them apart")
    for spend, _ in history:
        _check_delta(delta, spend.population)
    return _epsilon(_rdp(history), delta), _pld(history, delta)


def _check_delta(delta: float, population: int | None) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: a delta is above 0 and below 1")
    if population is not None and delta * population > 1:
        raise ValueError(
            f"delta={delta}: above 1/{population} it would permit to publish one unit of {population} in clear, "
            "so take a smaller one, such as delta_for(population)"
        )


def _rdp(history: Sequence[tuple[Spend, int]]) -> Array:
    """Return the Rényi divergences of a whole history, one for each order."""
    total = np.zeros(len(_ORDERS))
    for spend, rounds in history:
        if rounds < 0:
            raise ValueError(f"rounds={rounds}: rounds are counted from 0")
        if rounds:
            total = total + spend.runs(rounds) * _rdp_of_one(spend)
    return total


@lru_cache(maxsize=256)
def _rdp_of_one(spend: Spend) -> Array:
    """Return the Rényi divergences of one run; an order at which they cannot be computed is of no use: infinity."""
    import dp_accounting as dpa
    from dp_accounting import rdp

    relations = dpa.NeighboringRelation
    fixed = spend.sampling == "fixed"
    orders, relation = (_FIXED_ORDERS, relations.REPLACE_ONE) if fixed else (_ORDERS, relations.ADD_OR_REMOVE_ONE)
    accountant = rdp.RdpAccountant(orders, relation)
    with _Quiet():
        accountant.compose(_event(spend))
    found = np.where(accountant.rdp >= 0, accountant.rdp, inf)
    full = np.full(len(_ORDERS), inf)
    full[np.searchsorted(_ORDERS, orders)] = found
    full.flags.writeable = False
    return full


def _event(spend: Spend) -> Any:
    """Translate one run. Noise is measured against what a neighbour can move, so replacing halves the multiplier."""
    import dp_accounting as dpa

    noise = dpa.GaussianDpEvent(spend.multiplier / spend.sensitivity)
    if spend.sampling == "poisson":
        return dpa.PoissonSampledDpEvent(spend.rate, noise)
    if spend.sampling == "fixed":
        return dpa.SampledWithoutReplacementDpEvent(spend.population, spend.sample, noise)
    return noise


class _Quiet:
    """Keep the accountant from warning about orders that are left out anyway."""

    def __enter__(self) -> None:
        logging.getLogger("absl").addFilter(_only_errors)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("absl").removeFilter(_only_errors)


def _only_errors(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _epsilon(rdp: Array, delta: float) -> float:
    """Convert Rényi divergences to ε (Canonne, Kamath, Steinke 2020, proposition 12), best order first."""
    if not rdp.any():
        return 0.0
    a = _ORDERS
    epsilon = rdp + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    # A divergence this small bounds the distance in total variation by δ itself (Bretagnolle and Huber).
    epsilon = np.where(delta**2 + np.expm1(-rdp) > 0, 0.0, epsilon)
    return max(float(epsilon.min()), 0.0)


def _pld(history: Sequence[tuple[Spend, int]], delta: float) -> float | None:
    from dp_accounting import pld

    if any(spend.sampling == "fixed" or spend.mechanism == "tree" for spend, _ in history):
        return None
    rough = _epsilon(_rdp(history), delta)
    if rough in (0.0, inf):
        return rough
    # A wide loss on a fine grid would fill the memory; a coarser grid errs on the safe side only.
    accountant = pld.PLDAccountant(value_discretization_interval=_GRID * max(1.0, rough / 50))
    for spend, rounds in history:
        if rounds:
            accountant.compose(_event(spend), spend.runs(rounds))
    return min(float(accountant.get_epsilon(delta)), rough)
