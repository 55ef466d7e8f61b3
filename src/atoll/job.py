"""A job: what is trained, by whom, through which channel, until when. Assembling one refuses what makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import numpy as np

from atoll.combine import Sum
from atoll.core.effects import Cohort
from atoll.core.method import Contribute, Judge, Method, Plan, Select, Stop, codec_of
from atoll.core.party import Handler
from atoll.core.tree import Array
from atoll.core.wire import Codec, Combine, Mismatch, Stage, Wire
from atoll.data.federated import Federated, Silos
from atoll.select import Always, Uniform
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
    start = Wire(method.schema.size, job.select.expected(len(data)), dtype, bits=8.0 * np.dtype(dtype).itemsize)
    stages = tuple(job.channel.stages)
    wire, codec = codec_of(stages, start)
    if method.mean and not wire.mean:
        name = type(method).__name__
        raise Mismatch(f"{name} averages, but the channel only adds up: put Weigh() or Average() into its stages")
    if not method.mean and wire.mean:
        name = type(method).__name__
        raise Mismatch(f"{name} needs the sum of its statistics: take Weigh() or Average() out of the stages")
    gather = job.channel.combine(wire)
    rooms = {"train": data.train} | {n: r for n, r in (("own", data.own), ("test", data.test)) if r is not None}
    looks = tuple(room for room in ("test", "own") if room in rooms)
    handlers: dict[str, Handler] = {"contribute": Contribute(method, stages, start)}
    handlers |= {f"judge.{room}": Judge(method, room) for room in looks}
    plan = Plan(
        method, job.select, gather, codec, wire, job.rounds, seed, data.train.sizes, _online(job, data, seed),
        job.stop, job.every, looks, len(data.test) if data.test is not None else 0,
    )  # fmt: skip
    return Assembled(replace(job, method=method), plan, handlers, rooms, wire, codec)


def _dtype(method: Any) -> str:
    model = getattr(method, "model", None)
    return "float64" if model is None else model.dtype


def _online(job: Job, data: Federated, seed: int) -> Callable[[int], Cohort | None]:
    return lambda t: job.availability.online(t, len(data), seed)
