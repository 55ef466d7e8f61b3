"""Put a job and data together. Assembling refuses what makes no sense, before any party is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod

import numpy as np

from atoll.core.effects import Cohort, Running
from atoll.core.errors import AtollError, nearest
from atoll.core.method import DataSummary, Evaluation, Method, Phase, State, Stop, codec_of
from atoll.core.party import Handler
from atoll.core.program import Agreed
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import Codec, Combine, Member, Mismatch, Row, Setting, Total, Wire
from atoll.core.world import World
from atoll.data.checks import check
from atoll.data.federated import Federated, Silos
from atoll.job.job import Channel, Job, check_job
from atoll.job.quorum import check_quorum
from atoll.job.renames import METRICS
from atoll.job.whole import check_whole
from atoll.metrics import Metric
from atoll.privacy.ledger import Ledger, ledger_of
from atoll.programs.evaluate import HIDDEN_LOCAL, evaluation_of, schema_of
from atoll.programs.federate import PARTY, Exchange, Federate
from atoll.programs.quorum import Quorum
from atoll.select.available import latency, lost
from atoll.stages.digits import Digits
from atoll.stages.loss import telling_loss, tells_loss


@dataclass(frozen=True)
class Assembled:
    """A job bound to data: the program, what its parties hold, what is proven and spent."""

    job: Job
    program: Federate
    agreed: Agreed
    splits: Mapping[str, Silos]
    ledger: Ledger | None = None

    @property
    def phase(self) -> str:
        """The method's first phase."""
        return next(iter(self.program.exchanges))

    @property
    def wire(self) -> Wire:
        """What is proven of a vector of the first phase."""
        return self.program.exchanges[self.phase].wire

    @property
    def codec(self) -> Codec:
        return self.program.exchanges[self.phase].codec

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """How the parties, and the server of its own test data, answer."""
        return self.program.handlers(PARTY, self.agreed)

    def running(self, memory: Tree | None = None) -> Running[State]:
        """Start the program with everybody, or go on from the checkpoint of an earlier run."""
        everybody = {PARTY: np.arange(self.agreed.data[PARTY].parties)}
        return self.program.run(everybody, self.agreed, self.program.world, memory)

    def questions(self, parties: int) -> dict[str, Question]:
        """Declare all that may be asked of a party in this job, by name, where so many may come."""
        everybody = self.agreed.data[PARTY]._replace(parties=parties)
        found = self.program.questions(self.agreed._replace(data={PARTY: everybody}))
        return {question.name: question for question in found}


@dataclass(frozen=True)
class Dropouts:
    """A job's availability as the simulator asks for it."""

    drop: float
    seed: int

    def lost(self, who: Cohort, t: int) -> Array:
        return lost(who, self.drop, t, self.seed)

    def latency(self, who: Cohort, t: int) -> Array:
        return latency(who, t, self.seed)


def summary_of(data: Federated) -> DataSummary:
    """Say what a method may know of data before a round."""
    arrays = {"x": data.train.x, "y": data.train.y}
    sample = {name: Leaf(a.dtype.name, tuple(map(int, a.shape[1:])), finite=False) for name, a in arrays.items()}
    return DataSummary(int(data.train.sizes.sum()), Layout(sample), data.kind, data.classes)


def assemble(
    job: Job,
    data: Federated,
    seed: int = 0,
    *,
    world: World | None = None,
    agreement: bytes = b"",
    members: Callable[[], Mapping[int, Member]] = dict,
) -> Assembled:
    """Put a job and data together, and check that the parts fit.

    Args:
        job: what to train.
        data: the parties' data, or a description of it.
        seed: of all public randomness. Default 0.
        world: simulated (the default) or real.
        agreement: hash of the job text that everybody agreed to. Default: none.
        members: returns names and keys of the parties by number, where hidden sums run their protocol. Default: none.

    Raises:
        Mismatch: two parts cannot be combined.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(5), rounds=3)
        >>> assembled = atoll.assemble(job, data)
    """
    check_job(job)
    if not isinstance(data, Federated):
        check(data)  # refuses it in a sentence
    world = World.simulated(seed) if world is None else world
    summary = summary_of(data)
    method = bound_to(job.method, summary)
    _check_metrics(job.metrics, summary)
    evaluation = evaluation_of(method, job.metrics, _outputs(summary))
    _check_phases(job.channel, method)
    bound = replace(job, method=method, channel=_telling_loss(replace(job, method=method), len(data)))
    others = {n: s for n, s in (("local", data.local), ("test", data.test)) if s is not None}
    splits = {"train": data.train, **others}
    exchanges = {
        name: _exchange(bound, name, phase, Setting(name, world, agreement, members), len(data))
        for name, phase in method.phases.items()
    }
    # Scores on own test data have no noise: between real parties a job with noise asks for none.
    asked = ("test",) if _noised(bound, exchanges) and not world.watched else ("test", "local")
    evaluated = tuple(s for s in asked if s in splits) if evaluation else ()
    if len(data.train.y):  # a party has no rows of others and cannot know what their server measures; it asks no stop
        check_stops(job.stop, evaluated, evaluation)
        check_quorum(job, len(data))
    own = evaluation if "local" in evaluated else None
    evaluating = _evaluating(bound, own, Setting(HIDDEN_LOCAL, world, agreement, members), len(data)) if own else None
    ledger, stops = _ledger(bound, exchanges, data.train.sizes)
    program = Federate(
        method, job.select, exchanges, data.train.sizes,
        lambda t: job.availability.online(t, len(data), world.seed), stops, job.eval_every, evaluated,
        len(data.test) if data.test is not None else 0, evaluation, tuple(job.metrics), evaluating,
        ledger.spent if ledger else None, None if job.min_parties is None else Quorum(job.min_parties),
    )  # fmt: skip
    return Assembled(bound, program, Agreed({PARTY: summary._replace(parties=len(data))}, job.rounds), splits, ledger)


def _outputs(summary: DataSummary) -> int:
    return summary.classes or prod(summary.sample.leaves["y"].shape or ())


def bound_to(method: Method, summary: DataSummary) -> Method:
    """Bind a method to data; what a part says of data that it is not for is a sentence for the user."""
    try:
        bound = method.bind(summary)
        _ = bound.phases  # the layout of a model follows from the data here
    except AtollError:
        raise
    except ValueError as error:
        raise Mismatch(f"{type(method).__name__} does not fit the data: {error}") from None
    return bound


def _check_metrics(metrics: Sequence[Metric], summary: DataSummary) -> None:
    """Refuse a metric of targets that the data does not have."""
    words = {"classes": "classes", "real": "real numbers"}
    for metric in metrics:
        if metric.kind not in ("any", summary.kind):
            raise Mismatch(
                f"metrics: '{metric.name}' is for {words.get(metric.kind, metric.kind)}, and the data's labels are "
                f"{words.get(summary.kind, summary.kind)}: leave it out, or use another metric"
            )


def _check_phases(channel: Channel, method: Method) -> None:
    """Refuse the channel of a phase that the method does not have, and a round that does not have all phases."""
    if HIDDEN_LOCAL in method.phases:
        raise Mismatch(f"{type(method).__name__} has a phase '{HIDDEN_LOCAL}', which is the evaluation: rename it")
    for name in channel.phases:
        if name not in method.phases:
            raise Mismatch(f"phases.{name}: {type(method).__name__} has no such phase; {nearest(name, method.phases)}")
    if method.cycle and set(method.cycle) != set(method.phases):
        asked, has = ", ".join(method.cycle), ", ".join(method.phases)
        raise Mismatch(f"{type(method).__name__} has the phases {has}, and its cycle asks {asked}: name all of them")


def _telling_loss(job: Job, parties: int) -> Channel:
    """Add the stage that tells the mean training loss to the channel of each phase, where nothing is noised."""
    channel, method, told = job.channel, job.method, dict[str, Channel]()
    if not method.train_loss and any(tells_loss(channel.of(name).stages) for name in method.phases):
        why = "protects its examples with noise, but not their losses" if method.example_dp else "has no training loss"
        raise Mismatch(f"train_loss: {type(method).__name__} {why}: take TrainLoss() out of the stages")
    for name, phase in method.phases.items() if job.train_loss and method.train_loss else ():
        mine, start = channel.of(name), _start(job, phase, parties)
        if phase.mean and not codec_of(tuple(mine.stages), start)[0].noise:
            told[name] = replace(mine, stages=telling_loss(tuple(mine.stages), start), phases={})
    if len(method.phases) == 1 and not channel.phases:  # the one channel of all
        return replace(told.get(next(iter(method.phases)), channel), phases={})
    return replace(channel, phases={**channel.phases, **told})


def _start(job: Job, phase: Phase, parties: int) -> Wire:
    """Return what is known of a phase's vector before the first stage."""
    cohort, whole = job.select.expected(parties), job.select.sampling(parties).whole
    shapes = tuple(shape for _, shape in (phase.arrays or phase.schema).leaves)
    return Wire(Row(phase.schema.size, phase.dtype, shapes), Total(cohort, cohort if whole else 0))


def _exchange(job: Job, name: str, phase: Phase, setting: Setting, parties: int) -> Exchange:
    """Run a phase's wire through its channel."""
    channel, start = job.channel.of(name), _start(job, phase, parties)
    stages = tuple(channel.stages)
    wire = codec_of(stages, start)[0]
    if setting.world.secret and wire.noised("tree"):
        raise Mismatch("TreeNoise() derives its noise from the seed, which only a simulation may: use Gaussian()")
    who = type(job.method).__name__
    if phase.mean and not wire.mean:
        raise Mismatch(f"{who} averages, but the channel only adds up: put Weigh() or Average() into its stages")
    if not phase.mean and wire.mean:
        raise Mismatch(f"{who} needs the sum of its statistics: take Weigh() or Average() out of the stages")
    if phase.mean and not job.method.changes:
        check_whole(who, stages, start)
    combine = channel.combine
    if combine.staleness is not None:
        _check_stale(job, combine)
    if combine.hidden and job.method.reports.leaves:
        told = ", ".join(leaf for leaf, _ in job.method.reports.leaves)
        raise Mismatch(f"{who} reports {told} of each party, which {combine} would hide: combine with Sum()")
    return Exchange.of(start, stages, combine, setting)


def _evaluating(job: Job, evaluation: Evaluation, setting: Setting, parties: int) -> Exchange | None:
    """Let sums over own test data travel as vectors do, where a phase hides those; None: each party sends its own."""
    hidden = [combine for name in job.method.phases if (combine := job.channel.of(name).combine).hidden]
    start = Wire(Row(schema_of(evaluation).size, "float64"), Total(parties))
    return Exchange.of(start, (Digits(),), hidden[0], setting) if hidden else None


def _noised(job: Job, exchanges: Mapping[str, Exchange]) -> bool:
    """Tell whether a job adds noise; refuse one that lets what is not noised decide anything."""
    if job.method.example_dp is None and not any(exchange.wire.noise for exchange in exchanges.values()):
        return False
    for metric in (stop.metric for stop in job.stop if stop.metric is not None):
        if metric.startswith("local."):
            raise Mismatch(
                f"stop: '{metric}' comes from the parties' own test data without noise, so that the noise of this job "
                "would promise nothing: stop by a metric of the server's test data (test.…), or after some rounds"
            )
    if job.method.reports.leaves:
        told = ", ".join(leaf for leaf, _ in job.method.reports.leaves)
        raise Mismatch(
            f"{type(job.method).__name__} reports {told} of each party without noise, so that the noise of this job "
            "would promise nothing: take the noise out, or use a method that reports nothing"
        )
    return True


def check_stops(stops: Sequence[Stop], splits: Sequence[str], evaluation: Evaluation | None) -> None:
    """Refuse a stop that waits for what is not measured, or in a split ("test", "local") without evaluation."""
    for metric in (stop.metric for stop in stops if stop.metric is not None):
        for old, now in METRICS.items():
            if metric.startswith(old):
                raise Mismatch(f"stop: '{metric}' is called '{now}{metric.removeprefix(old)}' now")
        split, _, name = metric.partition(".")
        if split not in splits:
            known = " and ".join(f"{split}.…" for split in splits)
            has = f"this run measures {known}" if splits else "this run has no test data"
            raise Mismatch(
                f"stop: nothing measures '{metric}', for {has}: hold some data out (`holdout` for test.…, `test` for "
                "local.…), or leave this stop out"
            )
        if evaluation is not None and name not in evaluation.better:
            known = ", ".join(f"{split}.{one}" for one in evaluation.better)
            raise Mismatch(
                f"stop: nothing measures '{metric}'; this run measures {known}: wait for one of them, or add it to "
                "the job's metrics"
            )


def _check_stale(job: Job, combine: Combine) -> None:
    name = type(combine).__name__
    if job.select.asked(10_000) != job.select.expected(10_000):
        raise Mismatch(
            f"{type(job.select).__name__}() and {name}() both say how many answers are enough: select without it"
        )
    if not job.method.changes:
        raise Mismatch(
            f"{name}() adds changes of models of several rounds, and by='weights' sends models: leave it out"
        )
    if len(job.method.phases) > 1:
        raise Mismatch(f"{name}() adds answers of several rounds, and this method has several phases: use Sum()")


def _ledger(job: Job, exchanges: Mapping[str, Exchange], sizes: Array) -> tuple[Ledger | None, list[Stop]]:
    """Open the accounts of a job, and tell its budgets of them."""
    noise = {name: exchange.wire.noise for name, exchange in exchanges.items()}
    said = {unit: delta for stop in job.stop for unit, delta in stop.deltas.items() if delta is not None}
    # Between real parties nobody promises that all are there to draw from.
    steady = job.availability.steady and next(iter(exchanges.values())).setting.world.watched
    # A hidden sum shows its parties the cohort; a simulation of it states what the job would spend.
    seen = any(exchange.combine.hidden for exchange in exchanges.values())
    ledger = ledger_of(
        noise,
        job.select,
        job.method,
        sizes,
        steady=steady,
        rounds=job.rounds,
        deltas=said,
        extra=job.extra_answers,
        seen=seen,
    )
    return ledger, [stop.bound(ledger) for stop in job.stop]


def agreement_of(text: str) -> bytes:
    """Hash a job's text, as server and parties do before they bind their protocols to it."""
    return sha256(text.encode()).digest()
