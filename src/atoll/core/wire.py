"""What travels and what is known about it. A stage reads the wire it stands on and states what it adds.

Vectors of a cohort are rows of an (n, d) matrix; a stage never knows a party, a model or a method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from atoll.core.effects import Cohort, Replies
from atoll.core.tree import Array, Tree


class Mismatch(ValueError):
    """Two parts of a pipeline that cannot stand next to each other; the sentence holds the remedy."""


@dataclass(frozen=True)
class Event:
    """One addition of noise: what the accountant needs to know of it."""

    name: str
    multiplier: float


@dataclass(frozen=True)
class Wire:
    """What is proven about one party's vector at one point of the pipeline."""

    size: int  # numbers in the vector
    cohort: int  # parties expected in one sum
    dtype: str = "float32"
    l2: float | None = None  # no vector is longer than this
    ring: int | None = None  # integers modulo this, if it is not real
    noise: tuple[Event, ...] = ()
    mean: bool = False  # decoding the sum gives a mean
    weighted: bool = False  # the last number is the vector's weight
    bits: float = 32.0  # that one number takes on its way

    @property
    def bytes(self) -> int:
        """Bytes of one vector on its way."""
        return int(-(-self.size * self.bits // 8))


class About(NamedTuple):
    """What an encoder may know of the rows beside their numbers: weights, and the address of their randomness."""

    weight: Array
    seed: int
    t: int
    me: Array


class Codec(NamedTuple):
    """`encode` on the parties (rows, own memory); `decode` on the server (the sum, how many, the address)."""

    encode: Callable[[Array, Mapping[str, Array], About], tuple[Array, Mapping[str, Array]]]
    decode: Callable[[Array, int, tuple[object, ...]], Array]


def as_is(x: Array, memory: Mapping[str, Array], about: About) -> tuple[Array, Mapping[str, Array]]:
    """Encode nothing."""
    return x, memory


def as_was(x: Array, n: int, path: tuple[object, ...]) -> Array:
    """Decode nothing."""
    return x


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

    `seen` says in words what the server, the other parties and the network get to see of one party's vector.
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
            wire, codec = part(wire)
            codecs.append(codec)

        def encode(x: Array, memory: Mapping[str, Array], about: About) -> tuple[Array, Mapping[str, Array]]:
            kept: dict[str, Array] = {}
            for i, codec in enumerate(codecs):
                mine = {name[len(f"{i}.") :]: leaf for name, leaf in memory.items() if name.startswith(f"{i}.")}
                x, mine_after = codec.encode(x, mine, about)
                kept |= {f"{i}.{name}": leaf for name, leaf in mine_after.items()}
            return x, kept

        def decode(x: Array, n: int, path: tuple[object, ...]) -> Array:
            for i, codec in reversed(list(enumerate(codecs))):
                x = codec.decode(x, n, (*path, i))
            return x

        return wire, Codec(encode, decode)

    return stage
