"""Noise that hides one party. Its scale is read from the bound that the wire proves, never given twice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, sqrt
from typing import Any

import numpy as np

from atoll.core.tree import Array, length
from atoll.core.wire import About, Codec, Event, Heard, Memory, Mismatch, Wire, as_is
from atoll.stages.ring import signed

PLACES = ("central", "local", "distributed")
_FEW = 1e5  # below, single precision has room for ten standard deviations in whole steps
_GRID = 2**30  # steps of the grid in one standard deviation: rounding the vector to it moves no bound


@dataclass(frozen=True)
class Gaussian:
    """Add Gaussian noise of `multiplier` times the bound: on the server, at each party, or spread over the parties.

    "central": the server adds it to the sum. "local": each party adds it to its own vector, before sending.
    "distributed": each party adds its share inside the ring, so that the noise is enough if at least this fraction of
    the parties is honest and answers; only the noisy sum is ever visible. Adds: a noise event for the ledger.
    """

    multiplier: float = 1.0
    where: str = "central"
    honest: float = 2 / 3

    def __post_init__(self) -> None:
        if not self.multiplier > 0:
            raise ValueError(
                f"Gaussian(multiplier={self.multiplier}): noise is positive; without it leave the stage out"
            )
        if self.where not in PLACES:
            raise ValueError(f"Gaussian(where={self.where!r}): noise is added 'central', 'local' or 'distributed'")
        if not 0 < self.honest <= 1:
            raise ValueError(f"Gaussian(honest={self.honest}): a fraction of the parties, above 0 and at most 1")

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
        wire = _room_for(wire, sigma * sqrt(wire.most), sigma)

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            return x, _share_of_noise(x, sigma * sqrt(heard.n), memory)

        after = replace(wire, l2=None, noise=(*wire.noise, event))
        return after, Codec(_adder(sigma, "local noise"), decode)

    def _central(self, wire: Wire, sigma: float, event: Event) -> tuple[Wire, Codec]:
        wire = _room_for(wire, sigma)

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            noisy = add_noise(x, sigma, (heard.seed, "central noise", heard.t))
            return noisy, _share_of_noise(noisy, sigma, memory)

        return replace(wire, noise=(*wire.noise, event)), Codec(as_is, decode)

    def _distributed(self, wire: Wire, sigma: float, event: Event) -> tuple[Wire, Codec]:
        if wire.ring is None:
            raise Mismatch("distributed noise is added inside a ring: put Ring() before Gaussian(where='distributed')")
        least = ceil(self.honest * wire.cohort)
        mine = sigma / sqrt(least)
        if mine < 2:  # below, a sum of discrete Gaussians is measurably not one
            raise Mismatch(
                f"each party's share of noise is {mine:.2g} steps of the ring, 2 are needed: raise Ring(bits=…)"
            )
        wire = _room_for(wire, sigma * sqrt(wire.most / least), mine)

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            return x, _share_of_noise(x, mine * sqrt(heard.n), memory)

        after = replace(wire, l2=None, noise=(*wire.noise, event), floor=max(wire.floor, least))
        return after, Codec(_adder(mine, "distributed noise"), decode)


@dataclass(frozen=True)
class Tree:
    """Add noise that is spread over the rounds as a binary tree (DP-FTRL): no assumption on who is drawn.

    The noise of all rounds so far grows with the logarithm of their number. A tree lasts `every` rounds, in which no
    party may take part twice: use it with InTurn(). Adds: a noise event for the ledger.
    """

    multiplier: float = 1.0
    every: int = 100

    def __post_init__(self) -> None:
        if not self.multiplier > 0:
            raise ValueError(f"Tree(multiplier={self.multiplier}): noise is positive; without it leave the stage out")
        if self.every < 1:
            raise ValueError(f"Tree(every={self.every}): a tree lasts at least one round")

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        sigma = self.multiplier * _bound(wire, "Tree()")
        if wire.noise:
            raise Mismatch("Tree() stands after other noise for the same sum: keep one")
        _count_hidden(wire)
        wire = _room_for(wire, sigma * sqrt(self.every.bit_length()))

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            from atoll.privacy.tree import increments

            if heard.seed is None:
                raise Mismatch("Tree() draws its noise by address, which only a simulation may: use Gaussian()")
            epoch, step = divmod(heard.t, self.every)
            address = (heard.seed, "tree", epoch)
            zero = np.zeros(len(x), np.int64 if wire.ring else x.dtype)

            def node(level: int, index: int) -> Array:
                return add_noise(zero, sigma, (*address, level, index))

            noise = increments(step + 1, node)
            return x + noise.astype(x.dtype), _share_of_noise(x, sigma, memory)

        return replace(wire, noise=(Event("tree", self.multiplier),), tree=self.every), Codec(as_is, decode)


def add_noise(x: Array, sigma: float, address: tuple[Any, ...]) -> Array:
    """Add noise to a vector: whole numbers in a ring. Without a seed it is exact and from the operating system.

    In a simulation integers get rounded normal numbers, which for the scales of a ring nobody can tell from the
    discrete Gaussian; outside, the discrete Gaussian itself, and real vectors are put on a grid first, since the
    last digits of floating-point noise give its argument away (Mironov 2012).
    """
    whole = np.issubdtype(x.dtype, np.integer)
    if address[0] is None:
        from atoll.privacy.discrete import SecureBits, discrete_gaussian

        if whole:
            return x + discrete_gaussian(sigma, len(x), SecureBits()).astype(x.dtype)
        grid = 2.0 ** floor(np.log2(sigma / _GRID))
        steps = np.rint(np.asarray(x, np.float64) / grid) + discrete_gaussian(sigma / grid, len(x), SecureBits())
        return (steps * grid).astype(x.dtype)
    from atoll.privacy.normal import normal, plus_normal

    if not whole:
        return x + normal(len(x), *address).astype(x.dtype, copy=False) * x.dtype.type(sigma)
    if sigma < _FEW and x.itemsize == 4:
        return plus_normal(x, sigma, *address)
    return x + np.rint(normal(len(x), *address) * np.float64(sigma)).astype(np.int64).astype(x.dtype)


def _adder(sigma: float, purpose: str) -> Any:
    def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
        noisy = [add_noise(x[k], sigma, (about.seed, purpose, about.t, me)) for k, me in enumerate(about.me.tolist())]
        return noisy[0][None] if len(noisy) == 1 else np.stack(noisy), memory

    return encode


def _bound(wire: Wire, name: str) -> float:
    if wire.form is not None:
        raise Mismatch(f"{name} after a stage that compresses would write every number again: put {name} before it")
    if wire.l2 is None:
        remedy = "put Clip(norm) before it" if not wire.weighted else "use Weigh(most=…) after Clip(norm), or Average()"
        raise Mismatch(f"{name} takes its scale from the bound of one vector, and this one has none: {remedy}")
    return wire.l2


def _count_hidden(wire: Wire) -> None:
    if wire.mean and not wire.fixed:
        raise Mismatch(
            "dividing by the number of answers tells who came, which no noise hides: use Average(by='expected'), "
            "or Weigh(most=…) after Clip(norm)"
        )


def _room_for(wire: Wire, sigma: float, mine: float = 0.0) -> Wire:
    """Widen what a sum in the ring can be by its noise, and what a vector can be by its own."""
    if wire.ring is None:
        return wire
    span = wire.span + 10 * sigma
    if span >= wire.ring / 2:
        raise Mismatch("the sum and its noise do not fit into the ring: use Ring(width=64), or fewer bits")
    return replace(wire, span=span, peak=wire.peak + 10 * mine)


def _share_of_noise(x: Array, sigma: float, memory: Memory) -> Memory:
    """Note how much of a noisy vector's length is noise."""
    real = signed(x) if np.issubdtype(x.dtype, np.unsignedinteger) else x
    total = length(real)
    return {**memory, "fact.noise_share": min(sigma * sqrt(len(x)) / total, 1.0) if total else 1.0}
