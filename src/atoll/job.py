"""A job: what is trained, by whom, through which channel, until when. Assembling one refuses what makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np

from atoll.combine import Buffered, Sum
from atoll.core.effects import Cohort
from atoll.core.method import Contribute, Judge, Method, Plan, Select, Stop, codec_of
from atoll.core.party import Handler
from atoll.core.tree import Array
from atoll.core.wire import Codec, Combine, Mismatch, Stage, Wire
from atoll.data.federated import Federated, Silos
from atoll.privacy.ledger import Ledger, ledger_of
from atoll.select import Always, Over, Uniform
from atoll.select.available import Availability, latency, lost
from atoll.stages import Weigh


@dataclass(frozen=True)
class Channel:
    """What happens to vectors on their way (stages, in order) and how they become one (combine)."""

    stages: Sequence[Stage] = (Weigh(),)
    combine: Combine = Sum()

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))


@dataclass(frozen=True)
class Job:
    """A federation, described. Nothing runs until a runtime is given it: `atoll.simulate(job, data)`."""

    method: Method
    select: Select = Uniform(0.1)
    channel: Channel = Channel()
    rounds: int = 100
    stop: Sequence[Stop] = ()
    every: int = 1  # rounds between two evaluations
    availability: Availability = Always()
    name: str = "job"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        for name in ("rounds", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: at least 1")


@dataclass(frozen=True)
class Assembled:
    """A job bound to data: the plan of the program, the handlers of the parties, what is proven of the wire."""

    job: Job
    plan: Plan
    handlers: Mapping[str, Handler]
    rooms: Mapping[str, Silos]
    wire: Wire
    codec: Codec = field(repr=False)
    ledger: Ledger | None = None


@dataclass(frozen=True)
class World:
    """A job's availability as the simulator asks for it."""

    availability: Availability
    seed: int

    def lost(self, who: Cohort, t: int) -> Array:
        return lost(who, self.availability.drop, t, self.seed)

    def latency(self, who: Cohort, t: int) -> Array:
        return latency(who, t, self.seed)


def bind(method: Any, data: Federated) -> Any:
    """Give a method's model the shape of the data; a method without a model stays as it is."""
    model = getattr(method, "model", None)
    if model is None or not is_dataclass(method):
        return method
    shape = tuple(int(n) for n in data.train.x.shape[1:])
    outputs = data.classes if data.kind == "classes" else int(np.prod(data.train.y.shape[1:], dtype=int))
    try:
        bound = model.bind(shape, outputs)
        loss = bound.net.loss
    except ValueError as error:
        raise Mismatch(str(error)) from None
    if loss != "own" and (loss == "squared") != (data.kind == "real"):
        has, remedy = ("numbers", "linear") if data.kind == "real" else ("classes", "softmax")
        raise Mismatch(f"the data's labels are {has}, which the loss '{loss}' is not for: use a model such as {remedy}")
    return replace(method, model=bound)  # type: ignore[type-var] # checked above


def assemble(job: Job, data: Federated, seed: int = 0) -> Assembled:
    """Put a job and data together; raise Mismatch where two parts cannot stand next to each other."""
    method: Method = bind(job.method, data)
    dtype = _dtype(method)
    cohort = job.select.expected(len(data))
    start = Wire(method.schema.size, cohort, dtype, shapes=_shapes(method), floor=cohort if _whole(job.select) else 0)
    stages = tuple(job.channel.stages)
    wire, codec = codec_of(stages, start)
    if method.mean and not wire.mean:
        name = type(method).__name__
        raise Mismatch(f"{name} averages, but the channel only adds up: put Weigh() or Average() into its stages")
    if not method.mean and wire.mean:
        name = type(method).__name__
        raise Mismatch(f"{name} needs the sum of its statistics: take Weigh() or Average() out of the stages")
    combine = job.channel.combine
    if isinstance(combine, Buffered):
        _check_buffered(job)
    gather = combine(wire)
    rooms = {"train": data.train} | {n: r for n, r in (("own", data.own), ("test", data.test)) if r is not None}
    looks = tuple(room for room in ("test", "own") if room in rooms)
    if len(data.train.y):  # a party has no rows of others and cannot know what their server measures; it asks no stop
        check_stops(job.stop, looks)
    ledger, stops = _ledger(job, method, wire, data.train.sizes)
    handlers: dict[str, Handler] = {"contribute": Contribute(method, stages, start)}
    handlers |= {f"judge.{room}": Judge(method, room) for room in looks}
    plan = Plan(
        method, job.select, gather, codec, wire, job.rounds, seed, data.train.sizes, _online(job, data, seed),
        stops, job.every, looks, len(data.test) if data.test is not None else 0,
        combine.bytes(wire) if hasattr(combine, "bytes") else wire.bytes, ledger.spent if ledger else None,
    )  # fmt: skip
    return Assembled(replace(job, method=method), plan, handlers, rooms, wire, codec, ledger)


def check_stops(stops: Sequence[Any], rooms: Sequence[str]) -> None:
    """Refuse a stop that waits for a metric of a room ("test", "own") in which nothing is evaluated."""
    for metric in (stop.metric for stop in stops if hasattr(stop, "metric")):
        if metric.partition(".")[0] not in rooms:
            known = " and ".join(f"{room}.…" for room in rooms)
            has = f"this run measures {known}" if rooms else "this run has no test data"
            raise Mismatch(
                f"stop: nothing measures '{metric}', for {has}: hold some data out (`holdout` for test.…, `test` for "
                "own.…), or leave this stop out"
            )


def _check_buffered(job: Job) -> None:
    if isinstance(job.select, Over):
        raise Mismatch("Over() and Buffered() both say how many answers are enough: select without Over()")
    if getattr(job.method, "by", None) == "weights":
        raise Mismatch(
            "Buffered() adds changes of models of several rounds, and by='weights' sends models: leave it out"
        )


def _ledger(job: Job, method: Method, wire: Wire, sizes: Array) -> tuple[Ledger | None, list[Stop]]:
    """Open the accounts of a job, and tell its budgets of them."""
    budgets: list[Any] = [stop for stop in job.stop if hasattr(stop, "bound")]
    deltas = {unit: b.delta for b in budgets for unit in (b.unit or "party", b.unit or "example") if b.delta}
    steady = type(job.availability) is Always
    ledger = ledger_of(wire, job.select, method, sizes, steady=steady, rounds=job.rounds, deltas=deltas)
    return ledger, [stop.bound(ledger) if stop in budgets else stop for stop in job.stop]  # type: ignore[attr-defined]


def _dtype(method: Any) -> str:
    model = getattr(method, "model", None)
    return "float64" if model is None else model.dtype


def _whole(select: Any) -> bool:
    """Say whether a sum may be opened only if everybody who was asked is in it."""
    return bool(getattr(select, "whole", False))


def _shapes(method: Any) -> tuple[tuple[int, ...], ...]:
    """Say which arrays stand in a contribution: the model's own, where it is a change of the model."""
    model = getattr(method, "model", None)
    schema = model.schema if model is not None and model.size == method.schema.size else method.schema
    return tuple(shape for _, shape in schema.leaves)


def _online(job: Job, data: Federated, seed: int) -> Callable[[int], Cohort | None]:
    return lambda t: job.availability.online(t, len(data), seed)
