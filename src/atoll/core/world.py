"""World: where a run takes place, and what follows from it for every random draw and every watched fact.

A simulation and a federation between real parties run the same parts. What differs is one value, which reaches
methods, stages, combines and models. Public draws come from the job's seed in every world, so that all parties and the
server agree on them. Private draws (noise, masks, roundings, samples of private batches) have an address in a
simulation, so that runs repeat; between real parties they come from the operating system of whoever draws.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from atoll.core.keys import draw, rng, uniform
from atoll.core.tree import Array


class Source(NamedTuple):
    """Where one private draw comes from.

    Args:
        address: what names the draw in a simulation; None: the operating system.
    """

    address: tuple[object, ...] | None

    def key(self) -> Array | None:
        """Return 64 bits that compiled code expands by a counter; None where only filled buffers will do."""
        return None if self.address is None else draw(*self.address)

    def generator(self) -> np.random.Generator:
        """Return the generator at the address. Never for secrets: ask `secret` first."""
        if self.address is None:
            raise ValueError("a secret source has no generator that could be repeated: take its bytes")
        return rng(*self.address)

    @property
    def secret(self) -> bool:
        return self.address is None

    def raw(self, count: int) -> bytes:
        """Return random bytes."""
        return os.urandom(count) if self.secret else self.generator().bytes(count)

    def words(self, count: int, dtype: str) -> Array:
        """Return random unsigned integers."""
        return np.frombuffer(self.raw(count * np.dtype(dtype).itemsize), dtype)


class World(NamedTuple):
    """Where a run takes place: simulated or real, as one value.

    Args:
        seed: the seed of the job. Default 0.
        secret: whether private draws come from the operating system. Default false.
        watched: whether facts of single parties may be noted, as only a simulation can. Default true.
        shortcut: whether a hidden sum may be added up in the clear; the result is bit-for-bit that of its protocol.
            Default true.
    """

    seed: int = 0
    secret: bool = False
    watched: bool = True
    shortcut: bool = True

    @classmethod
    def simulated(cls, seed: int, *, protocols: bool = False) -> World:
        """All parties on one machine; with `protocols` hidden sums run their whole protocol there."""
        return cls(seed, shortcut=not protocols)

    @classmethod
    def real(cls, seed: int) -> World:
        """Parties that do not trust each other."""
        return cls(seed, secret=True, watched=False, shortcut=False)

    @classmethod
    def rehearsed(cls, seed: int) -> World:
        """Real parties, but with private draws that repeat: only tests on one machine may run so."""
        return cls(seed, watched=False, shortcut=False)

    def public(self, purpose: str, *address: object) -> Array:
        """Return 64 bits at an address that everybody can compute. Array parts broadcast: one call for a cohort."""
        return draw(self.seed, purpose, *address)

    def public_uniform(self, purpose: str, *address: object) -> Array:
        """Return numbers in [0, 1) at a public address."""
        return uniform(self.seed, purpose, *address)

    def public_rng(self, purpose: str, *address: object) -> np.random.Generator:
        """Return the generator that starts at a public address."""
        return rng(self.seed, purpose, *address)

    def private(self, purpose: str, *address: object) -> Source:
        """Return where a private draw comes from in this world."""
        return Source(None if self.secret else (self.seed, purpose, *address))
