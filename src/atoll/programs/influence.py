"""How far one party can move the model: in words for people, and as the weight that a server accepts of it.

Both follow from the exchange that runs: from what its wire proves, and from what a server can check of one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from atoll.core.wire import EncodeContext
from atoll.core.world import World
from atoll.programs.federate import Exchange


def at_will(exchange: Exchange) -> list[str]:
    """Say that one party can set the model at will, why, and what to change: a line, or none where it cannot."""
    wire, combine = exchange.wire, exchange.combine
    if combine.robust or (wire.l2 is not None and wire.ring is None and not combine.hidden):
        return []
    if combine.hidden:
        why = "the server sees the sum only and cannot check one vector; admit only parties that you trust"
    elif wire.noised("local"):
        why = "noise of its own hides how long its vector is; admit only parties that you trust"
    elif wire.ring is not None:
        why = "integers of a ring are not checked; take Ring() out of the stages"
    else:
        mean = "Weigh(max_weight=…)" if wire.weighted else "Average()"
        why = f"nothing bounds its vector; put Clip(norm) before {mean}, or combine with Each(Median())"
    return [f"one of {wire.total.cohort:,} parties can set the model at will: {why}"]


def capped(exchange: Exchange) -> list[str]:
    """Say how much weight a server accepts: a line, or none where it can read no weight."""
    if weight_limit(exchange) is None:
        return []
    return ["a served job accepts no more weight than a party's declared samples give, of an edge than its parties' do"]


def weight_limit(exchange: Exchange) -> Callable[[int], float] | None:
    """Return the largest weight that a vector of a party with so many samples has; None where none can be read."""
    wire, start, codec = exchange.wire, exchange.start, exchange.codec
    if not wire.weighted or wire.ring is not None or wire.noised("local") or exchange.combine.hidden:
        return None

    @lru_cache(maxsize=10_000)
    def limit(samples: int) -> float:
        told = {leaf: codec.start[leaf] for leaf in codec.stage_state}
        weight = np.array([samples], start.row.dtype)
        context = EncodeContext(weight, World.simulated(0), 0, np.arange(1), told, np.zeros(1))
        nothing = np.zeros((1, start.row.size), start.row.dtype)
        return float(codec.encode(nothing, {}, context).x[0, -1])

    return limit


def weight_limits(exchanges: Mapping[str, Exchange]) -> dict[str, Callable[[int], float]]:
    """Return what `weight_limit` gives for the question of every phase."""
    found = {f"{name}/contribute": weight_limit(exchange) for name, exchange in exchanges.items()}
    return {name: limit for name, limit in found.items() if limit is not None}
