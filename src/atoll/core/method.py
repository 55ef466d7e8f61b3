"""One question a round: what a horizontal method is, and the only loop of the horizontal world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from atoll.core.effects import Cohort, Replies, ask, keep, note
from atoll.core.party import Group, Memory
from atoll.core.tree import Array, Schema, Tree, flatten, leaves, length, unflatten
from atoll.core.wire import About, Codec, Gather, Heard, Stage, Wire, chain, facts_of

State = Mapping[str, Any]


class Diverged(ArithmeticError):
    """The model is no longer finite; the last good one was kept."""


class Contribution(NamedTuple):
    """What parties give: a tree laid out as the method's schema says, a weight each, and facts to note."""

    vector: Tree
    weight: Array


class Method(Protocol):
    """What a horizontal method knows: what to tell, what to compute on data, what to do with the combined tree.

    `schema` is the layout of one party's contribution. `mean` says whether merge expects the mean of contributions
    (True) or their sum. `width` is how many parties one call of `task` likes to answer for.
    """

    @property
    def schema(self) -> Schema: ...
    @property
    def mean(self) -> bool: ...
    @property
    def width(self) -> int: ...
    def init(self, seed: int) -> State: ...
    def share(self, state: State) -> Tree: ...
    def task(self, share: Tree, group: Group) -> Contribution: ...
    def merge(self, state: State, tree: Tree) -> State: ...
    def evaluate(self, share: Tree, group: Group) -> Tree: ...


@dataclass(frozen=True)
class Contribute:
    """The one handler behind every horizontal method: work, flatten, encode."""

    method: Method
    stages: tuple[Stage, ...]
    wire: Wire  # as it is before the first stage
    room: str = "train"
    watched: bool = True  # in a simulation facts of each party may be noted that no server would see
    seeded: bool = True  # in a simulation noise has an address; elsewhere it comes from the operating system

    @property
    def width(self) -> int:
        return self.method.width

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        vector, weight = self.method.task(body["share"], group)
        rows = flatten(vector, self.method.schema)
        # A sum is finite only if every number is: one pass, no mask.
        finite = np.isfinite(rows.sum(axis=1))
        seed = group.seed if self.seeded else None
        about = About(np.asarray(weight, rows.dtype), seed, group.t, group.me, body.get("told", {}))
        rows, memory = codec_of(self.stages, self.wire)[1].encode(rows, group.memory, about)
        kept, facts = facts_of(memory)
        return {"vector": rows, "finite": finite, **(facts if self.watched else {})}, kept


@lru_cache(maxsize=16)
def codec_of(stages: tuple[Stage, ...], wire: Wire) -> tuple[Wire, Codec]:
    """Run the wire through the stages; parts travel between processes, the codec they make does not."""
    return chain(*stages)(wire)


@dataclass(frozen=True)
class Judge:
    """Evaluate what is shared: on a party's own test data, or on the server's."""

    method: Method
    room: str

    @property
    def width(self) -> int:
        # Evaluation joins all samples of a group into one batch, so small parties go together.
        return 1 if self.room == "test" else 250

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        return self.method.evaluate(body["share"], group), group.memory


@dataclass(frozen=True)
class History:
    """What a run has shown so far; what select and stop decide on."""

    t: int = 0
    elapsed: float = 0.0
    moved: float | None = None
    curves: Mapping[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)
    last: Replies | None = None
    served: Array | None = None  # how often each party was asked, if the select wants to know

    def best(self, metric: str) -> tuple[int, float] | None:
        """Return (round, value) of the best value so far: the lowest loss, else the highest."""
        sign = -1.0 if lower_is_better(metric) else 1.0
        return max(self.curves.get(metric, ()), key=lambda point: sign * point[1], default=None)


def lower_is_better(metric: str) -> bool:
    """Tell losses and errors from scores by their last word."""
    return metric.rsplit(".", 1)[-1] in {"loss", "mse", "mae", "perplexity", "error"}


class Roster(NamedTuple):
    """Who could take part: all parties' sizes, and who is online now (None: everybody)."""

    sizes: Array
    online: Cohort | None = None

    def __len__(self) -> int:
        return len(self.sizes) if self.online is None else len(self.online)


class Pick(NamedTuple):
    """Whom to ask, and how many answers are enough."""

    cohort: Cohort
    enough: int | None = None


class Select(Protocol):
    """Who takes part in a round. `rate` is the probability of a party's taking part, where that is a promise.

    A select with a true `counts` finds in `history.served` how often each party was asked. `sampling`, if it has one,
    says how parties are drawn ("poisson", "fixed", "none"): the accountant claims nothing for any other.
    """

    @property
    def rate(self) -> float | None: ...
    def expected(self, parties: int) -> int: ...
    def pick(self, t: int, roster: Roster, history: History, seed: int) -> Pick: ...


class Stop(Protocol):
    """A reason to end, or None."""

    def __call__(self, history: History) -> str | None: ...


@dataclass(frozen=True)
class Plan:
    """Everything `federate` needs, assembled: method, who, the gather with its codec, when to look, when to end."""

    method: Method
    select: Select
    gather: Gather
    codec: Codec
    wire: Wire
    rounds: int
    seed: int
    sizes: Array
    online: Callable[[int], Cohort | None]
    stop: Sequence[Stop] = ()
    every: int = 1
    rooms: tuple[str, ...] = ()  # where to evaluate: "test", "own"
    parts: int = 0  # of the central test set
    up: int = 0  # bytes that a party sends in a round
    spent: Callable[..., Mapping[str, Any]] | None = None  # what so many rounds spend
    seeded: bool = True  # noise of the server has an address, as only a simulation's may


async def federate(plan: Plan, memory: Tree | None = None) -> State:
    """Ask, combine, merge, look, keep, until a reason to stop. `memory` is what an earlier run kept."""
    if memory:
        state, channel, history = _restore(memory)
    else:
        state, channel = plan.method.init(plan.seed), plan.codec.start
        served = np.zeros(len(plan.sizes), np.int64) if getattr(plan.select, "counts", False) else None
        history = await _look(plan, state, History(served=served))
        await keep(_memory(state, channel, history))
    said = _said(plan, history)
    while not said and history.t < plan.rounds:
        state, channel, history = await _round(plan, state, channel, history)
        if history.t % plan.every == 0 or history.t == plan.rounds:
            history = await _look(plan, state, history)
        await keep(_memory(state, channel, history))
        said = _said(plan, history)
    spent = plan.spent(history.t, last=True) if plan.spent else {}
    await note("end", round=history.t, reason=said or f"all {plan.rounds} rounds done", **spent)
    return state


async def _round(plan: Plan, state: State, channel: Tree, history: History) -> tuple[State, Tree, History]:
    """Ask a cohort and merge what it gives. Where nobody is there, or too few answer, the model stays."""
    method, t = plan.method, history.t
    pick = plan.select.pick(t, Roster(plan.sizes, plan.online(t)), history, plan.seed)
    spent = plan.spent(t + 1) if plan.spent else {}
    if not len(pick.cohort):
        await note("empty", round=t + 1, **spent)
        return state, channel, replace(history, t=t + 1)
    share = method.share(state)
    told = {name: channel[name] for name in plan.codec.tells}
    question = {"share": share, "t": t, **({"told": told} if told else {})}
    vector, replies = await plan.gather(pick.cohort, question, pick.enough)
    before, seen = state["params"], dict[str, Any]()
    if len(replies) >= max(plan.wire.floor, 1):
        combined, after = plan.codec.decode(vector, channel, Heard(len(replies), plan.seed if plan.seeded else None, t))
        channel, seen = facts_of(after)
        _check(combined, t, replies)
        state = method.merge(state, unflatten(combined, method.schema))
        _check(np.asarray(state["params"]), t)
    moved = length(np.asarray(state["params"] - before))
    await note("round", round=t + 1, **_facts(plan, share, pick, replies), **seen, **spent, moved=moved)
    elapsed, served = replies.facts.get("elapsed", history.elapsed), history.served
    if served is not None:
        served = served + np.bincount(pick.cohort, minlength=len(served))
    return state, channel, replace(history, t=t + 1, moved=moved, elapsed=elapsed, last=replies, served=served)


def _said(plan: Plan, history: History) -> str | None:
    return next((s for s in (stop(history) for stop in plan.stop) if s), None)


def _facts(plan: Plan, share: Tree, pick: Pick, replies: Replies) -> dict[str, Any]:
    down = sum(np.asarray(leaf).nbytes for _, leaf in leaves(share))
    said = {k: v for k, v in replies.facts.items() if k != "elapsed"}
    each = {k: float(np.mean(v)) for k, v in replies.each.items() if k not in ("vector", "finite") and len(v)}
    short = {"needed": plan.wire.floor} if len(replies) < plan.wire.floor else {}
    return {
        "asked": len(pick.cohort),
        "answered": len(replies),
        "bytes_up": plan.up * said.get("answered", len(replies)),
        "bytes_down": down * said.get("asked", len(pick.cohort)),
        **each,
        **short,
        **said,
    }


def _check(numbers: Array, t: int, sent: Replies | None = None) -> None:
    if np.isfinite(numbers).all():
        return
    bad = sent.parties[~sent.each["finite"]].tolist() if sent is not None and "finite" in sent.each else []
    named = f"party {', '.join(map(str, bad[:5]))}{' and others' if len(bad) > 5 else ''}" if bad else "the sum"
    whose, rate = (f"{named} sent", "") if sent is not None else ("the step of the server gave", ", method.server.lr=…")
    raise Diverged(
        f"round {t + 1}: {whose} numbers that are not finite, so the run stopped and the model of round {t} was kept; "
        f"use a smaller learning rate (--set method.lr=…{rate}), or clip with a Clip stage"
    )


async def _look(plan: Plan, state: State, history: History) -> History:
    """Evaluate where the plan says and note what was seen."""
    share = plan.method.share(state)
    seen: dict[str, float] = {}
    for room in plan.rooms:
        who = np.arange(plan.parts if room == "test" else len(plan.sizes))
        replies = await ask(who, f"judge.{room}", {"share": share, "t": history.t})
        if not len(replies):
            continue
        metrics, spread = summarise(replies)
        seen |= {f"{room}.{name}": value for name, value in metrics.items()}
        spent = {name: replies.facts[name] for name in ("seconds", "compile", "died") if name in replies.facts}
        await note("look", round=history.t, room=room, **metrics, **spread, **spent)
    curves = {m: (*history.curves.get(m, ()), (history.t, v)) for m, v in seen.items()}
    return replace(history, curves={**history.curves, **curves})


def summarise(replies: Replies) -> tuple[dict[str, float], dict[str, Any]]:
    """Turn per-party sums (n, loss, correct or squares) into metrics, and the distribution over parties."""
    each = {name: np.asarray(leaf, np.float64) for name, leaf in replies.each.items()}
    n = each["n"]
    some = n > 0
    total = max(n.sum(), 1.0)
    metrics = {"loss": each["loss"].sum() / total}
    name, sign, sums = ("accuracy", 1.0, each["correct"]) if "correct" in each else ("mse", -1.0, each["squares"])
    metrics[name] = sums.sum() / total
    if name == "mse":
        spread = each["yy"].sum() - each["y"].sum() ** 2 / total
        metrics["r2"] = 1.0 - sums.sum() / spread if spread > 0 else 0.0
    score = sign * sums[some] / n[some]
    parties: dict[str, Any] = {"parties": int(some.sum())}
    if len(score) > 1:
        worst = np.sort(score)[: max(1, len(score) // 10)]
        parties[f"{name}.mean"] = float(sign * score.mean())
        parties[f"{name}.worst10"] = float(sign * worst.mean())
        parties[f"{name}.best"] = float(sign * score.max())
        shown = np.linspace(0, len(score) - 1, min(len(score), 500)).astype(int)
        parties["each"] = [round(float(v), 4) for v in np.sort(sign * score)[shown]]
    return {name: float(value) for name, value in metrics.items()}, parties


def _memory(state: State, channel: Tree, history: History) -> Tree:
    curves = {name: np.asarray(curve, np.float64) for name, curve in history.curves.items()}
    some = {"moved": history.moved, "served": history.served, "channel": dict(channel) or None}
    kept = {name: value for name, value in some.items() if value is not None}
    return {"state": state, "t": history.t, "elapsed": history.elapsed, "curves": curves, **kept}


def _restore(memory: Tree) -> tuple[State, Tree, History]:
    curves = {name: tuple((int(t), float(v)) for t, v in curve) for name, curve in memory.get("curves", {}).items()}
    moved = float(memory["moved"]) if "moved" in memory else None
    history = History(int(memory["t"]), float(memory["elapsed"]), moved, curves, served=memory.get("served"))
    return memory["state"], memory.get("channel", {}), history
