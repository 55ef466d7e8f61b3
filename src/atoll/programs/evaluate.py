"""Evaluation: sums over samples at the parties or the server, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import NamedTuple

import numpy as np

from atoll.core.effects import Replies
from atoll.core.errors import AtollError
from atoll.core.method import Evaluation, Method, codec_of, seeing
from atoll.core.party import NOTHING, Group, Handler, Memory, Remembered
from atoll.core.question import Layout, Leaf, Question, Range
from atoll.core.tree import Array, Schema, Tree, flatten
from atoll.core.wire import EncodeContext, Stage, Wire
from atoll.metrics import Metric, better, layouts, spread, totals, values
from atoll.stages.noise import add_noise

LOCAL = "evaluate/local"  # the question for a party's own sums
HIDDEN_LOCAL = "evaluate.local"  # the phase in which a hidden sum adds them
MAX_COUNT = 1e12  # of an evaluation's sums that count something
MAX_LOSS = 1e3  # mean of a sum that counts nothing, where a loss is that of classes: e^-1000 is no probability any more
EXAMPLE = 10.0  # most that one example adds to a sum that counts nothing, where noise hides it


class Disclosure(NamedTuple):
    """How a party tells sums over its own test data: with noise of `multiplier` times what one example can change, and
    in multiples of `step`; 0: without.
    """

    step: int = 0
    multiplier: float = 0.0


AS_THEY_ARE = Disclosure()


@dataclass(frozen=True, eq=False)
class ExampleRows:
    """Single rows of samples, each as if it were of a party of its own."""

    x: Array
    y: Array
    offsets: Array
    index: Array


@dataclass(frozen=True)
class Evaluate(Handler):
    """Evaluate what is broadcast: on a party's own test data, or on the server's. It never writes memory."""

    method: Method
    split: str = "test"
    metrics: tuple[Metric, ...] = ()
    told: Disclosure = AS_THEY_ARE

    @property
    def group_size(self) -> int:
        # Evaluation joins all samples of a group into one batch, so small parties go together.
        return 1 if self.split == "test" else 250

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        step, multiplier = self.told
        sums = self._noised(body, group, multiplier) if multiplier else self._sums(body, group)
        # Rounding never falls as its input grows, so that no count gets above "n".
        return {n: np.round(x / step) * step for n, x in sums.items()} if step else sums, NOTHING

    def _sums(self, body: Tree, group: Group) -> dict[str, Array]:
        mine, model = seeing(group, group.memory.part("method/"), ""), body["broadcast"]
        sums = dict(self.method.evaluate(model, mine))
        if self.metrics:
            real = np.arange(group.rows.shape[1]) < group.size[:, None]
            y, party = group.samples.y[group.rows[real]], np.repeat(np.arange(len(group)), group.size)
            scores = self.method.scores(model, mine)
            sums = {**totals(self.metrics, scores, y, party, len(group), self.method.padding), **sums}
        return {name: np.asarray(leaf, np.float64) for name, leaf in sums.items()}

    def _noised(self, body: Tree, group: Group, multiplier: float) -> dict[str, Array]:
        """Hide single examples. Whatever the model is, one adds at most its bound to each of k sums: in units of these
        bounds it has at most the length √k, which the noise is a multiple of.
        """
        counts = ("n",) if self.method.evaluation is None else self.method.evaluation.counts
        told = []
        for one in map(group.only, range(len(group))):
            rows = max(prod(one.samples.y.shape[1:]), 1)  # an example of a sequence counts once for each position
            each = self._sums(body, _examples(one)) if one.size[0] else self._sums(body, one)
            bounds = {name: rows * (1.0 if name in counts else EXAMPLE) for name in each}
            # What is no number counts as nothing.
            parts = {n: np.nan_to_num(np.clip(x / bounds[n], -1.0, 1.0)).sum(axis=0) for n, x in each.items()}
            flat = np.concatenate([np.ravel(part) for part in parts.values()])
            source = one.world.private("evaluation noise", one.t, int(one.me[0]))
            noisy = add_noise(flat, multiplier * sqrt(len(flat)), source)
            ends = np.cumsum([np.size(part) for part in parts.values()])[:-1]
            shaped = zip(parts.items(), np.split(noisy, ends), strict=True)
            told.append({name: bounds[name] * leaf.reshape(part.shape) for (name, part), leaf in shaped})
        sums = {name: np.stack([one[name] for one in told]) for name in told[0]}
        n = np.maximum(sums["n"], 0.0)
        return {name: np.clip(leaf, 0.0, n) if name in counts else leaf for name, leaf in sums.items()}


def _examples(group: Group) -> Group:
    """Take every example of a party for a party of its own, which remembers the same."""
    rows, memory = group.rows[0, : group.size[0]], group.memory
    n = len(rows)
    again = (
        {name: np.repeat(leaf, n, axis=0) for name, leaf in part.items()} for part in (memory.leaves, memory.present)
    )
    return replace(
        group, me=np.repeat(group.me, n), samples=ExampleRows(group.samples.x, group.samples.y, np.arange(n + 1), rows),
        at=np.arange(n), memory=Remembered(np.repeat(memory.known, n), *again), cache=(),
    )  # fmt: skip


@dataclass(frozen=True)
class EvaluateHidden(Handler):
    """Evaluate on parties' own test data, and give each one's sums as a vector that a hidden sum adds up."""

    plain: Handler
    schema: Schema
    stages: tuple[Stage, ...]
    start: Wire  # as it is before the first stage

    @property
    def split(self) -> str:
        return self.plain.split

    @property
    def group_size(self) -> int:
        return self.plain.group_size

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        rows = flatten(self.plain(body, group)[0], self.schema)
        context = EncodeContext(np.ones(len(group)), group.world, group.t, group.me)
        vectors = codec_of(self.stages, self.start)[1].encode(rows, {}, context).x
        return {"vector": vectors, "finite": np.ones(len(group), bool)}, NOTHING


def schema_of(evaluation: Evaluation) -> Schema:
    """Say how the sums stand in one vector."""
    return Schema(tuple(evaluation.sums.items()))


def evaluation_of(method: Method, metrics: Sequence[Metric], outputs: int) -> Evaluation | None:
    """Join what the method evaluates by itself with the metrics of the job."""
    own = method.evaluation
    if not metrics:
        return own
    sums, directions = layouts(metrics, outputs), better(metrics, outputs)
    if own is None:
        first = next(iter(directions))

        def each(some: Mapping[str, Array]) -> Array:
            parts = [values(metrics, {n: leaf[k] for n, leaf in some.items()})[first] for k in range(len(some["n"]))]
            return np.array(parts)

        return Evaluation(sums, lambda some: values(metrics, some), directions, each)
    both = {**own.better, **directions}
    return own._replace(
        sums={**sums, **own.sums}, values=lambda some: {**own.values(some), **values(metrics, some)}, better=both
    )


def evaluation_question(evaluation: Evaluation, asks: Layout) -> Question:
    """Declare the question for a party's sums over its own test data, as they are."""
    sums = {name: _sum_leaf(name, shape, evaluation.counts) for name, shape in evaluation.sums.items()}
    words = {"server": "how well the model does on this party's own test data, as sums over its samples"}
    return Question(LOCAL, asks, Layout(sums), reveals=words, exposure="plain")


def hidden_questions(steps: Iterable[Question]) -> list[Question]:
    """Declare that what a conversation adds up are sums over own test data: they cost no answer of the training."""
    told = {"evaluation": "sums over this party's own test data, of which the server reads the total over parties only"}
    return [
        step._replace(contributes=False, reveals={**step.reveals, **({} if step.exposure == "nothing" else told)})
        for step in steps
    ]


def _sum_leaf(name: str, shape: tuple[int, ...], counts: Sequence[str]) -> Leaf:
    count = Range(0.0, MAX_COUNT) if name in counts else None
    return Leaf("float64", (1, *shape), range=count, within="n" if name in counts and name != "n" else None)


class Unevaluated(AtollError, ValueError):
    """A hidden sum of scores that says nothing: nobody is in it, or more than there is."""

    code = "unevaluated"


def total_values(total: Array, evaluation: Evaluation, declared: Array | None = None) -> dict[str, float]:
    """Turn the total of all parties' sums into metrics. Who of them lies cannot be seen; that somebody does, can.

    `declared` are the samples that each of them said it has, where all did.
    """
    slots = schema_of(evaluation).slots()
    sums = {name: total[start:stop].reshape(shape) for name, start, stop, shape in slots}
    if declared is not None and declared.all() and sums["n"] > declared.sum():
        raise Unevaluated(
            f"the parties of this sum count {float(sums['n']):,.0f} test samples, and have declared "
            f"{int(declared.sum()):,} samples in all: one of them lies, or test sets are larger than training sets"
        )
    sums = _within(sums, evaluation)
    return {name: float(value) for name, value in evaluation.values(sums).items()}


def summarise(
    replies: Replies, evaluation: Evaluation, declared: Array | None = None
) -> tuple[dict[str, float], dict[str, object]]:
    """Turn the parties' sums into metrics, and the first metric's distribution over parties.

    `declared` are the samples that each party said it has; 0 where one said nothing.
    """
    sums = {name: np.asarray(replies.each[name], np.float64) for name in evaluation.sums}
    if declared is not None:
        sums = _within(_capped(sums, declared[replies.parties]), evaluation)
    some = np.flatnonzero(sums["n"] > 0)
    metrics = evaluation.values({name: leaf.sum(axis=0) for name, leaf in sums.items()})
    name = next(iter(evaluation.better))
    parties: dict[str, object] = {"parties": len(some)}
    if len(some) > 1:
        score = evaluation.each({n: leaf[some] for n, leaf in sums.items()})
        parties |= {f"{name}.{which}": value for which, value in spread(score, evaluation.better[name]).items()}
        shown = np.linspace(0, len(score) - 1, min(len(score), 500)).astype(int)
        parties["each"] = [round(float(v), 4) for v in np.sort(score)[shown]]
    return {name: float(value) for name, value in metrics.items()}, parties


def _within(sums: Mapping[str, Array], evaluation: Evaluation) -> dict[str, Array]:
    """Let counts be between nothing and "n", and the loss of classes within what a loss can be."""
    n = np.maximum(sums["n"], 0.0)
    found = {**sums, **{name: np.clip(sums[name], 0.0, n) for name in evaluation.counts if name in sums}}
    if "correct" in evaluation.sums and "loss" in sums:  # of real targets nobody knows how large it can be
        found["loss"] = np.clip(sums["loss"], -MAX_LOSS * n, MAX_LOSS * n)
    return found


def _capped(sums: Mapping[str, Array], declared: Array) -> dict[str, Array]:
    """Let the sums of no party weigh more than the samples that it declared."""
    n = np.maximum(sums["n"], 1.0)
    share = np.where(declared > 0, np.minimum(1.0, declared / n), 1.0)
    return {name: leaf * share.reshape(-1, *[1] * (leaf.ndim - 1)) for name, leaf in sums.items()}
