"""Noise that hides one party. Its scale is read from the bound that the wire proves, never given twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, sqrt
from typing import Any, Literal

import numpy as np

from atoll.core.tree import Array, length
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Event, Mismatch, Stage, StageMemory, Wire, as_is
from atoll.core.world import Source
from atoll.stages.ring import signed

PLACES = ("central", "local", "distributed")
_FEW = 1e5  # below, single precision has room for ten standard deviations in whole steps
_GRID = 2**30  # steps of the grid in one standard deviation: rounding the vector to it moves no bound


@dataclass(frozen=True)
class Gaussian(Stage):
    """Add Gaussian noise of `multiplier` times the norm bound: at the server, at each party, or distributed.

    Proves: a noise event, from which the ledger computes ε.
    Needs: a norm bound, such as that of Clip(). "central" and "distributed" also need a divisor that does not depend on
    who answered; "distributed" needs Ring() before it and a hidden sum.
    Reveals: with "central" the server sees the sum without noise.

    Args:
        multiplier: standard deviation of the noise in units of the norm bound, above 0. Default 1.0.
        where: "central" (the default): the server adds the noise to the sum. "local": each party adds it to its own
            vector. "distributed": each party adds a part of it inside the ring, and only the noisy sum is visible.
        honest: for "distributed", the fraction of the cohort that must be honest and answer for the noise to be
            sufficient, above 0 and at most 1. Default 2/3.
        corrupt: for "distributed", the fraction of the cohort that is assumed to be corrupt: it answers and leaves its
            noise out. So many more must answer. From 0, with `honest` at most 1. Default 0.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> wire = check_stage(atoll.Gaussian(1.0), first=(atoll.Clip(0.5), atoll.Average("expected")))
        >>> wire.noised("central")
        True
    """

    multiplier: float = 1.0
    where: Literal["central", "local", "distributed"] = "central"
    honest: float = 2 / 3
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        if not self.multiplier > 0:
            raise Mismatch(f"Gaussian(multiplier={self.multiplier}): noise is positive; without it leave the stage out")
        if self.where not in PLACES:
            raise Mismatch(f"Gaussian(where={self.where!r}): noise is added 'central', 'local' or 'distributed'")
        if not 0 < self.honest <= 1:
            raise Mismatch(f"Gaussian(honest={self.honest}): a fraction of the parties, above 0 and at most 1")
        if not 0 <= self.corrupt <= 1 - self.honest + 1e-9:
            raise Mismatch(f"Gaussian(honest={self.honest}, corrupt={self.corrupt}): fractions from 0, together at "
                           "most 1")  # fmt: skip

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        sigma = self.multiplier * _bound(wire, "Gaussian()")
        if any(event.where != "local" for event in wire.noise):
            raise Mismatch("Gaussian() stands after other noise for the same sum: keep one")
        event = Event(self.where, self.multiplier)
        if self.where == "local":
            return self._local(wire, sigma, event)
        _count_hidden(wire)
        return self._central(wire, sigma, event) if self.where == "central" else self._distributed(wire, sigma, event)

    def _local(self, wire: Wire, sigma: float, event: Event) -> tuple[Wire, Codec]:
        wire = _room_for(wire, sigma * sqrt(wire.total.max_cohort), sigma)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            return Coded(x, memory, _share_of_noise(x, sigma * sqrt(context.n)))

        after = replace(wire, l2=None, noise=(*wire.noise, event))
        return after, Codec(_adder(sigma, "local noise"), decode)

    def _central(self, wire: Wire, sigma: float, event: Event) -> tuple[Wire, Codec]:
        wire = _room_for(wire, sigma)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            noisy = add_noise(x, sigma, context.world.private("central noise", context.t))
            return Coded(_narrowed(noisy, wire), memory, _share_of_noise(noisy, sigma))

        return replace(wire, noise=(*wire.noise, event)), Codec(as_is, decode)

    def _distributed(self, wire: Wire, sigma: float, event: Event) -> tuple[Wire, Codec]:
        if wire.ring is None:
            raise Mismatch("distributed noise is added inside a ring: put Ring() before Gaussian(where='distributed')")
        # Of the m that are in a sum at least, f are corrupt: each share has variance σ²/(m − f).
        honest, corrupt = ceil(self.honest * wire.total.cohort), floor(self.corrupt * wire.total.cohort + 1e-9)
        least = honest + corrupt
        mine = sigma / sqrt(honest)
        if mine < 2:  # below, a sum of discrete Gaussians is measurably not one
            raise Mismatch(
                f"each party's share of noise is {mine:.2g} steps of the ring, 2 are needed: raise Ring(bits=…)"
            )
        wire = _room_for(wire, sigma * sqrt(wire.total.max_cohort / honest), mine)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            return Coded(x, memory, _share_of_noise(x, mine * sqrt(context.n)))

        total = replace(wire.total, min_cohort=max(wire.total.min_cohort, least))
        after = replace(wire, l2=None, noise=(*wire.noise, replace(event, corrupt=corrupt)), total=total)
        return after, Codec(_adder(mine, "distributed noise"), decode)


@dataclass(frozen=True)
class TreeNoise(Stage):
    """Add noise that is correlated over rounds as a binary tree (DP-FTRL): no assumption on sampling.

    The noise of all rounds so far grows with the logarithm of their number (Kairouz et al. 2021).

    Proves: a noise event, from which the ledger computes ε.
    Needs: a norm bound; a divisor that does not depend on who answered; RoundRobin(), so that a party takes part at
    most once in `every` rounds. It works in simulations only.
    Reveals: the server sees the sum without noise.

    Args:
        multiplier: standard deviation of the noise of one node in units of the norm bound, above 0. Default 1.0.
        every: rounds of one tree, 1 or more. Default 100.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> wire = check_stage(atoll.TreeNoise(2.0, every=10), first=(atoll.Clip(0.5), atoll.Average("expected")))
        >>> wire.noised("tree")
        True
    """

    multiplier: float = 1.0
    every: int = 100

    def __post_init__(self) -> None:
        if not self.multiplier > 0:
            raise Mismatch(
                f"TreeNoise(multiplier={self.multiplier}): noise is positive; without it leave the stage out"
            )
        if self.every < 1:
            raise Mismatch(f"TreeNoise(every={self.every}): a tree lasts at least one round")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        sigma = self.multiplier * _bound(wire, "TreeNoise()")
        if wire.noise:
            raise Mismatch("TreeNoise() stands after other noise for the same sum: keep one")
        _count_hidden(wire)
        wire = _room_for(wire, sigma * sqrt(self.every.bit_length()))

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            from atoll.privacy.tree import increments

            epoch, step = divmod(context.t, self.every)
            zero = np.zeros(len(x), np.int64 if wire.ring else x.dtype)

            def node(level: int, index: int) -> Array:
                return add_noise(zero, sigma, context.world.private("tree", epoch, level, index))

            noise = increments(step + 1, node)
            return Coded(_narrowed(x + noise.astype(x.dtype), wire), memory, _share_of_noise(x, sigma))

        return replace(wire, noise=(Event("tree", self.multiplier, self.every),)), Codec(as_is, decode)


def add_noise(x: Array, sigma: float, source: Source) -> Array:
    """Add noise to a vector: whole numbers in a ring. From a secret source it is exact.

    In a simulation integers get rounded normal numbers, which for the scales of a ring nobody can tell from the
    discrete Gaussian; outside, the discrete Gaussian itself, and real vectors are put on a grid first, since the
    last digits of floating-point noise give its argument away (Mironov 2012).
    """
    whole = np.issubdtype(x.dtype, np.integer)
    if source.address is None:
        from atoll.privacy.discrete import SecureBits, discrete_gaussian

        if whole:
            return x + discrete_gaussian(sigma, len(x), SecureBits()).astype(x.dtype)
        grid = 2.0 ** floor(np.log2(sigma / _GRID))
        steps = np.rint(np.asarray(x, np.float64) / grid) + discrete_gaussian(sigma / grid, len(x), SecureBits())
        return (steps * grid).astype(x.dtype)
    from atoll.privacy.normal import normal, plus_normal

    if not whole:
        return x + normal(len(x), *source.address).astype(x.dtype, copy=False) * x.dtype.type(sigma)
    if sigma < _FEW and x.itemsize == 4:
        return plus_normal(x, sigma, *source.address)
    return x + np.rint(normal(len(x), *source.address) * np.float64(sigma)).astype(np.int64).astype(x.dtype)


def _narrowed(noisy: Array, wire: Wire) -> Array:
    """Give a sum that was added in double precision the type of its rows: after the noise this reveals nothing."""
    return noisy.astype(wire.row.dtype) if noisy.dtype.kind == "f" else noisy


def _adder(sigma: float, purpose: str) -> Any:
    def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
        noisy = [
            add_noise(x[k], sigma, about.world.private(purpose, about.t, me)) for k, me in enumerate(about.me.tolist())
        ]
        return Coded(noisy[0][None] if len(noisy) == 1 else np.stack(noisy), memory)

    return encode


def _bound(wire: Wire, name: str) -> float:
    wire.need_unwritten(name, "write every number again")
    return wire.need_bound(name, "its scale")


def _count_hidden(wire: Wire) -> None:
    if wire.mean and not wire.total.hides_count:
        raise Mismatch(
            "dividing by the number of answers tells who came, which no noise hides: use Average(by='expected'), "
            "or Weigh(max_weight=…) after Clip(norm)"
        )


def _room_for(wire: Wire, sigma: float, mine: float = 0.0) -> Wire:
    """Widen what a sum in the ring can be by its noise, and what a vector can be by its own."""
    if wire.ring is None:
        return wire
    span = wire.ring.sum_bound + 10 * sigma
    if span >= wire.ring.modulus / 2:
        raise Mismatch("the sum and its noise do not fit into the ring: use Ring(width=64), or fewer bits")
    return replace(wire, ring=replace(wire.ring, sum_bound=span, value_bound=wire.ring.value_bound + 10 * mine))


def _share_of_noise(x: Array, sigma: float) -> dict[str, float]:
    """Note how much of a noisy vector's length is noise."""
    real = signed(x) if np.issubdtype(x.dtype, np.unsignedinteger) else x
    total = length(real)
    return {"noise_share": min(sigma * sqrt(len(x)) / total, 1.0) if total else 1.0}
