"""What a party works out from a job text with its own data: what the job would do to it, and the answers themselves.

All of this runs in a child process. A party that waits needs none of the libraries that train.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import inf
from typing import get_args

import numpy as np

from atoll.core.method import Contribute
from atoll.core.question import Exposure, Layout, Question
from atoll.core.tree import Schema
from atoll.core.wire import Event, Mismatch
from atoll.data.errors import whole
from atoll.data.federated import Federated, Silos
from atoll.data.schema import TableSchema
from atoll.job.assemble import Assembled, agreement_of, assemble, bound_to, summary_of
from atoll.job.catalogue import name_of
from atoll.job.file import JobFile, parse, substance_of
from atoll.privacy.account import epsilon_of, in_epsilon
from atoll.privacy.calibrate import multiplier_for
from atoll.privacy.events import Spend
from atoll.privacy.ledger import example_spend, own_spend
from atoll.programs.evaluate import Disclosure
from atoll.programs.federate import PARTY, Federate
from atoll.report.explain import explain
from atoll.runtimes.local.worker import Worker
from atoll.runtimes.network.party.policy import SERVERS, Manifest, Policy
from atoll.runtimes.network.party.session import Assessment, OwnSummary, Session
from atoll.runtimes.network.party.spending import UNLIMITED, AnswerCost, epsilon
from atoll.runtimes.network.server.serve import remote

OFTEN = 2  # answers without noise that a party gives at most, over the job's rounds: a server that fails asks again


def part_of(recipe: Mapping[str, object], seed: int = 0, schema: TableSchema | None = None) -> Federated:
    """Make a party's own data: all of what the recipe gives, or the samples of its `party`-th client.

    With a schema the columns are read as it states them.
    """
    from atoll.data import build

    words = dict(recipe)
    mine = whole("party", words.pop("party"), 0) if "party" in words else None
    by_name = schema is not None and words.get("use") == "csv"
    made = build({**words, "schema": schema} if by_name else words, seed)
    if schema is not None and not by_name:
        made = made.arranged(schema)

    def split(silos: Silos | None) -> Silos | None:
        if silos is None:
            return None
        x, y = silos[mine] if mine is not None else (silos.x, silos.y)
        return Silos(np.ascontiguousarray(x), np.ascontiguousarray(y), np.array([0, len(x)]))

    train = split(made.train)
    assert train is not None
    return replace(made, train=train, local=split(made.local), test=None, parties=())


def blank(sample: Layout, classes: int) -> Federated:
    """Data as an edge has it: nothing, of a certain shape."""
    x, y = (np.zeros((0, *(sample.leaves[name].shape or ())), sample.leaves[name].dtype) for name in ("x", "y"))
    none = Silos(x, y, np.zeros(2, np.int64))
    return Federated(none, local=none, kind="classes" if classes else "real", classes=classes)


def data_of(session: Session) -> Federated:
    """Make this party's data, with the labels of everybody's."""
    if session.sample is not None:
        return blank(session.sample, session.classes)
    stated = schema_of(parse(session.job, "the server's job", local=False, parts=session.policy.parts).data)
    mine = part_of(session.policy.data, schema=stated)
    highest = int(mine.train.y.max(initial=0)) if mine.kind == "classes" else -1
    if highest >= session.classes > 0:
        raise Mismatch(f"this party's labels go up to {highest}, and the job has {session.classes} classes, from 0")
    return replace(mine, classes=session.classes)


def assembled(session: Session, data: Federated) -> tuple[Assembled, Federated, JobFile]:
    """Everybody else is taken to be like this party: what a job spends and sends does not depend on their sizes."""
    said = parse(session.job, "the server's job", local=False, parts=session.policy.parts)
    sizes = [max(int(data.train.sizes[0]), 1)] * max(session.parties, session.number + 1)
    everybody, world = remote(data, sizes), session.world(said.seed)
    # A model's size follows from its shapes: one that is too large is refused before any of it is made.
    method = bound_to(said.job.method, summary_of(everybody))
    session.policy.check_sizes(parameters=max(phase.schema.size for phase in method.phases.values()))
    made = assemble(said.job, everybody, said.seed, world=world, agreement=agreement_of(session.job))
    return made, everybody, said


def worker_of(session: Session) -> Worker:
    """Make the worker that trains. Its vectors are shortened to the norm that the party's policy allows."""
    data = data_of(session)
    made, _, _ = assembled(session, data)
    told = Disclosure(session.policy.round_metrics or 0, _metrics_noise(session.policy))
    handlers = dict(replace(made.program, told=told).handlers(PARTY, made.agreed))
    for name, one in made.program.exchanges.items():
        limited = Contribute(made.job.method, name, one.stages, one.start, max_norm=session.policy.max_norm)
        handlers[f"{name}/contribute"] = limited
    splits = {"train": data.train} | ({"local": data.local} if data.local is not None else {})
    return Worker(handlers, splits, made.program.world, session.number)


def schema_of(recipe: Mapping[str, object]) -> TableSchema | None:
    """Return what a job states of its columns."""
    from atoll.data import build

    return build(recipe).schema if recipe.get("use") == "schema" else None


def summary(recipe: Mapping[str, object]) -> OwnSummary:
    """Say what a party holds, before it knows any job."""
    from atoll.data.catalogue import describe

    own = describe(recipe)
    held = part_of(recipe, schema=own)
    said = summary_of(held)
    return OwnSummary(said.samples, said.sample, None if held.schema is None else held.schema.told())


def assess(session: Session, server: str, address: str) -> Assessment:
    """Work out what a job would do to this party: what is asked, what it costs, reveals and spends."""
    data = data_of(session)
    made, everybody, said = assembled(session, data)
    job, program = made.job, made.program
    questions = made.questions(len(everybody))
    costs = _costs(made, int(data.train.sizes[0]), session.policy.delta)
    told = "local" in program.splits and program.evaluation is not None
    evaluations = 1 + -(-job.rounds // job.eval_every) if told else 0  # before the first round, and after the last
    planned, answers = _answers(made, costs)
    evaluating = _evaluation_cost(session.policy)
    # A hidden sum that was cut short is worked out anew, while the same plain question has the same answer.
    most = evaluations if program.evaluating is None else OFTEN * evaluations
    plan = _plan(planned, answers, costs, session.policy.delta) + Counter({evaluating: most})
    spent = epsilon(plan, session.policy.delta)
    schemas = [phase.schema for phase in job.method.phases.values()]
    combine, exposure = _weakest(program, questions)
    cut = job.select.batches(len(everybody), program.world)
    batches = () if cut is None else tuple(tuple(map(int, row)) for row in cut)
    manifest = Manifest(
        server=server, method=name_of(job.method), model=_model(schemas),
        parameters=max(schema.size for schema in schemas), rounds=job.rounds, cohort=made.wire.total.cohort,
        combine=combine, exposure=exposure, against=_weakest_server(program), noise=_least_noise(program),
        epsilon=spent if spent < inf else None, length=_longest(program, session.policy.max_norm),
        up=program.round_cost.each.up, down=program.round_cost.each.down,
        metrics=tuple(program.evaluation.better) if told and program.evaluation else (), address=address,
        asks=_asks(made) or answers, fixed=bool(_asks(made)), evaluations=evaluations,
        batch=min(map(len, batches), default=0),
        examples=int(data.train.sizes[0]), job=agreement_of(session.job).hex(), substance=substance_of(said.job).hex(),
    )  # fmt: skip
    conversations = {
        phase: (exchange.combine, exchange.wire)
        for phase, exchange in program.conversations.items()
        if f"{phase}/contribute" not in questions
    }
    words = [explain(job, everybody, said.seed, world=program.world, own=True), _own_words(session.policy, manifest)]
    words.append(f"in a policy\n  this job is {manifest.job}\n  this model is {manifest.model}")
    return Assessment(
        manifest, "\n\n".join(words), questions, conversations, answers, planned, costs, plan, most, evaluating,
        seed=said.seed, batches=batches,
    )  # fmt: skip


def _evaluation_cost(policy: Policy) -> AnswerCost:
    """Return what an answer about own test data spends."""
    noise = _metrics_noise(policy)
    return AnswerCost(example=Spend(noise, unit="example", told=True)) if noise else UNLIMITED


def _metrics_noise(policy: Policy) -> float:
    """Return the noise of an answer about own test data, in units of what one example can change; 0: none."""
    if policy.epsilon_metrics is None:
        return 0.0
    return multiplier_for(policy.epsilon_metrics, policy.delta, 1, sampling="none", unit="example")


def _asks(made: Assembled) -> int:
    """Return how often the rounds of a job ask; 0 where that is decided as it runs."""
    buffered = made.job.channel.combine.staleness is not None
    return 0 if buffered else made.job.rounds * len(made.job.method.cycle)


def _costs(made: Assembled, examples: int, delta: float) -> dict[str, AnswerCost]:
    """Return what an answer of each phase spends: only noise that is added before it can be read counts."""
    job, parties, found = made.job, len(made.program.sizes), dict[str, AnswerCost]()
    for phase, exchange in made.program.exchanges.items():
        where = ("local", "distributed") if exchange.combine.hidden else ("local",)
        noise = [event for event in exchange.wire.noise if event.where in where and event.multiplier > 0]
        spends = [own_spend(event, job.select, parties) for event in noise]
        party = max(spends, key=lambda spend: spend.multiplier, default=None)
        # An example moves a vector by up to two bounds.
        inside = [Spend(event.multiplier / 2, unit="example", told=True) for event in noise]
        if job.method.example_dp is not None and examples:
            inside.append(example_spend(job.method, examples))
        example = min(inside, key=lambda spend: epsilon_of([(spend, max(_asks(made), 1))], delta), default=None)
        found[phase] = AnswerCost(party, example)
    return found


def _answers(made: Assembled, costs: Mapping[str, AnswerCost]) -> tuple[dict[str, int], int]:
    """Return how often each phase is asked, and how many answers of all phases are given at most.

    Where no noise is at stake a server that fails may ask as often again. Where the method decides what is asked as it
    runs, only all answers together are limited.
    """
    job = made.job
    if not _asks(made):
        return {}, OFTEN * job.rounds * len(made.program.exchanges) + job.extra_answers
    planned = {phase: job.rounds * job.method.cycle.count(phase) for phase in costs}
    if UNLIMITED in costs.values():
        planned = {phase: OFTEN * count for phase, count in planned.items()}
    return planned, sum(planned.values()) + job.extra_answers


def _plan(
    planned: Mapping[str, int], answers: int, costs: Mapping[str, AnswerCost], delta: float
) -> Counter[AnswerCost]:
    """Return what the whole job spends at most: answers that no phase is planned for count as the dearest."""
    plan = Counter[AnswerCost]()
    for phase, count in planned.items():
        plan[costs[phase]] += count
    plan[max(costs.values(), key=lambda cost: epsilon({cost: 1}, delta))] += answers - sum(planned.values())
    return plan


def _own_words(policy: Policy, manifest: Manifest) -> str:
    """Say what the job spends of this party's own data, by the party's own account."""
    said = "nothing bounds it: no noise is added before something of this party can be read"
    if manifest.epsilon is not None:
        said = (
            f"at most {in_epsilon(manifest.epsilon)} at delta {policy.delta:g}, after all answers that the job allows"
        )
    scores = ""
    if manifest.evaluations and policy.epsilon_metrics is not None:
        scores = (
            f"\n  scores on own test data: up to {manifest.evaluations} answers, each with noise that hides one "
            f"example, epsilon {policy.epsilon_metrics:g} each"
        )
    return (
        f"this party's own account\n  epsilon: {said}\n  neighbours: zero-out-one; sampling: none claimed; "
        f"accountant: RDP\n  limits of the policy belong to the data set {policy.dataset_name}, over all servers "
        f"and jobs{scores}"
    )


def _weakest(program: Federate, questions: Mapping[str, Question]) -> tuple[str, Exposure]:
    """Return the combine that hides least of all phases, and in which form vectors leave in it."""
    order = get_args(Exposure).index
    found: list[tuple[str, Exposure]] = []
    for phase, exchange in program.exchanges.items():
        mine = [one.exposure for name, one in questions.items() if one.contributes and name.startswith(f"{phase}/")]
        found.append((name_of(exchange.combine), max(mine, key=order)))
    return max(found, key=lambda one: (order(one[1]), one[0] != "secure_sum"))


def _weakest_server(program: Federate) -> str:
    """Return the weakest server that the sums of a phase protect from."""
    return min((exchange.combine.hidden for exchange in program.exchanges.values()), key=SERVERS.index)


def _least_noise(program: Federate) -> tuple[Event, ...]:
    """Return the noise of the phase that has least; where one has noise all have, and in the same places."""
    noises = [exchange.wire.noise for exchange in program.exchanges.values()]
    return min(noises, key=lambda events: [event.multiplier for event in events])


def _longest(program: Federate, limit: float | None) -> float | None:
    """Return how long a vector of any phase can be."""
    bounds = [one.wire.l2 if limit is None else min(one.wire.l2 or inf, limit) for one in program.exchanges.values()]
    return None if None in bounds else max(bound for bound in bounds if bound is not None)


def _model(schemas: Sequence[Schema]) -> str:
    """Return the hash of what is sent: of one phase its schema's, of several that of all."""
    digests = [schema.digest for schema in schemas]
    return (digests[0] if len(digests) == 1 else sha256(b"".join(digests)).digest()).hex()
