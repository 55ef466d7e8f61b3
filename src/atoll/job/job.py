"""A job: what is trained, by whom, through which channel, until when. Nothing runs until a runtime is given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atoll.combine import Sum
from atoll.core.errors import Mismatch
from atoll.core.given import Part, folder_name, number, part, parts
from atoll.core.method import Method, Select, Stop
from atoll.core.wire import Combine, Stage
from atoll.metrics import Metric
from atoll.select import Always, Uniform
from atoll.select.available import Availability
from atoll.stages import Weigh


@dataclass(frozen=True)
class Channel(Part):
    """Stages and a combine: what happens to the vectors of the parties.

    Args:
        stages: what is done to each vector, in order. Default: Weigh().
        combine: how the vectors of a cohort become one. Default: Sum().
        phases: channels of single phases of a method, by the name of the phase. Default: all phases use this one.

    Example:
        >>> import atoll
        >>> channel = atoll.Channel([atoll.Clip(1.0), atoll.Average()], atoll.Each(atoll.Median()))
        >>> channel.combine
        Each(rule=Median())
    """

    stages: Sequence[Stage] = (Weigh(),)
    combine: Combine = Sum()
    phases: Mapping[str, Channel] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        parts("stages", self.stages, Stage)
        part("combine", self.combine, Combine)
        if not isinstance(self.phases, Mapping):
            raise Mismatch(
                f"phases = {self.phases!r}: channels by the names of phases, {{'gradient': atoll.Channel(…)}}"
            )
        for name, channel in self.phases.items():
            _channel(f"phases[{name!r}]", channel)
        object.__setattr__(self, "stages", tuple(self.stages))

    def of(self, phase: str) -> Channel:
        """Return the channel of a phase."""
        return self.phases.get(phase, self)


@dataclass(frozen=True)
class Job(Part):
    """All parts of a federation. Nothing runs until a runtime gets it: `atoll.simulate(job, data)`.

    Args:
        method: what parties compute and what the server does with it.
        select: which parties take part in a round. Default: a tenth of them, uniformly.
        channel: what happens to the vectors. Default: the mean, weighted by examples.
        rounds: the largest number of rounds, 1 or more. Default 100.
        stop: reasons to end earlier. Default: none.
        eval_every: rounds between two evaluations, 1 or more. Default 1.
        availability: who is online and who does not answer, in a simulation. Default: everybody is.
        name: the first part of the name of the run folder. Default "job".
        metrics: what is measured in addition to what the method measures. Default: nothing.
        train_loss: whether the mean training loss of a round is told where nothing is noised; with noise, add the stage
            TrainLoss(). Default true.
        min_parties: a round with fewer answers does not count and is asked again, 1 or more. Default: 1 between real
            parties; in a simulation a round counts whoever answered.
        required: names of parties, as the server's roster writes them, without whose answers no round counts. In a
            simulation nobody has a name. Default: none.
        extra_answers: answers with noise that a party gives at most beyond those of the rounds, should a round that
            failed be worked out anew. Every ε includes them. Default 0.

    Example:
        >>> import atoll
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(5), rounds=3)
        >>> job.rounds, job.channel.combine
        (3, Sum())
    """

    method: Method
    select: Select = Uniform(0.1)
    channel: Channel = Channel()
    rounds: int = 100
    stop: Sequence[Stop] = ()
    eval_every: int = 1
    availability: Availability = Always()
    name: str = "job"
    metrics: Sequence[Metric] = ()
    train_loss: bool = True
    min_parties: int | None = None
    required: Sequence[str] = ()
    extra_answers: int = 0

    def __post_init__(self) -> None:
        part("method", self.method, Method)
        part("select", self.select, Select)
        _channel("channel", self.channel)
        part("availability", self.availability, Availability)
        folder_name("name", self.name)
        parts("stop", self.stop, Stop)
        parts("metrics", self.metrics, Metric)
        object.__setattr__(self, "rounds", number("rounds", self.rounds))
        object.__setattr__(self, "eval_every", number("eval_every", self.eval_every))
        if self.min_parties is not None:
            object.__setattr__(self, "min_parties", number("min_parties", self.min_parties))
        if isinstance(self.required, str) or not all(isinstance(name, str) and name for name in self.required):
            raise Mismatch(f'required = {self.required!r}: a list of names of parties, as in required = ["north"]')
        object.__setattr__(self, "required", tuple(self.required))
        object.__setattr__(self, "extra_answers", number("extra_answers", self.extra_answers, 0))
        object.__setattr__(self, "stop", tuple(self.stop))
        object.__setattr__(self, "metrics", tuple(self.metrics))


def _channel(where: str, value: object) -> None:
    if not isinstance(value, Channel):
        raise Mismatch(
            f"{where} must be a channel, got {value!r}: write {where}=atoll.Channel([…stages…], atoll.Sum())"
        )


def check_job(job: object) -> None:
    """Refuse what is no job."""
    if job is Job:
        raise Mismatch("job is the class Job: call it, atoll.Job(method=…)")
    if not isinstance(job, Job):
        name = job.__name__ if isinstance(job, type) else type(job).__name__
        with_roles = "run it with atoll.simulate_roles(job), explain its file with `atoll explain`"
        remedy = with_roles if name == "RoleJob" else "make one, atoll.Job(method=…)"
        raise Mismatch(f"job is a {name}, and an atoll.Job is needed: {remedy}")
