"""Is it worth federating? The same job trained alone by every party, federated, and pooled in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Protocol

import numpy as np

from atoll.combine import Sum
from atoll.core.given import number
from atoll.core.method import Evaluation, State
from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data.checks import check_federated
from atoll.data.errors import BadData
from atoll.data.federated import Federated, Silos
from atoll.data.table import standard
from atoll.job.assemble import assemble
from atoll.job.job import Channel, Job, check_job
from atoll.journal import rounds_done
from atoll.methods.schedule import rate
from atoll.methods.trained import Alone
from atoll.metrics import spread
from atoll.models.model import Fit, Model
from atoll.programs.evaluate import Evaluate
from atoll.runtimes.run import simulate
from atoll.select import All, Always
from atoll.stages import Average

FEW = 30  # parties that are listed one by one
MOST = 200  # parties that are trained alone; of more, an even sample


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of the three ways. `all`: on everybody's test data; `own`: on a party's own, or on its own mix of labels.

    Scores are values of the job's first metric; of a job without any they are accuracies, or r² for numbers. `better`
    says which of them are good. Arrays have an entry for each party that was trained alone.
    """

    metric: str
    better: str
    passes: int
    parties: Array
    names: tuple[str, ...]
    alone_all: Array
    alone_own: Array
    federated_all: float
    federated_own: Array
    pooled_all: float
    pooled_own: Array

    @property
    def better_off(self) -> int:
        """How many parties the federated model serves better than their own, on their own data."""
        return int((self._sign * (self.federated_own - self.alone_own) > 0).sum())

    @property
    def _sign(self) -> float:
        return -1.0 if self.better == "low" else 1.0

    @property
    def _share(self) -> bool:
        """Whether scores are shares of 1, whose differences are told in points."""
        every = (*self.alone_all, *self.alone_own, *self.federated_own, *self.pooled_own)
        return self.better == "high" and max(*every, self.federated_all, self.pooled_all) <= 1

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        alone = float(self.alone_all.mean())
        gain_all = self._sign * (self.federated_all - alone)
        gain_own = self._sign * float((self.federated_own - self.alone_own).mean())
        gap = self._sign * (self.pooled_all - alone)
        enough = 0.01 if self._share else 0.01 * abs(alone)
        closed = (
            f", which closes {100 * gain_all / gap:.0f} % of the gap to pooling all data" if gap > enough / 2 else ""
        )
        who = f"{self.better_off} of {len(self.parties)} parties are better off on their own data"
        if gain_own >= enough:
            return (
                f"Yes, federate: the shared model beats training alone by {self._amount(gain_all)} on everybody's data "
                f"and by {self._amount(gain_own)} on a party's own{closed}; {who}."
            )
        if gain_all >= enough:
            return (
                f"Only if parties must predict what they have not seen themselves: the shared model gains "
                f"{self._amount(gain_all)} on everybody's data{closed}, but {self._change(gain_own)} on a party's own; "
                f"{who}. Otherwise train alone, or personalise the shared model."
            )
        return (
            f"No: the shared model {self._change(gain_all)} on everybody's data and {self._change(gain_own)} on a "
            f"party's own; {who}."
        )

    def _change(self, gain: float) -> str:
        return f"gains only {self._amount(gain)}" if gain > 0 else f"loses {self._amount(-gain)}"

    def _amount(self, gain: float) -> str:
        return f"{100 * gain:.1f} points" if self._share else f"{gain:.3g} in {self.metric}"

    @property
    def ways(self) -> dict[str, dict[str, float]]:
        """The scores of each way."""
        return {
            "alone": {**self._spread(self.alone_all, "all"), **self._spread(self.alone_own, "local")},
            "federated": {"all": self.federated_all, **self._spread(self.federated_own, "local")},
            "pooled": {"all": self.pooled_all, **self._spread(self.pooled_own, "local")},
        }

    def _spread(self, scores: Array, name: str) -> dict[str, float]:
        of = spread(scores, self.better) or dict.fromkeys(("mean", "worst10", "best"), float(scores[0]))
        return {name: of["mean"], f"{name}.worst10": of["worst10"], f"{name}.best": of["best"]}

    def figures(self) -> dict[str, object]:
        """Return the table's numbers."""
        return {
            "metric": self.metric,
            "better": self.better,
            "passes": self.passes,
            **self.ways,
            "better_off": self.better_off,
            "parties": len(self.parties),
            "verdict": self.verdict,
            "each": [
                {"party": name, "alone": float(a), "federated": float(f), "pooled": float(p)}
                for name, a, f, p in zip(self.names, self.alone_own, self.federated_own, self.pooled_own, strict=True)
            ],
        }

    def __str__(self) -> str:
        rows = [f"{self.metric:<12}{'on everybodys data':>20}{'on local: mean':>20}{'worst 10 %':>12}{'best':>8}"]
        for way, row in self.ways.items():
            local = f"{row['local']:>20.3f}{row['local.worst10']:>12.3f}{row['local.best']:>8.3f}"
            rows.append(f"{way:<12}{row['all']:>20.3f}{local}")
        rows.append(f"each way sees every sample {self.passes} times")
        if len(self.parties) <= FEW:
            rows += ["", f"{'on local data of':<20}{'alone':>8}{'federated':>11}{'pooled':>8}{'gain':>8}"]
            each = zip(self.names, self.alone_own, self.federated_own, self.pooled_own, strict=True)
            for name, alone, federated, pooled in each:
                scores = f"{alone:>8.3f}{federated:>11.3f}{pooled:>8.3f}"
                rows.append(f"party {name:<14.14}{scores}{federated - alone:>+8.3f}")
        return "\n".join([*rows, "", self.verdict]).replace("everybodys", "everybody's")


def compare(
    job: Job, data: Federated, seed: int = 0, *, progress: Callable[[str], None] = lambda _: None
) -> Comparison:
    """Train alone, federated and pooled, with equally many passes over the samples; score all on the same data.

    A learning-rate schedule covers the passes of training alone and pooled as it covers the rounds. Columns that were
    standardised by the statistics of all rows are standardised by a party's own where it trains alone.

    Args:
        job: what to train.
        data: the parties' data, with test data.
        seed: of all randomness. Default 0.
        progress: is called with a sentence before each step. Default: nothing is printed.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("wine").split(3, test=0.2, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), rounds=2)
        >>> found = atoll.compare(job, data)
        >>> sorted(found.ways)
        ['alone', 'federated', 'pooled']
    """
    check_job(job)
    check_federated(data)
    seed = number("seed", seed, least=None)
    if data.test is None:
        raise BadData("compare needs a central test set to score all three on: load data that has one, or hold one out")
    made = assemble(job, data, seed)
    method, evaluation = made.job.method, made.program.evaluation
    if evaluation is None:
        raise Mismatch(
            f"compare needs something to score by, and {type(method).__name__} measures nothing: add metrics"
        )
    metric = _headline(job, evaluation)
    progress("federated")
    run = simulate(job, data, seed)
    rounds = rounds_done(run.facts) or job.rounds
    share = job.select.expected(len(data)) / len(data)
    passes = max(1, round(rounds * share * method.passes))
    chosen = np.unique(np.linspace(0, len(data) - 1, min(MOST, len(data))).astype(int))
    score = _Scores(Evaluate(method, "test", tuple(job.metrics)), evaluation, metric, data)
    alone: Alone | None = method.training()
    if alone is None:
        ways: _Ways = _Federations(replace(made.job, rounds=max(1, round(rounds * share))), data, seed)
    else:
        rates = [rate(alone.lr, e * rounds // passes) for e in range(passes)]
        ways = _Fits(alone.model, replace(alone.how, epochs=passes), rates, run.state, seed)
    alone_all, alone_own = np.empty(len(chosen)), np.empty(len(chosen))
    for k, state in enumerate(ways.each(_by_own(data, chosen), chosen)):
        if k % 10 == 0:
            progress(f"alone: {k} of {len(chosen)} parties")
        alone_all[k], (alone_own[k],) = score.as_seen_by(int(chosen[k]))(state, chosen[k : k + 1])
    progress("pooled")
    (pooled,) = ways.each(_chosen(data.train, range(len(data))), np.arange(1))
    (fed_all, fed_own), (pool_all, pool_own) = score(run.state, chosen), score(pooled, chosen)
    names, better = tuple(data.name(int(k)) for k in chosen), evaluation.better[metric]
    return Comparison(metric, better, passes, chosen, names, alone_all, alone_own, fed_all, fed_own, pool_all, pool_own)


def _headline(job: Job, evaluation: Evaluation) -> str:
    """Name what to score by: the job's first metric, else accuracy or r², else what the method measures first."""
    names = [*(m.name for m in job.metrics), *("accuracy", "r2"), *evaluation.better]
    return next(name for name in names if name in evaluation.better)


class _Ways(Protocol):
    """How to train with the samples of single parties."""

    def each(self, silos: Silos, who: Array) -> Iterator[State]: ...


@dataclass(frozen=True, eq=False)
class _Fits:
    """Fit the method's model, a pass for each rate."""

    model: Model
    how: Fit
    rates: Sequence[float]
    like: State  # whose parameters are replaced
    seed: int

    def each(self, silos: Silos, who: Array) -> Iterator[State]:
        w0, step = self.model.init(self.seed), max(self.model.group_size, 1)
        for some in (who[a : a + step] for a in range(0, len(who), step)):
            group = Group(some, silos, some, World(self.seed), 0)
            yield from ({**self.like, "params": w} for w in _fit(self.model, w0, group, self.how, self.rates))


@dataclass(frozen=True, eq=False)
class _Federations:
    """Run the job among one party, which is always there and hides nothing from itself."""

    job: Job
    data: Federated
    seed: int

    def each(self, silos: Silos, who: Array) -> Iterator[State]:
        phases = self.job.method.phases.items()
        plain = {name: Channel([Average()] if phase.mean else [], Sum()) for name, phase in phases}
        job = replace(self.job, select=All(), channel=Channel(phases=plain), stop=(), availability=Always())
        for k in who.tolist():
            one = _chosen(silos, [k])
            yield simulate(job, replace(self.data, train=one, local=None, test=None, parties=()), self.seed).state


def _fit(model: Model, w: Array, group: Group, how: Fit, rates: Sequence[float]) -> Array:
    """Train every party of a group from w, a pass for each rate; where the rate changes, optimisers start anew."""
    many, e = w, 0
    for lr, same in groupby(rates):
        how = replace(how, epochs=len(list(same)))
        if e == 0:
            many = model.fit(w, group, how, lr)  # all at once, since they start from the same
        else:  # from here on each has a model of its own to start from
            here = [replace(group.only(k), t=e) for k in range(len(group))]
            many = np.concatenate([model.fit(many[k], one, how, lr) for k, one in enumerate(here)])
        e += how.epochs
    return many


def _rescaled(x: Array, columns: tuple[int, ...], like: Array) -> Array:
    """Standardise these columns by the statistics that they have in the rows `like`."""
    if not columns:
        return x
    some, after = list(columns), np.array(x)
    after[:, some] = standard(like[:, some])(after[:, some])
    return after


def _by_own(data: Federated, who: Array) -> Silos:
    """Return the samples of these parties, standardised by each one's own statistics; of the others nothing."""
    train = data.train
    if not data.scaled:
        return train
    parts = {int(k): train[int(k)] for k in who}
    sizes = [len(parts[k][1]) if k in parts else 0 for k in range(len(train))]
    x = np.concatenate([_rescaled(x, data.scaled, x) for x, _ in parts.values()])
    return Silos(x, np.concatenate([y for _, y in parts.values()]), np.concatenate([[0], np.cumsum(sizes)]))


def _chosen(silos: Silos, who: Iterable[int]) -> Silos:
    """Return the samples of these as those of one party."""
    rows = np.concatenate([np.arange(len(silos.y))[silos.rows(k)] for k in who])
    return Silos(silos.x, silos.y, np.array([0, len(rows)]), rows)


@dataclass(frozen=True, eq=False)
class _Scores:
    """Score what was trained on everybody's test data and on what some parties have of their own.

    That is their own test data. Of who has none it is the central test set weighed by the party's shares of labels:
    what it would see, without taking a sample from its training; for sequences and numbers it is everybody's.
    """

    evaluate: Evaluate
    evaluation: Evaluation
    metric: str
    data: Federated

    def as_seen_by(self, k: int) -> _Scores:
        """Score a model of columns that party k standardised by its own statistics: it sees the test rows so, too."""
        if not self.data.scaled:
            return self

        def seen(silos: Silos | None) -> Silos | None:
            return (
                None if silos is None else replace(silos, x=_rescaled(silos.x, self.data.scaled, self.data.train[k][0]))
            )

        return replace(self, data=replace(self.data, test=seen(self.data.test), local=seen(self.data.local)))

    def __call__(self, state: State, parties: Array) -> tuple[float, Array]:
        test, count = self._by_label
        sums = self._sums(state, test, np.arange(len(test)), "test")
        whole = self._value({name: leaf.sum(axis=0) for name, leaf in sums.items()})
        scores = np.full(len(parties), whole)
        for j, k in enumerate(parties.tolist() if len(test) > 1 else ()):
            weight = self._shares(k, count) * count.sum() / np.maximum(count, 1)
            scores[j] = self._value({name: np.tensordot(weight, leaf, 1) for name, leaf in sums.items()})
        local = self._own(state, parties)
        return whole, np.where(np.isfinite(local), local, scores)

    @cached_property
    def _by_label(self) -> tuple[Silos, Array]:
        """Cut the central test set by labels, and count each; what has no one label to weigh by stays whole."""
        assert self.data.test is not None
        whole = _chosen(self.data.test, range(len(self.data.test)))
        assert whole.index is not None
        y = whole.y[whole.index]
        if self.data.kind != "classes" or y.ndim > 1:
            return whole, np.array([len(y)])
        count = np.bincount(y, minlength=self.data.classes)
        ends = np.concatenate([[0], np.cumsum(count)])
        return Silos(whole.x, whole.y, ends, whole.index[np.argsort(y, kind="stable")]), count

    def _sums(self, state: State, silos: Silos, who: Array, split: str) -> Mapping[str, Array]:
        body = {"broadcast": self.evaluate.method.broadcast(state)}
        sums, _ = self.evaluate(body, Group(who, silos, who, World(), 0, split))
        return {name: np.asarray(sums[name]) for name in self.evaluation.sums}

    def _value(self, sums: Mapping[str, Array]) -> float:
        return float(self.evaluation.values(sums)[self.metric])

    def _shares(self, k: int, count: Array) -> Array:
        mine = np.bincount(self.data.train[k][1], minlength=self.data.classes) * (count > 0)
        return mine / max(mine.sum(), 1)

    def _own(self, state: State, parties: Array) -> Array:
        """Score each on its own test data; who has none has no score, nor has r² of numbers that are all the same."""
        local, scores = self.data.local, np.full(len(parties), np.nan)
        there = np.flatnonzero(local.sizes[parties]) if local is not None else parties[:0]
        if local is None or not len(there):
            return scores
        sums = self._sums(state, local, parties[there], "local")
        for j, k in enumerate(there.tolist()):
            if sums["n"][j] > 0 and not (self.metric == "r2" and np.ptp(local[int(parties[k])][1]) == 0):
                scores[k] = self._value({name: leaf[j] for name, leaf in sums.items()})
        return scores
