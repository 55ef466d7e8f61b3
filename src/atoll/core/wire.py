"""What travels and what is known about it. A stage reads the wire it stands on and states what it adds.

Vectors of a cohort are rows of an (n, d) matrix; a stage never knows a party, a model or a method.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from math import ceil, sqrt
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Cohort, Replies
from atoll.core.tree import Array, Tree


class Mismatch(ValueError):
    """Two parts of a pipeline that cannot stand next to each other; the sentence holds the remedy."""


@dataclass(frozen=True)
class Event:
    """One addition of noise: "local" or "distributed" (by parties, each enough, or all together), "central" or "tree"
    (by the server, the latter spread over rounds); `multiplier` is its scale over the bound of one vector.
    """

    where: str
    multiplier: float


class Form(Protocol):
    """How one row is written as bytes, and read back to the same bits."""

    def bytes(self, size: int) -> int: ...
    def pack(self, row: Array) -> builtins.bytes: ...
    def unpack(self, packed: builtins.bytes, size: int) -> Array: ...


@dataclass(frozen=True)
class Wire:
    """What is proven about one party's vector at one point of the pipeline."""

    size: int  # numbers in the vector
    cohort: int  # parties expected in one sum
    dtype: str = "float32"
    l2: float | None = None  # no vector is longer than this
    ring: int | None = None  # integers modulo this, if it is not real
    peak: float = 0.0  # no number of a vector goes further from zero in the ring
    span: float = 0.0  # no sum of a cohort, nor its noise, goes further from zero in the ring
    noise: tuple[Event, ...] = ()
    mean: bool = False  # decoding the sum gives a mean
    fixed: bool = False  # and what it is divided by does not tell who came
    weighted: bool = False  # the last number is the vector's weight
    beside: int = 0  # numbers at the end, before a weight, that are not the vector's own
    floor: int = 0  # a sum of fewer vectors is not opened: too little noise, or no whole batch
    tree: int = 0  # rounds over which noise is spread
    shapes: tuple[tuple[int, ...], ...] = ()  # of the arrays that stand in the vector, while they still do
    form: Form | None = None  # how a vector is written, if not as the plain numbers

    @property
    def most(self) -> int:
        """Parties that can come where this many are expected, however they are drawn."""
        return ceil(self.cohort + 10 * sqrt(self.cohort) + 10)

    @property
    def bytes(self) -> int:
        """Bytes of one vector on its way."""
        return self.form.bytes(self.size) if self.form else self.size * np.dtype(self.dtype).itemsize


class About(NamedTuple):
    """What an encoder may know of the rows beside their numbers: weights, the address of their randomness (without a
    seed, outside simulations, it comes from the operating system), and what the server told of its own memory.
    """

    weight: Array
    seed: int | None
    t: int
    me: Array
    told: Mapping[str, Any] = MappingProxyType({})


class Heard(NamedTuple):
    """What a decoder may know of the sum beside its numbers: how many vectors are in it, the address of the round."""

    n: int
    seed: int | None
    t: int


Memory = Mapping[str, Any]


class Codec(NamedTuple):
    """`encode` on the parties: (rows, own memory) to the same. `decode` on the server: (the sum, its memory).

    The server's memory starts as `start`; the leaves named in `tells` go to the parties with the question. A leaf of
    memory called "fact.…" is not remembered but noted.
    """

    encode: Callable[[Array, Memory, About], tuple[Array, Memory]]
    decode: Callable[[Array, Memory, Heard], tuple[Array, Memory]]
    start: Memory = MappingProxyType({})
    tells: tuple[str, ...] = ()


def as_is(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
    """Encode nothing."""
    return x, memory


def as_was(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
    """Decode nothing."""
    return x, memory


def facts_of(memory: Memory) -> tuple[Memory, dict[str, Any]]:
    """Part what is to be remembered from what is to be noted."""
    noted = {name: leaf for name, leaf in memory.items() if "fact." in name}
    kept = {name: leaf for name, leaf in memory.items() if name not in noted}
    return kept, {name.split("fact.")[1]: leaf for name, leaf in noted.items()}


class Stage(Protocol):
    """A function of the wire: read what it proves, state what is added, give the codec that does it."""

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]: ...


class Gathered(NamedTuple):
    """The cohort's vectors as one (their sum, or what a rule made to stand for it), and the answers beside it."""

    vector: Array
    replies: Replies


Question = Tree
Gather = Callable[[Cohort, Question, int | None], Coroutine[Any, Any, Gathered]]


class Combine(Protocol):
    """How a cohort's vectors become one: a conversation, decided by the wire it stands on.

    `seen` says in words what the server, the other parties and the network get to see of one party's vector. Where
    more is sent than the vector there is `bytes(wire)`, what a party sends in a round.
    """

    def seen(self, wire: Wire) -> Mapping[str, str]: ...
    def __call__(self, wire: Wire) -> Gather: ...


class Rule(Protocol):
    """One vector for the rows of an (n, d) matrix, on the scale of a single row."""

    def __call__(self, rows: Array) -> Array: ...


def chain(*stages: Stage) -> Stage:
    """Make one stage of many: encode left to right, decode right to left."""

    def stage(wire: Wire) -> tuple[Wire, Codec]:
        codecs = []
        for part in stages:
            if any(event.where in ("central", "tree") for event in wire.noise):
                raise Mismatch(
                    f"{part} stands after the noise of the server, which fits what came before: put it first"
                )
            wire, codec = part(wire)
            codecs.append(codec)

        def encode(x: Array, memory: Memory, about: About) -> tuple[Array, Memory]:
            kept: dict[str, Any] = {}
            for i, codec in enumerate(codecs):
                mine = about._replace(told=_of(i, about.told)) if about.told else about
                x, after = codec.encode(x, _of(i, memory), mine)
                kept |= _named(i, after)
            return x, kept

        def decode(x: Array, memory: Memory, heard: Heard) -> tuple[Array, Memory]:
            kept: dict[str, Any] = {}
            for i, codec in reversed(list(enumerate(codecs))):
                x, after = codec.decode(x, _of(i, memory), heard)
                kept |= _named(i, after)
            return x, kept

        start = {name: leaf for i, codec in enumerate(codecs) for name, leaf in _named(i, codec.start).items()}
        tells = tuple(f"{i}.{name}" for i, codec in enumerate(codecs) for name in codec.tells)
        return wire, Codec(encode, decode, start, tells)

    return stage


def _of(i: int, memory: Memory) -> Memory:
    """Pick the leaves of the i-th stage."""
    return {name[len(f"{i}.") :]: leaf for name, leaf in memory.items() if name.startswith(f"{i}.")}


def _named(i: int, memory: Memory) -> dict[str, Any]:
    return {f"{i}.{name}": leaf for name, leaf in memory.items()}
