"""Is it worth federating? The same job trained alone by every party, federated, and pooled in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from atoll.core.party import Group
from atoll.core.tree import Array
from atoll.core.wire import Mismatch
from atoll.data.errors import BadData
from atoll.data.federated import Federated, Silos
from atoll.job import Job, bind
from atoll.methods.schedule import rate
from atoll.models.model import Fit, Model
from atoll.models.optimiser import Optimiser
from atoll.run import simulate

FEW = 30  # parties that are listed one by one
MOST = 200  # parties that are trained alone; of more, an even sample


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of the three ways. `all`: on everybody's test data; `own`: on a party's own, or on its own mix of labels.

    Scores are accuracies, or r² for numbers. Arrays have an entry for each party that was trained alone.
    """

    metric: str
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
        return int((self.federated_own > self.alone_own).sum())

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        gain_all = self.federated_all - float(self.alone_all.mean())
        gain_own = float((self.federated_own - self.alone_own).mean())
        gap = self.pooled_all - float(self.alone_all.mean())
        closed = f", which closes {100 * gain_all / gap:.0f} % of the gap to pooling all data" if gap > 0.005 else ""
        who = f"{self.better_off} of {len(self.parties)} parties are better off on their own data"
        if gain_own >= 0.01:
            return (
                f"Yes, federate: the shared model beats training alone by {_points(gain_all)} on everybody's data and "
                f"by {_points(gain_own)} on a party's own{closed}; {who}."
            )
        if gain_all >= 0.01:
            return (
                f"Only if parties must judge what they have not seen themselves: the shared model gains "
                f"{_points(gain_all)} on everybody's data{closed}, but {_change(gain_own)} on a party's own; "
                f"{who}. Otherwise train alone, or personalise the shared model."
            )
        return (
            f"No: the shared model {_change(gain_all)} on everybody's data and {_change(gain_own)} on a party's own; "
            f"{who}."
        )

    def figures(self) -> dict[str, Any]:
        """Return the table's numbers."""
        return {
            "metric": self.metric,
            "passes": self.passes,
            "alone": {**_spread(self.alone_all, "all"), **_spread(self.alone_own, "own")},
            "federated": {"all": self.federated_all, **_spread(self.federated_own, "own")},
            "pooled": {"all": self.pooled_all, **_spread(self.pooled_own, "own")},
            "better_off": self.better_off,
            "parties": len(self.parties),
            "verdict": self.verdict,
            "each": [
                {"party": name, "alone": float(a), "federated": float(f), "pooled": float(p)}
                for name, a, f, p in zip(self.names, self.alone_own, self.federated_own, self.pooled_own, strict=True)
            ],
        }

    def __str__(self) -> str:
        f = self.figures()
        rows = [f"{self.metric:<12}{'on everybodys data':>20}{'on own: mean':>20}{'worst 10 %':>12}{'best':>8}"]
        for way in ("alone", "federated", "pooled"):
            row = f[way]
            own = f"{row['own']:>20.3f}{row['own.worst10']:>12.3f}{row['own.best']:>8.3f}"
            rows.append(f"{way:<12}{row['all']:>20.3f}{own}")
        rows.append(f"each way sees every sample {self.passes} times")
        if len(self.parties) <= FEW:
            rows += ["", f"{'on own data of':<20}{'alone':>8}{'federated':>11}{'pooled':>8}{'gain':>8}"]
            for one in f["each"]:
                scores = f"{one['alone']:>8.3f}{one['federated']:>11.3f}{one['pooled']:>8.3f}"
                rows.append(f"party {one['party']:<14.14}{scores}{one['federated'] - one['alone']:>+8.3f}")
        return "\n".join([*rows, "", self.verdict]).replace("everybodys", "everybody's")


def _change(x: float) -> str:
    return f"gains only {_points(x)}" if x > 0 else f"loses {_points(-x)}"


def _points(x: float) -> str:
    return f"{100 * x:.1f} points"


def _spread(scores: Array, name: str) -> dict[str, float]:
    worst = np.sort(scores)[: max(1, len(scores) // 10)]
    return {name: float(scores.mean()), f"{name}.worst10": float(worst.mean()), f"{name}.best": float(scores.max())}


def compare(
    job: Job, data: Federated, seed: int = 0, *, progress: Callable[[str], None] = lambda _: None
) -> Comparison:
    """Train alone, federated and pooled, each seeing every sample equally often; score all three on the same test.

    A learning rate that changes over rounds changes as far over the passes of training alone and pooled.
    """
    if data.test is None:
        raise BadData("compare needs a central test set to score all three on: load data that has one, or hold one out")
    method: Any = bind(job.method, data)
    model: Model | None = getattr(method, "model", None)
    if model is None:
        raise Mismatch(f"compare needs a method with a model; {type(method).__name__} has none")
    progress("federated")
    run = simulate(job, data, seed)
    rounds = max((f["round"] for f in run.facts if f["what"] == "round"), default=job.rounds)
    share = job.select.expected(len(data)) / len(data)
    passes = max(1, round(rounds * share * getattr(method, "epochs", 1)))
    how = Fit(passes, getattr(method, "batch", None), getattr(method, "optimiser", Optimiser()))
    rates = [rate(method.lr, e * rounds // passes) for e in range(passes)]
    chosen = np.unique(np.linspace(0, len(data) - 1, min(MOST, len(data))).astype(int))
    score = _Scores(model, data)
    w0 = model.init(seed)
    alone_all, alone_own = np.empty(len(chosen)), np.empty(len(chosen))
    for a in range(0, len(chosen), max(model.width, 1)):
        progress(f"alone: {a} of {len(chosen)} parties")
        some = chosen[a : a + max(model.width, 1)]
        for k, w in enumerate(_fit(model, w0, Group(some, data.train, some, seed, 0), how, rates)):
            alone_all[a + k], (alone_own[a + k],) = score(w, some[k : k + 1])
    progress("pooled")
    whole = _pool(data.train)
    pooled = _fit(model, w0, Group(np.arange(1), whole, np.arange(1), seed, 0), how, rates)[0]
    (fed_all, fed_own), (pool_all, pool_own) = score(run.vector, chosen), score(pooled, chosen)
    metric = "accuracy" if data.kind == "classes" else "r2"
    names = tuple(data.name(int(k)) for k in chosen)
    return Comparison(metric, passes, chosen, names, alone_all, alone_own, fed_all, fed_own, pool_all, pool_own)


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


def _pool(silos: Silos) -> Silos:
    rows = np.concatenate([np.arange(len(silos.y))[silos.rows(k)] for k in range(len(silos))])
    return Silos(silos.x, silos.y, np.array([0, len(rows)]), rows)


@dataclass(frozen=True, eq=False)
class _Scores:
    """Score a model on everybody's test data and on what some parties have of their own.

    That is their own test data. Of who has none it is the central test set weighed by the party's shares of labels:
    what it would see, without taking a sample from its training; for sequences and numbers it is everybody's.
    """

    model: Model
    data: Federated

    def __call__(self, w: Array, parties: Array) -> tuple[float, Array]:
        test = self.data.test
        assert test is not None
        rows = np.concatenate([np.arange(len(test.y))[test.rows(k)] for k in range(len(test))])
        x, y = test.x[rows], test.y[rows]
        _, right, n = self.model.engine.losses(self.model, w, x, y)
        if self.data.kind == "real":
            whole = 1 - right.sum() / max(((y - y.mean()) ** 2).sum(), 1e-12)
        else:
            whole = right.sum() / max(n.sum(), 1)
        scores = np.full(len(parties), float(whole))
        if self.data.kind == "classes" and y.ndim == 1:  # sequences have no one label to weigh by
            count = np.bincount(y, minlength=self.data.classes)
            by_class = np.bincount(y, weights=right, minlength=self.data.classes) / np.maximum(count, 1)
            scores = np.stack([self._share(int(k), count) for k in parties]) @ by_class
        own = self._own(w, parties)
        return float(whole), np.where(np.isfinite(own), own, scores)

    def _share(self, k: int, count: Array) -> Array:
        mine = np.bincount(self.data.train[k][1], minlength=self.data.classes) * (count > 0)
        return mine / max(mine.sum(), 1)

    def _own(self, w: Array, parties: Array) -> Array:
        """Score each on its own test data; who has none, or only numbers that are all the same, has no score."""
        own, scores = self.data.own, np.full(len(parties), np.nan)
        there = np.flatnonzero(own.sizes[parties]) if own is not None else parties[:0]
        if own is None or not len(there):
            return scores
        sums = self.model.evaluate(w, Group(parties[there], own, parties[there], 0, 0))
        n = sums["n"]
        if "squares" in sums:
            spread = sums["yy"] - sums["y"] ** 2 / n
            spread[spread <= 1e-9 * sums["yy"]] = np.nan
            scores[there] = 1 - sums["squares"] / spread
        else:
            scores[there] = sums["correct"] / np.where(n > 0, n, np.nan)
        return scores
