"""Federate: the program of every horizontal method. It asks a cohort, combines, steps, evaluates, checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from atoll.core.effects import Cohort, Replies, ask, checkpoint, note, settle
from atoll.core.method import (
    Contribute,
    Diverged,
    Evaluation,
    History,
    Method,
    Phase,
    Pick,
    Population,
    RoundInfo,
    Select,
    State,
    Stop,
    codec_of,
)
from atoll.core.party import Handler
from atoll.core.program import Agreed, Program, Role
from atoll.core.question import Layout, Leaf, Question
from atoll.core.tree import Array, Tree, leaves, unflatten
from atoll.core.wire import Codec, Combine, DecodeContext, Gather, Mismatch, Setting, Stage, Wire
from atoll.core.world import World
from atoll.metrics import Metric
from atoll.programs.evaluate import (
    AS_THEY_ARE,
    HIDDEN_LOCAL,
    LOCAL,
    Disclosure,
    Evaluate,
    EvaluateHidden,
    Unevaluated,
    evaluation_question,
    hidden_questions,
    schema_of,
    summarise,
    total_values,
)
from atoll.programs.phases import all_done, seen_by_phase
from atoll.programs.quorum import Quorum
from atoll.programs.traffic import Cost, Traffic, body_bytes, traffic, tree_bytes

PARTY = "party"  # the one role: many play it, as equals

UNUSED = -1  # the number of an ask that never was
MAX_IN_VAIN = 1000  # asks in a row with too few answers
SHOWN = 500  # parties of a round that a simulation names in its facts


class Exchange(NamedTuple):
    """How a phase travels: what is proven of a vector, its codec, the conversation; the stages and the combine that it
    was made of, what is known before the first stage, and what it is part of.
    """

    wire: Wire
    codec: Codec
    gather: Gather
    start: Wire
    stages: tuple[Stage, ...]
    combine: Combine
    setting: Setting

    @classmethod
    def of(cls, start: Wire, stages: tuple[Stage, ...], combine: Combine, setting: Setting) -> Exchange:
        """Run a wire through its stages; refuse what the combine cannot combine."""
        wire, codec = codec_of(stages, start)
        combine.check(wire)
        return cls(wire, codec, combine.gather(wire, setting), start, stages, combine, setting)


@dataclass(frozen=True)
class Federate(Program):
    """Train one model together: one question a phase, asked of some of many equal parties, whose answers are combined.

    It is bound to what its parties hold and to a world: see `atoll.job.assemble`.
    """

    method: Method
    select: Select
    exchanges: Mapping[str, Exchange]  # by phase
    sizes: Array
    online: Callable[[int], Cohort | None]
    stop: Sequence[Stop] = ()
    eval_every: int = 1
    splits: tuple[str, ...] = ()  # where to evaluate: "test", "local"
    parts: int = 0  # of the central test set
    evaluation: Evaluation | None = None
    metrics: tuple[Metric, ...] = ()  # of it, those that are not the method's own
    evaluating: Exchange | None = None  # how sums over own test data travel, where a hidden sum adds them
    spent: Callable[..., Mapping[str, Any]] | None = None  # what so many asks spend
    quorum: Quorum | None = None  # below which a round does not count; None: what was asked counts
    told: Disclosure = AS_THEY_ARE  # how sums over own test data are told
    declared: Array | None = None  # samples that each party said it has; None where they are known

    @property
    def roles(self) -> Mapping[str, Role]:
        return {PARTY: Role("trains on samples of its own, and evaluates the model on them", "samples", many=True)}

    @property
    def remembers(self) -> bool:
        """Whether parties keep anything between rounds."""
        return self.method.remembers or any(e.codec.remembers for e in self.exchanges.values())

    @property
    def conversations(self) -> Mapping[str, Exchange]:
        """How everything travels that is combined, by phase: vectors, and sums of the evaluation that are hidden."""
        return self.exchanges if self.evaluating is None else {**self.exchanges, HIDDEN_LOCAL: self.evaluating}

    @cached_property
    def costs(self) -> Mapping[str, Cost]:
        """By phase: what parties send, and what they are asked beside the question itself."""
        return {name: self._cost(exchange) for name, exchange in self.conversations.items()}

    def _cost(self, exchange: Exchange) -> Cost:
        """Work out what a conversation takes between real parties, also where a simulation leaves it out."""
        combine, wire, cohort = exchange.combine, exchange.wire, exchange.wire.total.cohort
        setting = exchange.setting._replace(world=World.real(0))
        asked = [_reporting(q, self.method) for q in combine.questions(wire, setting, Layout({}), cohort)]
        each, holders = traffic(asked, combine.message_bytes(wire)), Traffic()
        for k, _ in enumerate(combine.holders(range(cohort))):
            holders = holders.plus(traffic(asked, combine.message_bytes(wire, k))).plus(each, -1)
        return Cost(each, holders)

    @cached_property
    def round_cost(self) -> Cost:
        """What a round moves that has every phase once, as the method starts."""
        each, holders, state = Traffic(), Traffic(), self.method.init(self.world, Population(self.sizes))
        for name in self.exchanges:
            each = each.plus(self.costs[name].each).plus(Traffic(down=body_bytes(self.asked_with(name, state))))
            holders = holders.plus(self.costs[name].holders)
        return Cost(each, holders)

    @cached_property
    def evaluation_cost(self) -> Cost:
        """What it takes once to say how well the model does on the parties' own test data."""
        if "local" not in self.splits or self.evaluation is None:
            return Cost()
        asks = Layout.of(
            {"broadcast": self.method.broadcast(self.method.init(self.world, Population(self.sizes))), "t": 0}
        )
        if self.evaluating is None:
            return Cost(traffic([evaluation_question(self.evaluation, asks)], {}))
        each, holders = self.costs[HIDDEN_LOCAL]
        return Cost(each.plus(Traffic(down=body_bytes(asks))), holders)

    @property
    def world(self) -> World:
        """The world that its conversations are made for."""
        return next(iter(self.exchanges.values())).setting.world

    def asked_with(self, phase: str, state: State) -> Layout:
        """Lay out what a cohort is asked with in a phase, which may declare a broadcast of its own."""
        codec = self.exchanges[phase].codec
        told = {leaf: codec.start[leaf] for leaf in codec.stage_state}
        return _declared(Layout.of(question_of(self.method, state, 0, told)), self.method.phases[phase])

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        """Declare what may be asked of a party, where so many may come as the summary says.

        The leaves of an answer have an axis of one party, as a group of one gives them.
        """
        method, parties = self.method, agreed.data[PARTY].parties
        state = method.init(self.world, Population(self.sizes))
        found: list[Question] = []
        for name, exchange in self.exchanges.items():
            body = self.asked_with(name, state)
            found += exchange.combine.questions(exchange.wire, exchange.setting, body, parties)
        found = [_reporting(question, method) for question in found]
        if "local" in self.splits and self.evaluation is not None:
            asks = Layout.of({"broadcast": method.broadcast(state), "t": 0})
            if (hidden := self.evaluating) is None:
                found.append(evaluation_question(self.evaluation, asks))
            else:
                found += hidden_questions(hidden.combine.questions(hidden.wire, hidden.setting, asks, parties))
        return tuple(found)

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        """Return how a party answers, and how the server evaluates on test data of its own."""
        found: dict[str, Handler] = {
            f"{name}/contribute": Contribute(self.method, name, exchange.stages, exchange.start)
            for name, exchange in self.exchanges.items()
        }
        told = {"local": self.told}
        found |= {
            f"evaluate/{split}": Evaluate(self.method, split, self.metrics, told.get(split, AS_THEY_ARE))
            for split in self.splits
        }
        if (hidden := self.evaluating) is not None and self.evaluation is not None:
            schema, own = schema_of(self.evaluation), found.pop(LOCAL)
            found[f"{HIDDEN_LOCAL}/contribute"] = EvaluateHidden(own, schema, hidden.stages, hidden.start)
        return found

    def seen(self) -> Mapping[str, str]:
        return seen_by_phase({name: one.combine.seen(one.wire, self.world) for name, one in self.exchanges.items()})

    async def run(self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None) -> State:
        """Train until a reason to stop. `memory` is the checkpoint of an earlier run.

        A checkpoint has a new model before anybody is shown it: noise that was seen is never drawn again.
        """
        run = _restored(self, memory) if memory else _started(self, world)
        if not memory:
            await checkpoint(_memory(run))
        if run.used is not None:  # from the start: nobody remembers an answer that was not used
            await settle(run.used)
        while True:
            if run.unseen:
                run = await _evaluate(self, run, who[PARTY], world)
            said = _said(self, run.history)
            if said or run.history.rounds >= agreed.rounds:
                break
            before = run.history.rounds
            run = await _ask(self, run, world)
            done = run.history.rounds
            due = done > before and (done % self.eval_every == 0 or done == agreed.rounds)
            run = run._replace(unseen=due)
            await checkpoint(_memory(run))
        await checkpoint(_memory(run))
        spent = self.spent(run.history.t, last=True) if self.spent else {}
        reason = said or all_done(agreed.rounds)
        await note("end", round=run.history.rounds, reason=reason, complete=not said, **spent)
        return run.state


class _Run(NamedTuple):
    """What changes from ask to ask."""

    state: State
    history: History
    channels: Mapping[str, Tree]  # by phase: what its stages remember at the server
    select: Tree
    used: Array | None  # by party: the last ask whose answer was used
    cohort: Cohort | None  # who answered the phase before
    begun: State  # as it was when the round began
    in_vain: int = 0  # asks in a row that had too few answers
    unseen: bool = False  # whether the model is still to be evaluated
    drawn: Cohort | None = None  # by a private draw, for the ask that is next or under way


def _declared(shown: Layout, phase: Phase) -> Layout:
    """Lay a question out as the phase declares it; what it does not declare is as it is at the start."""
    leaves = dict(shown.leaves)
    for part, layout in (("broadcast", phase.broadcast), ("constant", phase.constant)):
        if layout is not None:
            leaves = {name: leaf for name, leaf in leaves.items() if not name.startswith(f"{part}/")}
            leaves |= {f"{part}/{name}": leaf for name, leaf in layout.leaves.items()}
    return Layout(leaves)


def _reporting(question: Question, method: Method) -> Question:
    """Let the answer that has the vector also have what the method reports."""
    if not question.contributes or not method.reports.leaves or "vector" not in question.answers.leaves:
        return question
    told = {f"report/{name}": Leaf("float64", (1, *shape)) for name, shape in method.reports.leaves}
    words = {"reports": ", ".join(name for name, _ in method.reports.leaves)}
    return question._replace(answers=Layout({**question.answers.leaves, **told}), reveals={**question.reveals, **words})


def _started(plan: Federate, world: World) -> _Run:
    everybody = Population(plan.sizes)
    better = plan.evaluation.better if plan.evaluation else {}
    channels = {phase: exchange.codec.start for phase, exchange in plan.exchanges.items()}
    state = plan.method.init(world, everybody)
    memory = plan.select.start(everybody)
    return _Run(state, History(better=better), channels, memory, _unused(plan), None, state, unseen=True)


async def _ask(plan: Federate, run: _Run, world: World) -> _Run:
    """Ask a cohort of the phase that is next, and step. Where nobody is there, or too few answer, the state stays."""
    method, history, t = plan.method, run.history, run.history.t
    name, phases = method.phase(run.state), method.phases
    phase, exchange = phases[name], plan.exchanges[name]
    pick = await _picked(plan, run, phase, world)
    run = run._replace(drawn=None)
    spent = plan.spent(t + 1) if plan.spent else {}
    if not len(pick.cohort):
        rounds = history.rounds + (len(phases) == 1)
        await note("empty", round=history.rounds + 1, **spent, **({} if len(phases) == 1 else {"complete": False}))
        state = run.begun if phase.same_cohort else run.state
        history = replace(history, t=t + 1, rounds=rounds, update_norm=None)
        return _in_vain(run._replace(state=state, history=history, cohort=None), name)
    channel = run.channels[name]
    question = question_of(method, run.state, t, {leaf: channel[leaf] for leaf in exchange.codec.stage_state})
    vector, replies = await exchange.gather(pick.cohort, question, pick.goal)
    enough = len(replies) >= max(exchange.wire.total.min_cohort, 1) and not _lacking(plan.quorum, replies)
    state, facts = run.state, dict[str, Any]()
    if enough:
        combined, channel, facts = _decoded(exchange, vector, channel, replies, world, t)
        info = RoundInfo(t, len(replies), plan.select.expected(len(plan.sizes)), len(plan.sizes), replies.parties)
        state = method.server_update(state, unflatten(combined, phase.schema), info)
        _check_state(state, t)
    moved = method.update_norm(run.state, state)
    said: dict[str, Any] = {"update_norm": moved} if moved is not None else {}
    said |= {"parties": replies.parties.tolist()} if world.watched and len(replies) <= SHOWN else {}
    if phase.same_cohort and not enough:
        state = run.begun  # those who were asked before are too few now: the round begins again, and counts
    over = method.complete(state) and (enough or (len(phases) == 1 and plan.quorum is None))
    rounds = history.rounds + bool(over)
    about = {**_facts(exchange, plan.costs[name], question, pick, replies), **_lacking(plan.quorum, replies)}
    said |= ({"phase": name} if len(phases) > 1 else {}) | ({} if over else {"complete": False})
    await note("round", round=history.rounds + 1, **about, **facts, **spent, **said)
    elapsed = replies.facts.get("elapsed", history.elapsed)
    whole = None  # of a round that moved nothing
    if over and enough:
        whole = moved if run.begun is run.state else method.update_norm(run.begun, state)
    if run.used is not None and enough:
        run.used[replies.parties] = t - replies.each.get("age", np.zeros(len(replies), np.int64))
        await settle(run.used)
    after = _Run(
        state, replace(history, t=t + 1, rounds=rounds, update_norm=whole, elapsed=elapsed),
        {**run.channels, name: channel}, plan.select.learn(run.select, pick, _told(replies)), run.used,
        replies.parties if enough else None, state if over else run.begun, 0 if enough else run.in_vain,
    )  # fmt: skip
    return after if enough or over else _in_vain(after, name)


async def _picked(plan: Federate, run: _Run, phase: Phase, world: World) -> Pick:
    """Decide whom to ask: those who are missing, those of the phase before, those drawn before a failure, or a draw."""
    population = Population(plan.sizes, plan.online(run.history.t))
    missing = plan.method.missing(run.state)
    again = missing if missing is not None else run.cohort if phase.same_cohort else None
    again = run.drawn if again is None else again
    if again is not None:
        return Pick(_there(again, population))
    pick = plan.select.pick(run.history.t, population, run.history, run.select, world)
    if world.secret and plan.select.sampling(len(plan.sizes)).kind == "poisson":
        # A server that fails now must not draw again: who is drawn twice takes part more often than is accounted.
        await checkpoint(_memory(run._replace(drawn=pick.cohort)))
    return pick


def _lacking(quorum: Quorum | None, replies: Replies) -> dict[str, Any]:
    """Say by how much a round misses its quorum: how many answers it needs, and whose are missing."""
    if quorum is None or quorum.met(replies.parties.tolist()):
        return {}
    missing = sorted(quorum.required - set(replies.parties.tolist()))
    return {"needed": quorum.min_parties, **({"missing": missing} if missing else {})}


def _there(who: Cohort, population: Population) -> Cohort:
    return who if population.online is None else np.intersect1d(who, population.online)


def _told(replies: Replies) -> Replies:
    """Leave out what only a simulation knows of single parties, so that a select learns the same everywhere."""
    each = {name: leaf for name, leaf in replies.each.items() if name != "finite" and not name.startswith("fact/")}
    return replace(replies, each=each)


def _in_vain(run: _Run, phase: str) -> _Run:
    """Count asks in a row that came to nothing; end a run that does not get anywhere."""
    if run.in_vain >= MAX_IN_VAIN:
        raise Mismatch(
            f"phase {phase}: {MAX_IN_VAIN} asks in a row had too few answers, so the run stopped: facts.jsonl has why "
            "parties declined; select more, or start those that are missing; the last checkpoint is whole"
        )
    return run._replace(in_vain=run.in_vain + 1)


def question_of(method: Method, state: State, t: int, stage_state: Tree) -> dict[str, Any]:
    """Return what a cohort is asked with."""
    question: dict[str, Any] = {"broadcast": method.broadcast(state), "t": t}
    question |= {"stage_state": stage_state} if stage_state else {}
    constant = method.constant(state)
    return {**question, "constant": constant} if constant else question


def _decoded(
    exchange: Exchange, vector: Array, channel: Tree, replies: Replies, world: World, t: int
) -> tuple[Array, Tree, dict[str, Any]]:
    combined, after, facts = exchange.codec.decode(vector, channel, DecodeContext(len(replies), world, t))
    if not np.isfinite(combined).all():
        bad = replies.parties[~replies.each["finite"]].tolist() if "finite" in replies.each else []
        more = " and others" if len(bad) > 5 else ""
        named = f"party {', '.join(map(str, bad[:5]))}{more}" if bad else "the sum"
        raise Diverged(_DIVERGED.format(round=t + 1, before=t, whose=f"{named} sent", rate=""))
    return combined, after, dict(facts)


_DIVERGED = (
    "round {round}: {whose} numbers that are not finite, so the run stopped and the model of round {before} was kept; "
    "use a smaller learning rate (--set method.lr=…{rate}), or clip with a Clip stage"
)


def _check_state(state: State, t: int) -> None:
    for _, leaf in leaves(state):
        array = np.asarray(leaf)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            words = {"whose": "the step of the server gave", "rate": ", method.server.lr=…"}
            raise Diverged(_DIVERGED.format(round=t + 1, before=t, **words))


def _said(plan: Federate, history: History) -> str | None:
    return next((s for s in (stop(history) for stop in plan.stop) if s), None)


def _facts(exchange: Exchange, cost: Cost, question: Tree, pick: Pick, replies: Replies) -> dict[str, Any]:
    down = tree_bytes(question) + cost.each.down
    said = {k: v for k, v in replies.facts.items() if k != "elapsed"}
    # What single parties noted is told as their mean; their reports are the select's.
    each = {k.partition("/")[2]: float(np.mean(v)) for k, v in replies.each.items() if k.startswith("fact/") and len(v)}
    each |= {"age": float(np.mean(replies.each["age"]))} if len(replies.each.get("age", ())) else {}
    short = {"needed": exchange.wire.total.min_cohort} if len(replies) < exchange.wire.total.min_cohort else {}
    return {
        "asked": len(pick.cohort),
        "answered": len(replies),
        "bytes_up": cost.each.up * (came := said.get("answered", len(replies))) + cost.holders.up * bool(came),
        "bytes_down": down * said.get("asked", len(pick.cohort)) + cost.holders.down,
        **each,
        **short,
        **said,
    }


async def _evaluate(plan: Federate, run: _Run, parties: Cohort, world: World) -> _Run:
    """Evaluate where the plan says and note what was seen."""
    if plan.evaluation is None:
        return run._replace(unseen=False)
    history = run.history
    body: dict[str, Any] = {"broadcast": plan.method.broadcast(run.state), "t": history.t}
    seen: dict[str, float] = {}
    for split in plan.splits:
        if split == "local" and plan.evaluating is not None:
            total, replies = await plan.evaluating.gather(parties, body, None)
            spread: dict[str, object] = {"parties": len(replies)}
            try:
                context = DecodeContext(len(replies), world, history.t)
                metrics = _hidden_values(plan, plan.evaluating, plan.evaluation, total, replies, context)
            except Unevaluated as reason:
                await note("unevaluated", round=history.rounds, split=split, why=str(reason))
                continue
        else:
            replies = await ask(parties if split == "local" else np.arange(plan.parts), f"evaluate/{split}", body)
            if not len(replies):
                continue
            metrics, spread = summarise(replies, plan.evaluation, plan.declared if split == "local" else None)
        seen |= {f"{split}.{name}": value for name, value in metrics.items()}
        told = ("seconds", "compile", "died", "bytes_up", "bytes_down")
        spent = _evaluation_bytes(plan, replies) if split == "local" else {}
        spent |= {name: replies.facts[name] for name in told if name in replies.facts}
        await note("evaluation", round=history.rounds, split=split, **metrics, **spread, **spent)
    curves = {m: (*history.curves.get(m, ()), (history.rounds, v)) for m, v in seen.items()}
    return run._replace(history=replace(history, curves={**history.curves, **curves}), unseen=False)


def _hidden_values(
    plan: Federate,
    exchange: Exchange,
    evaluation: Evaluation,
    total: Array,
    replies: Replies,
    context: DecodeContext,
) -> dict[str, float]:
    """Read the total of a hidden sum over own test data."""
    if not len(replies):
        raise Unevaluated(str(replies.facts.get("aborted", "nobody answered")))
    sums = exchange.codec.decode(total, {}, context).x
    return total_values(sums, evaluation, None if plan.declared is None else plan.declared[replies.parties])


def _evaluation_bytes(plan: Federate, replies: Replies) -> dict[str, Any]:
    each, holders = plan.evaluation_cost
    return {"bytes_up": each.up * len(replies) + holders.up, "bytes_down": each.down * len(replies) + holders.down}


def _memory(run: _Run) -> Tree:
    history = run.history
    curves = {name: np.asarray(curve, np.float64) for name, curve in history.curves.items()}
    channels = {phase: dict(tree) for phase, tree in run.channels.items() if tree}
    some: dict[str, Any] = {
        "update_norm": history.update_norm,
        "channel": channels or None,
        "select": dict(run.select) or None,
        "used": None if run.used is None else _written(run.used),
        "drawn": run.drawn,
    }
    kept = {name: value for name, value in some.items() if value is not None}
    counts = {"t": history.t, "rounds": history.rounds, "elapsed": history.elapsed}
    middle: dict[str, Any] = {} if run.begun is run.state else {"begun": run.begun}  # of a round
    middle |= {} if run.cohort is None or not middle else {"cohort": run.cohort}
    middle |= {"unseen": True} if run.unseen else {}
    return {"state": run.state, "curves": curves, **counts, **kept, **middle}


def _unused(plan: Federate) -> Array | None:
    return np.full(len(plan.sizes), UNUSED, np.int32) if plan.remembers else None


def _written(used: Array) -> dict[str, Array]:
    """Name only those whose answers were used: a checkpoint does not grow with all who could take part."""
    parties = np.flatnonzero(used != UNUSED)
    return {"parties": parties, "t": used[parties]}


def _restored(plan: Federate, memory: Tree) -> _Run:
    curves = {name: tuple((int(t), float(v)) for t, v in curve) for name, curve in memory.get("curves", {}).items()}
    moved = float(memory["update_norm"]) if "update_norm" in memory else None
    better = plan.evaluation.better if plan.evaluation else {}
    history = History(int(memory["t"]), int(memory["rounds"]), float(memory["elapsed"]), moved, curves, better)
    channels = {phase: memory.get("channel", {}).get(phase, {}) for phase in plan.exchanges}
    used = _unused(plan)
    if used is not None and "used" in memory:
        used[np.asarray(memory["used"]["parties"])] = memory["used"]["t"]
    return _Run(
        memory["state"], history, channels, memory.get("select", {}), used, memory.get("cohort"),
        memory.get("begun", memory["state"]), unseen="unseen" in memory, drawn=memory.get("drawn"),
    )  # fmt: skip
