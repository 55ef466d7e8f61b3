"""What travels and what is known about it. A stage reads the wire it stands on and states what it adds.

Vectors of a cohort are rows of an (n, d) matrix; a stage never knows a party, a model or a method.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from atoll.core.effects import Cohort, Replies
from atoll.core.errors import Mismatch as Mismatch  # noqa: PLC0414 - part of what a stage needs
from atoll.core.given import Part
from atoll.core.question import Encoding, Layout, Question
from atoll.core.tree import EMPTY, Array, Tree
from atoll.core.world import World


@dataclass(frozen=True)
class Event:
    """One addition of noise.

    Args:
        where: "local" or "distributed" (by parties: the noise of each is enough, or that of all together), "central" or
            "tree" (by the server, the latter spread over `every` rounds).
        multiplier: scale of the noise over the bound of one vector.
        every: for "tree", number of rounds of one tree. Default 0.
        corrupt: for "distributed", number of parties that are assumed to leave their noise out of a sum. Default 0.
    """

    where: Literal["local", "distributed", "central", "tree"]
    multiplier: float
    every: int = 0
    corrupt: int = 0


@dataclass(frozen=True)
class Row:
    """How one party's vector is laid out.

    Args:
        size: numbers in the vector.
        dtype: type of each number. Default "float32".
        shapes: shapes of the arrays that stand in the vector, while they still do. Default: none.
        aux: numbers at the end, before a weight, that are not the vector's own. Default 0.
        encoding: how a vector is written. Default: as the plain numbers.
    """

    size: int
    dtype: str = "float32"
    shapes: tuple[tuple[int, ...], ...] = ()
    aux: int = 0
    encoding: Encoding | None = None

    @property
    def bytes(self) -> int:
        """Bytes of one vector on its way."""
        return self.encoding.bytes(self.size) if self.encoding else self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class RingBounds:
    """Bounds of integers of a ring.

    Args:
        modulus: the ring is the integers modulo this.
        value_bound: the largest magnitude of a number of one vector.
        sum_bound: the largest magnitude of a number of a cohort's sum, with its noise.
    """

    modulus: int
    value_bound: float
    sum_bound: float


@dataclass(frozen=True)
class Total:
    """What is known of the sum.

    Args:
        cohort: parties expected in one sum.
        min_cohort: a sum of fewer vectors is not opened: too little noise, or no whole batch. Default 0.
        divisor: what decoding divides the sum by, so that it gives a mean: the number of "answers", the number
            "expected", or the sum of "weights", which are then the last numbers of the vectors. Default: it stays a
            sum.
        hides_count: whether the divisor does not tell who came. Default false.
    """

    cohort: int
    min_cohort: int = 0
    divisor: Literal["answers", "expected", "weights"] | None = None
    hides_count: bool = False

    @property
    def max_cohort(self) -> int:
        """Parties that can come where this many are expected, however they are drawn."""
        return ceil(self.cohort + 10 * sqrt(self.cohort) + 10)


@dataclass(frozen=True)
class Wire:
    """What is proven about one party's vector at one point of the pipeline, and about the sum of a cohort.

    Args:
        row: the layout of a vector.
        total: what is known of the sum.
        l2: the largest L2 norm of a vector. Default: no norm bound.
        ring: bounds of integers of a ring. Default: the numbers are real.
        noise: what was added so far. Default: none.
    """

    row: Row
    total: Total
    l2: float | None = None
    ring: RingBounds | None = None
    noise: tuple[Event, ...] = ()

    @classmethod
    def of(
        cls, size: int, cohort: int, dtype: str = "float32", *, shapes: tuple[tuple[int, ...], ...] = (),
        divisor: Literal["answers", "expected", "weights"] | None = None,
    ) -> Self:  # fmt: skip
        """Return what is known before the first stage: so many numbers of so many parties."""
        return cls(Row(size, dtype, shapes), Total(cohort, divisor=divisor))

    def of_size(self, size: int, l2: float | None) -> Self:
        """Return the wire of vectors with another number of numbers, which are no longer the arrays they were."""
        return replace(self, row=replace(self.row, size=size, shapes=()), l2=l2)

    @property
    def mean(self) -> bool:
        """Whether decoding the sum gives a mean."""
        return self.total.divisor is not None

    @property
    def weighted(self) -> bool:
        """Whether the last number is the vector's weight."""
        return self.total.divisor == "weights"

    @property
    def tail(self) -> int:
        """How many numbers at the end no stage may touch: what stands beside the vector, and its weight."""
        return self.row.aux + self.weighted

    def noised(self, *where: str) -> bool:
        """Whether noise was added in one of these places."""
        return any(event.where in where for event in self.noise)

    def need_real(self, name: str) -> None:
        """Refuse integers."""
        if self.ring is not None:
            raise Mismatch(f"{name} needs real vectors: put it before the stage that makes integers of them")

    def need_ring(self, name: str) -> RingBounds:
        """Return the ring; refuse real numbers."""
        if self.ring is None:
            where = "before the noise" if self.noised("local") else "after Clip()"
            raise Mismatch(f"{name} adds integers of a ring: put Ring() {where} into the stages")
        return self.ring

    def need_unwritten(self, name: str, why: str) -> None:
        """Refuse vectors that a stage before wrote in few bytes; `why` says what would go wrong."""
        if self.row.encoding is not None:
            raise Mismatch(f"{name} after a stage that compresses would {why}: put {name} first")

    def need_bound(self, name: str, what: str) -> float:
        """Return the bound of one vector; refuse one that has none. `what` says what depends on it."""
        if self.l2 is None:
            remedy = "use Weigh(max_weight=…) after Clip(norm), or Average()" if self.weighted else _CLIP
            lost = ", which noise of each party's own took away" if self.noised("local") else ""
            raise Mismatch(f"{name} takes {what} from the bound of one vector, and this one has none{lost}: {remedy}")
        return self.l2


_CLIP = "put Clip(norm) before it"


class EncodeContext(NamedTuple):
    """What an encoder may know of the rows beside their numbers.

    Args:
        weight: the weight of each row.
        world: where the run takes place; all randomness comes from it.
        t: the number of the ask, from 0.
        me: the number of the party of each row.
        stage_state: what the server told of its own memory, as `Codec.stage_state` names it. Default: nothing.
        loss: training loss of each party. Default: not known.
    """

    weight: Array
    world: World
    t: int
    me: Array
    stage_state: Mapping[str, Any] = EMPTY
    loss: Array | None = None


class DecodeContext(NamedTuple):
    """What a decoder may know of the sum beside its numbers.

    Args:
        n: number of vectors in the sum.
        world: where the run takes place; all randomness comes from it.
        t: the number of the ask, from 0.
    """

    n: int
    world: World
    t: int


StageMemory = Mapping[str, Any]


class Coded(NamedTuple):
    """What comes out of a stage.

    Args:
        x: the rows, or the sum.
        memory: what is remembered until the next round. Default: nothing.
        facts: values to record that nobody remembers. Default: none.
    """

    x: Array
    memory: StageMemory = EMPTY
    facts: Mapping[str, Any] = EMPTY


class Codec(NamedTuple):
    """What a stage does to vectors.

    Args:
        encode: function from (rows, own memory, context) to `Coded`, at the parties.
        decode: function from (sum, the server's memory, context) to `Coded`, on the server.
        start: the server's memory before the first round. Default: nothing.
        stage_state: leaves of the server's memory that parties receive with the question. Default: none.
        remembers: whether encoding leaves memory at the party. Default false.
    """

    encode: Callable[[Array, StageMemory, EncodeContext], Coded]
    decode: Callable[[Array, StageMemory, DecodeContext], Coded]
    start: StageMemory = EMPTY
    stage_state: tuple[str, ...] = ()
    remembers: bool = False


def as_is(x: Array, memory: StageMemory, context: EncodeContext) -> Coded:
    """Encode nothing: return the rows and the memory as they are.

    Args:
        x: the rows.
        memory: the party's memory.
        context: what an encoder may know.
    """
    return Coded(x, memory)


def as_was(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
    """Decode nothing: return the sum and the memory as they are.

    Args:
        x: the sum.
        memory: the server's memory.
        context: what a decoder may know.
    """
    return Coded(x, memory)


class Stage(Part, Protocol):
    """A function of the wire: read what it proves, state what is added, give the codec that does it."""

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]: ...


class Gathered(NamedTuple):
    """What a combine made of the answers of a cohort.

    Args:
        vector: the sum of the vectors, or what a rule made to stand for it.
        replies: the answers beside the vectors.
    """

    vector: Array
    replies: Replies


class Member(NamedTuple):
    """A party by its name and the key it signs with.

    Args:
        name: its name.
        key: its public key, as bytes.
    """

    name: str
    key: bytes


class Setting(NamedTuple):
    """What a conversation is part of: a phase of an agreed job, in a world, among parties known by name and key.

    Args:
        phase: the name of the phase.
        world: where the run takes place.
        agreement: the hash of the job. Default: none.
        members: function that returns all who may come, by their numbers; a server reads them from its store, a party
            from its own roster. Default: nobody.
    """

    phase: str
    world: World
    agreement: bytes = b""
    members: Callable[[], Mapping[int, Member]] = dict


Gather = Callable[[Cohort, Tree, int | None], Coroutine[Any, Any, Gathered]]  # (whom, question, goal)
Train = Callable[[Tree], Array]  # a question to this party's vector, as it is sent


class ClientSide(Protocol):
    """A party's side of a conversation, round after round. It raises a sentence where anything is wrong."""

    def answer(self, step: str, body: Tree, train: Train) -> Tree: ...


class Combine(Part, Protocol):
    """How a cohort's vectors become one: a conversation, decided by the wire it stands on.

    The first four members are its own; all others have a default that fits a sum of what parties send.
    """

    def check(self, wire: Wire) -> None:
        """Refuse a wire that this cannot combine."""
        ...

    def gather(self, wire: Wire, setting: Setting) -> Gather: ...

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        """Declare what may be asked; `body` is the question that asks for a vector, `parties` may come at most."""
        ...

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        """Say in words what the server, the other parties and the network get to see of one party's vector."""
        ...

    def client(self, wire: Wire, setting: Setting, session: Any) -> ClientSide | None:
        """Return a party's side where there is more to it than to answer with the vector."""
        return None

    def message_bytes(self, wire: Wire, holder: int | None = None) -> Mapping[str, tuple[int, int]]:
        """Return how long the messages of a conversation are, asked and answered, by question.

        `holder` says which of the holders it is that is asked; None: somebody else.
        """
        return EMPTY

    def min_cohort(self, wire: Wire) -> int:
        """Return how many parties must be there for a round to be worth beginning."""
        return max(wire.total.min_cohort, 1)

    def holders(self, parties: Sequence[int]) -> tuple[int, ...]:
        """Say who of these must be there for anything to be opened."""
        return ()

    def answers(self, wire: Wire) -> int:
        """Return how many answers a round takes."""
        return wire.total.cohort

    @property
    def holds_rows(self) -> bool:
        """Whether the server needs all vectors of a round at once."""
        return False

    @property
    def hidden(self) -> Literal["", "semi-honest", "sparse", "malicious"]:
        """Which server reads the sum only, the strongest last; "": no server does."""
        return ""

    @property
    def robust(self) -> bool:
        """Whether one vector, however long, moves the result no further than the others lie apart."""
        return False

    @property
    def staleness(self) -> int | None:
        """How many rounds old an answer may be; None where a round waits for its own."""
        return None


class Rule(Part, Protocol):
    """One vector for the rows of an (n, d) matrix, on the scale of a single row."""

    def __call__(self, rows: Array) -> Array: ...

    @property
    def min_rows(self) -> int:
        """The fewest rows it can do with."""
        return 1


def chain(*stages: Stage) -> Stage:
    """Make one stage of many: encode left to right, decode right to left.

    Args:
        *stages: the stages, in order.
    """

    def stage(wire: Wire) -> tuple[Wire, Codec]:
        codecs = []
        for part in stages:
            if wire.noised("central", "tree"):
                raise Mismatch(
                    f"{part} stands after the noise of the server, which fits what came before: put it first"
                )
            made = part(wire)
            if not (isinstance(made, tuple) and [type(one) for one in made] == [Wire, Codec]):
                raise Mismatch(f"{part} is no stage: it gives {made!r} of a wire, and a stage gives (wire, codec)")
            wire, codec = made
            codecs.append(codec)

        def encode(x: Array, memory: StageMemory, context: EncodeContext) -> Coded:
            kept, facts = dict[str, Any](), dict[str, Any]()
            for i, codec in enumerate(codecs):
                state = context.stage_state
                mine = context._replace(stage_state=_of(i, state)) if state else context
                x, after, noted = codec.encode(x, _of(i, memory), mine)
                kept |= _named(i, after)
                facts |= noted
            return Coded(x, kept, facts)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            kept, facts = dict[str, Any](), dict[str, Any]()
            for i, codec in reversed(list(enumerate(codecs))):
                x, after, noted = codec.decode(x, _of(i, memory), context)
                kept |= _named(i, after)
                facts |= noted
            return Coded(x, kept, facts)

        start = {name: leaf for i, codec in enumerate(codecs) for name, leaf in _named(i, codec.start).items()}
        state = tuple(f"{i}.{name}" for i, codec in enumerate(codecs) for name in codec.stage_state)
        return wire, Codec(encode, decode, start, state, any(codec.remembers for codec in codecs))

    return stage


def _of(i: int, memory: StageMemory) -> StageMemory:
    """Pick the leaves of the i-th stage."""
    return {name[len(f"{i}.") :]: leaf for name, leaf in memory.items() if name.startswith(f"{i}.")}


def _named(i: int, memory: StageMemory) -> dict[str, Any]:
    return {f"{i}.{name}": leaf for name, leaf in memory.items()}
