"""What a horizontal method is: what to tell, what to compute on private data, what to do with the combined tree.

Nothing here runs a round; `atoll.programs.federate` does. A method inherits `Method` for its default bodies only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from atoll.core.effects import Cohort, Replies
from atoll.core.errors import AtollError
from atoll.core.given import Part
from atoll.core.party import NOTHING, Group, Handler, Memory, Remembered
from atoll.core.question import Layout
from atoll.core.tree import EMPTY, Array, Schema, Tree, flatten, leaves, length
from atoll.core.wire import Codec, EncodeContext, Mismatch, Stage, Wire, chain
from atoll.core.world import World

State = Mapping[str, Any]


class Diverged(AtollError, ArithmeticError):
    """The model is no longer finite. The last finite model is kept.

    Example:
        >>> import atoll
        >>> issubclass(atoll.Diverged, atoll.AtollError)
        True
    """

    code = "diverged"


class DataSummary(NamedTuple):
    """What is known of data before a round: how many samples, what one looks like, what its label is.

    Args:
        samples: number of training samples.
        sample: the layout of one sample: leaves "x" and "y".
        kind: what the labels are, "classes" or "real". Default "classes".
        classes: number of classes; 0 where labels are real. Default 0.
        names: names of the columns of x, where a role tells them. Default: none.
        ids: a hash of all ids of the rows, salted with the job. Default: rows have no ids.
        parties: number of parties that hold the data; more than one only of a role that many play. Default 1.
    """

    samples: int
    sample: Layout
    kind: str = "classes"
    classes: int = 0
    names: tuple[str, ...] = ()
    ids: bytes = b""
    parties: int = 1


class Contribution(NamedTuple):
    """What the parties of a group give: a tree and a weight each. Every leaf has a leading axis of parties.

    Args:
        vector: a tree with the leaves of the phase's schema.
        weight: one weight for each party, such as its number of samples.
        memory: what stays at the party and comes back with its next question. Default: nothing.
        reports: numbers told beside the vector, as the method's `reports` declares them. Default: none.
        loss: mean training loss of each party, where the method has `train_loss`. Default: none.
    """

    vector: Tree
    weight: Array
    memory: Memory = NOTHING
    reports: Mapping[str, Array] = EMPTY
    loss: Array | None = None


class Phase(NamedTuple):
    """One kind of exchange of a method: the layout of a contribution, and what `server_update` is given of it.

    Args:
        schema: names and shapes of the leaves of one party's contribution.
        mean: whether `server_update` receives the mean of the contributions or their sum. Default true.
        dtype: type of the numbers. Default "float64".
        arrays: the arrays in the vector, where a leaf of the schema holds several. Default: the schema's own.
        broadcast: the layout of what parties receive. Default: that of the method's first broadcast.
        constant: the layout of what parties prepare from. Default: that of the method's first constant.
        same_cohort: whether those are asked who answered the phase before. Default false: the select decides.
    """

    schema: Schema
    mean: bool = True
    dtype: str = "float64"
    arrays: Schema | None = None
    broadcast: Layout | None = None
    constant: Layout | None = None
    same_cohort: bool = False


class RoundInfo(NamedTuple):
    """What `server_update` may know of a round beside the combined tree.

    Args:
        t: the number of the ask, from 0.
        answered: number of parties in the tree.
        expected: number of answers that the select counts on.
        population: number of all parties of the federation.
        parties: numbers of the parties that answered, sorted.
    """

    t: int
    answered: int
    expected: int
    population: int
    parties: Cohort


class Evaluation(NamedTuple):
    """What an evaluation gives: the sums of one party, and metrics of added sums.

    Args:
        sums: the shape of each sum of one party by its name, "n" (the number of samples) among them.
        values: function from added sums to the metrics by name.
        better: for each metric whether "high" or "low" is good. Parties are compared by the first one.
        each: function from sums with a leading axis of parties to the first metric of each party.
        counts: sums that count samples: none is below zero or above "n". Default "n" and "correct".
    """

    sums: Mapping[str, tuple[int, ...]]
    values: Callable[[Mapping[str, Array]], Mapping[str, float]]
    better: Mapping[str, Literal["high", "low"]]
    each: Callable[[Mapping[str, Array]], Array]
    counts: tuple[str, ...] = ("n", "correct")


class Population(NamedTuple):
    """Who could take part in a round. Its length is the number of parties that are online.

    Args:
        sizes: number of training samples of every party of the federation.
        online: numbers of the parties that are online now, sorted. Default: all.
    """

    sizes: Array
    online: Cohort | None = None

    def __len__(self) -> int:
        return len(self.sizes) if self.online is None else len(self.online)


class Method(Part, Protocol):
    """A horizontal method. The first five members are its own; all others have a default that most methods keep."""

    @property
    def phases(self) -> Mapping[str, Phase]:
        """The exchanges of the method by their names, the first one first."""
        ...

    def init(self, world: World, population: Population) -> State: ...
    def broadcast(self, state: State) -> Tree: ...
    def client_update(self, broadcast: Tree, group: Group) -> Contribution: ...
    def server_update(self, state: State, tree: Tree, info: RoundInfo) -> State:
        """Return the state after a step; all its numbers must be finite, or the run stops."""
        ...

    def bind(self, summary: DataSummary) -> Self:
        """Take what the data decides, such as the shape of a model; refuse data that the method is not for."""
        return self

    def phase(self, state: State) -> str:
        """Name the phase that comes next."""
        return next(iter(self.phases))

    def complete(self, state: State) -> bool:
        """Say whether a round is over; a round may take several phases."""
        return True

    @property
    def cycle(self) -> tuple[str, ...]:
        """The phases that a round asks, in order, of whom the select picks; empty where the state decides."""
        free = type(self).complete is not Method.complete or type(self).missing is not Method.missing
        return () if free or len(self.phases) > 1 else tuple(self.phases)

    def missing(self, state: State) -> Cohort | None:
        """Say who must answer the next ask; None: the select decides. Who is offline is asked another time."""
        return None

    def constant(self, state: State) -> Tree:
        """Return what parties are told and prepare from; it changes seldom."""
        return EMPTY

    def prepare(self, constant: Tree, group: Group) -> Sequence[Any]:
        """Work out once, for each party, what `client_update` finds in `group.cache`. Pure."""
        return ()

    def evaluate(self, broadcast: Tree, group: Group) -> Mapping[str, Array]:
        """Return sums over each party's samples, as `evaluation` declares them."""
        return EMPTY

    def scores(self, broadcast: Tree, group: Group) -> Array:
        """Return what the model says of every sample of the group, party after party, for metrics of the user."""
        raise Mismatch(f"{type(self).__name__} has no scores: leave the job's metrics out")

    def predict(self, state: State, x: Array) -> Array:
        """Return what the trained model says of rows."""
        raise Mismatch(f"{type(self).__name__} does not predict rows")

    def parameters(self, state: State) -> Tree:
        """Return what is trained, as a tree of named arrays: what is saved as the model."""
        return {"params": state["params"]} if "params" in state else dict(leaves(state))

    def update_norm(self, before: State, after: State) -> float | None:
        """Return how far a step moved what is trained."""
        return length(np.asarray(after["params"]) - np.asarray(before["params"])) if "params" in before else None

    def example_steps(self, samples: int) -> tuple[float, int]:
        """Return the sampling rate and the steps of one round of a party with so many samples, for example_dp."""
        return 1.0, 1

    def training(self) -> Any:
        """Return how a party would train alone (`atoll.methods.trained.Alone`), or None where that means nothing."""
        return None

    @property
    def group_size(self) -> int:
        """How many parties one call of `client_update` likes to answer for."""
        return 1

    @property
    def passes(self) -> int:
        """How often one answer goes over a party's samples."""
        return 1

    @property
    def changes(self) -> bool:
        """Whether contributions are changes of what was broadcast, which may be added up over rounds."""
        return True

    @property
    def remembers(self) -> bool:
        """Whether contributions have memory."""
        return False

    @property
    def reports(self) -> Schema:
        """What is told beside the vector."""
        return Schema(())

    @property
    def train_loss(self) -> bool:
        """Whether contributions have a training loss."""
        return False

    @property
    def padding(self) -> int | None:
        """The label of positions that no metric counts; None where all count."""
        return None

    @property
    def example_dp(self) -> Any:
        """The promise to single examples, if there is one."""
        return None

    @property
    def evaluation(self) -> Evaluation | None:
        return None


@dataclass(frozen=True)
class Contribute(Handler):
    """The one handler behind every phase of every horizontal method: work, flatten, encode.

    Args:
        method: the method, bound to the data.
        phase: the name of the phase.
        stages: the stages that encode the vector.
        wire: the wire before the first stage.
        split: the samples that are used. Default "train".
        max_norm: a limit of the party's own: vectors are scaled down to this L2 norm first. Default: no limit.
    """

    method: Method
    phase: str
    stages: tuple[Stage, ...]
    wire: Wire
    split: str = "train"
    max_norm: float | None = None

    @property
    def group_size(self) -> int:
        return self.method.group_size

    @cached_property
    def _how(self) -> tuple[Phase, Codec]:
        return self.method.phases[self.phase], codec_of(self.stages, self.wire)[1]

    def __reduce__(self) -> tuple[type[Contribute], tuple[Any, ...]]:
        # The codec does not travel.
        return Contribute, (self.method, self.phase, self.stages, self.wire, self.split, self.max_norm)

    def cache_key(self, body: Tree) -> bytes | None:
        return digest(body["constant"]) if "constant" in body else None

    def prepare(self, body: Tree, group: Group) -> Sequence[Any]:
        return self.method.prepare(body["constant"], group)

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        mine = group.memory.part("method/")
        given = self.method.client_update(body["broadcast"], seeing(group, mine, self.phase))
        phase, codec = self._how
        rows = flatten(given.vector, phase.schema)
        if rows.dtype != phase.dtype:
            raise Mismatch(f"{type(self.method).__name__} gives numbers of {rows.dtype}, its phase says {phase.dtype}")
        if self.max_norm is not None:
            rows = shortened(rows, self.max_norm)
        # A sum is finite only if every number is: one pass, no mask.
        finite = np.isfinite(rows.sum(axis=1))
        weight, state = np.asarray(given.weight, rows.dtype), body.get("stage_state", {})
        context = EncodeContext(weight, group.world, group.t, group.me, state, given.loss)
        before = group.memory.part(f"stage/{self.phase}/").leaves
        rows, after, facts = codec.encode(rows, before, context)
        memory = {f"method/{name}": leaf for name, leaf in given.memory.items()}
        memory |= {f"stage/{self.phase}/{name}": leaf for name, leaf in after.items()}
        if memory and (len(self.method.phases) > 1 or not given.memory):  # what others remember stays
            memory = {**group.memory.but(memory), **memory}
        told = {f"report/{name}": np.asarray(leaf, np.float64) for name, leaf in given.reports.items()}
        reply = {"vector": rows, "finite": finite, **told}
        watched = {f"fact/{name}": leaf for name, leaf in facts.items()} if group.world.watched else {}
        return {**reply, **watched}, memory


def seeing(group: Group, memory: Remembered, phase: str) -> Group:
    """Show a method its own memory only.

    Args:
        group: the parties.
        memory: the memory that the method sees.
        phase: the name of the phase.
    """
    return Group(group.me, group.samples, group.at, group.world, group.t, group.split, phase, memory, group.cache)


def shortened(rows: Array, norm: float) -> Array:
    """Scale rows down to at most this L2 norm.

    Args:
        rows: an (n, d) matrix.
        norm: the largest L2 norm, above 0.
    """
    squares = np.square(rows.astype(np.float64, copy=False)).sum(axis=1)
    scale = np.minimum(1.0, norm / np.sqrt(np.maximum(squares, 1e-300)))
    return rows * scale[:, None].astype(rows.dtype)


def digest(tree: Tree) -> bytes:
    """Hash a tree of arrays and plain values by paths, types, shapes and contents.

    Args:
        tree: the tree.
    """
    found = sha256()
    for path, leaf in leaves(tree):
        array = np.ascontiguousarray(leaf)
        found.update(f"{path} {array.dtype.str} {array.shape} ".encode())
        found.update(array.tobytes())
    return found.digest()


@lru_cache(maxsize=16)
def codec_of(stages: tuple[Stage, ...], wire: Wire) -> tuple[Wire, Codec]:
    """Run the wire through the stages; parts travel between processes, the codec they make does not.

    Args:
        stages: the stages, in order.
        wire: the wire before the first stage.
    """
    return chain(*stages)(wire)


@dataclass(frozen=True)
class History:
    """What a run has shown so far: selects and stops decide on it.

    Args:
        t: number of asks so far. Default 0.
        rounds: number of rounds that are over. Default 0.
        elapsed: seconds that the run has taken, those before a resume included. Default 0.
        update_norm: L2 norm of the change of the model in the last round. Default: not known.
        curves: (round, value) of every evaluation, by metric such as "test.accuracy". Default: none.
        better: for each metric, without its split, whether "high" or "low" is good. Default: high.
    """

    t: int = 0
    rounds: int = 0
    elapsed: float = 0.0
    update_norm: float | None = None
    curves: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    better: Mapping[str, str] = field(default_factory=dict)

    def sign(self, metric: str) -> float:
        """Return 1 where a high value of the metric is good, else −1."""
        return -1.0 if self.better.get(metric.partition(".")[2]) == "low" else 1.0

    def best(self, metric: str) -> tuple[int, float] | None:
        """Return (round, value) of the best value so far."""
        return max(self.curves.get(metric, ()), key=lambda point: self.sign(metric) * point[1], default=None)


class Pick(NamedTuple):
    """Whom to ask, and how many answers are enough.

    Args:
        cohort: numbers of the parties to ask, sorted.
        goal: the number of answers that ends the round. Default: all.
    """

    cohort: Cohort
    goal: int | None = None


class Sampling(NamedTuple):
    """What a select promises of who takes part; the accountant claims nothing beyond it.

    Args:
        kind: "poisson" (each party independently with probability `rate`), "fixed" (a number of parties, uniformly),
            "none" (all parties) or "other". Default "other".
        rate: the sampling rate, above 0 and at most 1. Default: not stated.
        epoch: in so many rounds no party takes part twice. Default: not stated.
        whole: whether a sum is opened with all parties of a batch or not at all. Default false.
        varies: whether cohorts differ in size by chance. Default false.
    """

    kind: Literal["poisson", "fixed", "none", "other"] = "other"
    rate: float | None = None
    epoch: int | None = None
    whole: bool = False
    varies: bool = False


class Select(Part, Protocol):
    """Who takes part in a round. What it remembers is in the checkpoint."""

    def expected(self, parties: int) -> int:
        """Return how many answers a round counts on, of so many parties."""
        ...

    def pick(self, t: int, population: Population, history: History, memory: Tree, world: World) -> Pick: ...

    def asked(self, parties: int) -> int:
        """Return how many are asked for that."""
        return self.expected(parties)

    def sampling(self, parties: int) -> Sampling:
        return Sampling()

    def batches(self, parties: int, world: World) -> Array | None:
        """Return the batches that cohorts are made of, a row of parties each; None where they are not."""
        return None

    @property
    def exact(self) -> bool:
        """Whether nobody but those it picks may be asked."""
        return False

    def start(self, population: Population) -> Tree:
        """Return what it remembers before the first round."""
        return EMPTY

    def learn(self, memory: Tree, pick: Pick, replies: Replies) -> Tree:
        """Return what it remembers after a round; of a hidden sum `replies` shows nothing single."""
        return memory


class Stop(Part, Protocol):
    """A reason to end, or None. `metric` names what it waits for, where that is one metric."""

    def __call__(self, history: History) -> str | None: ...

    @property
    def metric(self) -> str | None:
        return None

    @property
    def deltas(self) -> Mapping[str, float | None]:
        """The units whose ε it counts, each with the δ it asks for; None: the customary one."""
        return EMPTY

    def bound(self, ledger: Any) -> Stop:
        """Return the stop that knows what a round spends."""
        return self
