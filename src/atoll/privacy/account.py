"""The accountant: how much of the privacy budget so many rounds have spent. It computes, and it never draws."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from math import inf, isfinite, log
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import Mismatch
from atoll.core.tree import Array
from atoll.privacy.events import Spend

if TYPE_CHECKING:
    import dp_accounting

_ORDERS = np.unique([*(1 + x / 10 for x in range(1, 100)), *range(2, 64), 128, 256, 512, 1024])
# For samples of fixed size an order takes long, and one between whole orders is only interpolated.
_FIXED_ORDERS = np.array([*(x / 2 for x in range(3, 22)), *range(11, 33), 40, 48, 63, 128, 512, 1024])
_MANY = 10**12
_GRID = 1e-4


@dataclass(frozen=True)
class Account:
    """The ε of a run that spends the same in every round, at one δ.

    Args:
        spend: what one ask spends; of several asks in a round, the first.
        delta: the δ of the guarantee, above 0 and below 1.
        after: where a round has several asks, all that it has spent after each of them. Default: a round is one ask.
        again: asks of a round, counted from 1, whose failure makes the round begin again. Default: none.

    Example:
        >>> from atoll.privacy import Account, Spend
        >>> account = Account(Spend(1.0, "poisson", 0.01), delta=1e-5)
        >>> round(account.epsilon(1000), 2), round(account.tight(1000), 2)  # by Rényi DP, by privacy loss distributions
        (2.1, 1.83)
    """

    spend: Spend
    delta: float
    after: tuple[tuple[Spend, ...], ...] = ()
    again: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_delta(self.delta, self.spend.population)

    def epsilon(self, asks: int) -> float:
        """Return ε by Rényi DP: quick, never too small, and never falling with the asks."""
        return _epsilon(self._rdp(asks), self.delta)

    def tight(self, asks: int) -> float | None:
        """Return ε by privacy loss distributions, for the end of a run; None where they do not apply."""
        return _pld(self._history(asks), self.delta) if self._regular else None

    def classic(self, rounds: int) -> float:
        """Return ε as older papers print it: whole orders and the first conversion (Mironov 2017, proposition 3)."""
        rdp = _rdp([(self.spend, rounds)])
        whole = np.equal(_ORDERS, np.round(_ORDERS))
        return float(np.min(rdp[whole] - log(self.delta) / (_ORDERS[whole] - 1))) if rounds else 0.0

    def rounds_within(self, epsilon: float) -> int:
        """Return the most asks (rounds, where a round is one ask) that spend at most ε, counted up to 10^12."""
        high = 1
        while high < _MANY and self.epsilon(high) <= epsilon:
            high *= 2
        return bisect_right(range(high), epsilon, lo=high // 2, key=self.epsilon) - 1 if high > 1 else 0

    def each(self, change: Callable[[Spend], Spend]) -> Account:
        """Return the account of which every spend is changed."""
        return replace(self, spend=change(self.spend), after=tuple(tuple(map(change, one)) for one in self.after))

    def scaled(self, factor: float) -> Account:
        """Return the account of this many times the noise, in every ask."""
        return self.each(lambda spend: replace(spend, multiplier=factor * spend.multiplier))

    def _history(self, asks: int) -> list[tuple[Spend, int]]:
        """Return what so many asks spend, round after round."""
        if not self.after:
            return [(self.spend, asks)]
        rounds, rest = divmod(asks, len(self.after))
        begun = self.after[rest - 1] if rest else ()
        return [*((spend, rounds) for spend in self.after[-1]), *((spend, 1) for spend in begun)]

    @property
    def _regular(self) -> bool:
        """Whether no order of asks spends more than round after round: who begins again has asked for a whole round."""
        return all(asked == len(self.after) for asked in self.again)

    def _rdp(self, asks: int) -> Array:
        if self._regular or not asks:
            return _rdp(self._history(asks))
        # A round that begins again at an ask has spent what those before it spend: the dearest way per ask bounds all.
        after = [np.zeros(len(_ORDERS)), *(_rdp([(spend, 1) for spend in one]) for one in self.after)]
        ways = [after[-1] / len(self.after), *(after[asked - 1] / asked for asked in self.again)]
        rate = np.max(ways, axis=0)
        with np.errstate(invalid="ignore"):
            begun = np.max([after[k] - k * rate for k in range(len(self.after))], axis=0)
        return np.where(np.isfinite(rate), asks * rate + begun, inf)

    def terms(self) -> dict[str, object]:
        """Return what has to stand beside every ε of this account, as fields of a fact; `in_words` says it."""
        s = self.spend
        bound = None if self._regular else True  # rounds that begin again spend this or less
        more = {"bound": bound, "rate": s.rate, "sample": s.sample, "population": s.population, "epoch": s.epoch}
        said: dict[str, object] = {"unit": s.unit, "neighbours": s.relation, "sampling": s.sampling}
        said |= {name: value for name, value in more.items() if value is not None}
        return {**said, "delta": self.delta, "accountant": "RDP"}

    def words(self) -> str:
        """Return what has to stand beside every ε of this account."""
        return in_words(self.terms())


def in_words(terms: Mapping[str, object]) -> str:
    """Say in one line what an ε protects, and from which difference: the terms of an account.

    >>> in_words(Account(Spend(1.0, "poisson", 0.01), 1e-5).terms())
    'unit: party; neighbours: add-or-remove-one; sampling: Poisson, rate 0.01; delta: 1e-05; accountant: RDP'
    """
    sampling = "none claimed"
    sampled = terms.get("rate", 1.0) != 1.0  # at a rate of 1 nothing is sampled, whatever vectors are replaced
    if terms["sampling"] == "poisson" and sampled:
        sampling = f"Poisson, rate {terms['rate']:g}"
    elif terms["sampling"] == "fixed" and sampled:
        sampling = f"{terms['sample']} of {terms['population']} without replacement"
    elif "epoch" in terms:
        sampling = f"none claimed, at most once in each tree of {terms['epoch']} rounds"
    against = "against the server; " if terms.get("against") == "server" else ""
    bound = ", at most so much: how much depends on the rounds that begin again" if terms.get("bound") else ""
    return (
        f"{against}unit: {terms['unit']}; neighbours: {terms['neighbours']}; sampling: {sampling}; "
        f"delta: {terms['delta']:g}; accountant: {terms['accountant']}{bound}"
    )


def in_epsilon(value: float) -> str:
    """Write an ε with three digits that count, rounded up: a bound stays a bound."""
    if not isfinite(value):
        return "∞"
    exact = Decimal(repr(float(value)))
    digits = min(0, max(exact.adjusted(), -9) - 2) if exact else 0
    return f"{exact.quantize(Decimal(1).scaleb(digits), ROUND_CEILING):,f}"


def compose(history: Sequence[tuple[Spend, int]], delta: float) -> tuple[float, float | None]:
    """Return the ε of several spends by Rényi DP, and by privacy loss distributions (None where they do not apply).

    Args:
        history: pairs of a spend and its number of rounds.
        delta: the δ of the guarantee, above 0 and below 1.

    Example:
        >>> from atoll.privacy import Spend, compose
        >>> rdp, pld = compose([(Spend(1.0, "poisson", 0.01), 500), (Spend(2.0, "poisson", 0.01), 500)], delta=1e-5)
        >>> round(rdp, 2) > round(pld, 2) > 1
        True
    """
    for name in ("unit", "relation"):
        kinds = sorted({getattr(spend, name) for spend, _ in history})
        if len(kinds) > 1:
            raise Mismatch(f"{name} is {' and '.join(kinds)}: they do not add up to one ε, account for them apart")
    for spend, _ in history:
        _check_delta(delta, spend.population)
    return _epsilon(_rdp(history), delta), _pld(history, delta)


def epsilon_of(history: Sequence[tuple[Spend, int]], delta: float) -> float:
    """Return the ε of several spends by Rényi DP. Neighbours of different kinds add up to the weakest kind of them."""
    return _epsilon(_rdp(history), delta)


def _check_delta(delta: float, population: int | None) -> None:
    if not 0 < delta < 1:
        raise Mismatch(f"delta={delta}: a delta is above 0 and below 1")
    if population is not None and delta * population > 1:
        raise Mismatch(
            f"delta={delta}: above 1/{population} it would permit to publish one unit of {population} in clear, "
            "so take a smaller one, such as delta_for(population)"
        )


def _rdp(history: Sequence[tuple[Spend, int]]) -> Array:
    """Return the Rényi divergences of a whole history, one for each order."""
    total = np.zeros(len(_ORDERS))
    for spend, rounds in history:
        if rounds < 0:
            raise Mismatch(f"rounds={rounds}: rounds are counted from 0")
        if rounds:
            total = total + spend.runs(rounds) * _rdp_of_one(spend)
    return total


@lru_cache(maxsize=256)
def _rdp_of_one(spend: Spend) -> Array:
    """Return the Rényi divergences of one run; an order at which they cannot be computed is of no use: infinity."""
    if spend.rate == 1 and spend.sampling != "fixed":  # Mironov 2017, proposition 7: nothing heavy to import
        return _ORDERS / (2 * (spend.multiplier / spend.sensitivity) ** 2)
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


def _event(spend: Spend) -> dp_accounting.DpEvent:
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
