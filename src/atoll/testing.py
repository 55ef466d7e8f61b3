"""Public checks: the laws that every part must obey, Atoll's own and yours. Each raises AssertionError."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.effects import Ask, Note, Replies, Runtime, drive
from atoll.core.keys import rng
from atoll.core.method import History, Method, Population, RoundInfo, Select, State
from atoll.core.party import Group, Handler, Memory, Remembered, Samples
from atoll.core.program import Program
from atoll.core.tree import Array, Tree, flatten, unflatten
from atoll.core.wire import Codec, Combine, DecodeContext, EncodeContext, Mismatch, Rule, Setting, Stage, Wire, chain
from atoll.core.world import World
from atoll.data.federated import Federated, Silos
from atoll.data.roles import RoleData

if TYPE_CHECKING:
    from atoll.runtimes.roles.simulate import RoleRun

TOLERANCE = 1e-5


def check_part(part: object) -> None:
    """A part is a frozen record: it prints, compares, hashes, copies, and cannot be changed.

    Args:
        part: the part.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_part
        >>> check_part(atoll.Clip(1.0))
    """
    _check_record(part)
    assert part == copy.deepcopy(part), f"{part!r} does not equal its copy"
    assert hash(part) == hash(copy.deepcopy(part)), f"{part!r} and its copy have different hashes"


def _check_record(part: object) -> None:
    """What is bound to data is a frozen record, too; it holds arrays, which do not compare."""
    assert is_dataclass(part), f"{type(part).__name__} is no dataclass: parts are frozen dataclasses"
    frozen: bool = type(part).__dict__["__dataclass_params__"].frozen
    assert frozen, f"{type(part).__name__} can be changed: freeze it"
    assert type(part).__name__ in repr(part), f"{part!r} does not print its name"
    assert (type(part).__doc__ or "").strip(), f"{type(part).__name__} has no docstring: its first line is its purpose"


def check_stage(
    stage: Stage, wire: Wire | None = None, *, first: tuple[Stage, ...] = (), lossless: bool = False, seed: int = 0
) -> Wire:
    """A stage keeps what its wire claims, is pure, answers for a group as for singles, and decodes what it encodes.

    Args:
        stage: the stage.
        wire: the wire before it. Default: that of a small model.
        first: stages that it needs before it. Default: none.
        lossless: whether decoding the sum of encoded rows must give their (weighted) mean, or their sum, up to
            rounding. Default false.
        seed: of the vectors that are drawn. Default 0.

    Returns:
        The wire after the stage.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_stage
        >>> check_stage(atoll.Ring(), first=(atoll.Clip(1.0),)).row.dtype
        'uint32'
    """
    check_part(stage)
    before = wire or Wire.of(size=12, cohort=7, shapes=((4, 3),))
    whole = chain(*first, stage)
    after, codec = whole(before)
    assert whole(before)[0] == after, "the same wire gave two different wires"
    for scale in (1e-3, 1.0, 1e4):
        rows, about = _rows(before, scale, seed)
        _check_encoding(codec, after, rows, about)
        _check_sum(codec, before, rows, about)
        if lossless:
            _check_decoding(codec, before, after, rows, about)
    if after.l2 is not None:
        _check_bound(codec, before, after, seed)
    return after


def _rows(wire: Wire, scale: float, seed: int) -> tuple[Array, EncodeContext]:
    generator = rng(seed, "check_stage", int(scale * 1000))
    rows = (generator.normal(size=(wire.total.cohort, wire.row.size)) * scale).astype(wire.row.dtype)
    weight = generator.integers(1, 50, wire.total.cohort).astype(wire.row.dtype)
    who = np.arange(wire.total.cohort)
    return rows, EncodeContext(weight, World(seed), 3, who, loss=np.abs(weight) / 100)


def _check_encoding(codec: Codec, after: Wire, rows: Array, about: EncodeContext) -> None:
    given = rows.copy()
    out, memory, _ = codec.encode(rows, {}, about)
    assert np.array_equal(rows, given), "encode changed its argument"
    assert out.shape == (len(rows), after.row.size), (
        f"the wire says {after.row.size} numbers, encode gave {out.shape[1:]}"
    )
    assert out.dtype == after.row.dtype, f"the wire says {after.row.dtype}, encode gave {out.dtype}"
    layout = after.row
    for row in out if layout.encoding else ():
        assert layout.encoding is not None
        packed = layout.encoding.pack(row)
        assert len(packed) == layout.bytes, f"the wire says {layout.bytes} bytes, a row takes {len(packed)}"
        assert np.array_equal(layout.encoding.unpack(packed, layout.size), row), "a row is not read as it was written"
    again = codec.encode(rows, {}, about).x
    assert np.array_equal(out, again), "encode is not pure: the same rows gave two results"
    once, memory, _ = codec.encode(rows, memory, about)  # with what it remembers from the first time
    for k in range(len(rows)):
        assert about.loss is not None
        one = EncodeContext(
            about.weight[k : k + 1], about.world, about.t, about.me[k : k + 1], loss=about.loss[k : k + 1]
        )
        single, kept, _ = codec.encode(rows[k : k + 1], {}, one)
        assert np.allclose(single[0], out[k], rtol=TOLERANCE, atol=0), "a group is not encoded as its singles are"
        single = codec.encode(rows[k : k + 1], kept, one).x
        assert np.allclose(single[0], once[k], rtol=TOLERANCE, atol=0), "memory of a group is not that of its singles"
    for name, leaf in memory.items():
        assert len(leaf) == len(rows), f"memory '{name}' has no axis of parties"
    assert bool(memory) <= codec.remembers, "encode gives memory: say Codec(…, remembers=True)"


def _decoded(codec: Codec, rows: Array, about: EncodeContext) -> Array:
    out = codec.encode(rows, {}, about).x
    whole = np.issubdtype(out.dtype, np.integer)
    total = out.sum(0, dtype=out.dtype) if whole else out.sum(0, dtype=np.float64).astype(out.dtype)
    return codec.decode(total, codec.start, DecodeContext(len(rows), about.world, about.t)).x


def _check_sum(codec: Codec, before: Wire, rows: Array, about: EncodeContext) -> None:
    got = _decoded(codec, rows, about)
    assert got.shape == (before.row.size,), f"a sum of vectors of {before.row.size} numbers is decoded to {got.shape}"
    assert np.array_equal(got, _decoded(codec, rows, about)), "decode is not pure: the same sum gave two results"


def _check_decoding(codec: Codec, before: Wire, after: Wire, rows: Array, about: EncodeContext) -> None:
    got = _decoded(codec, rows, about)
    weight = about.weight if after.weighted else np.ones(len(rows))
    expect = (rows * weight[:, None]).sum(0)
    if after.mean and not before.mean:
        expect = expect / weight.sum()
    slack = 100 * np.finfo(before.row.dtype).eps * np.abs(rows).max() * len(rows)
    assert np.allclose(got, expect, rtol=1e-4, atol=slack), "decode does not undo encode"


def _check_bound(codec: Codec, before: Wire, after: Wire, seed: int) -> None:
    for scale in (0.0, 1e-6, 1.0, 1e6, 1e30):
        rows, about = _rows(before, 1.0, seed)
        rows = rows * rows.dtype.type(scale)
        rows[0], rows[1] = np.nan, np.inf
        out = codec.encode(rows, {}, about).x
        around_zero = out.view(out.dtype.name[1:]) if np.issubdtype(out.dtype, np.unsignedinteger) else out
        length = np.linalg.norm(np.asarray(around_zero, np.float64), axis=1)
        assert after.l2 is not None
        assert (length <= after.l2).all(), f"the wire says no longer than {after.l2}, a row has {length.max()}"


def check_select(select: Select, parties: int = 24, *, seed: int = 0) -> None:
    """A select asks only who is online, each once and in order, and depends on round, history and seed only.

    Args:
        select: the select.
        parties: number of parties to select from. Default 24.
        seed: of the draws. Default 0.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_select
        >>> check_select(atoll.Count(5))
    """
    check_part(select)
    assert 1 <= select.expected(parties) <= parties, f"of {parties} parties it expects {select.expected(parties)}"
    rate = select.sampling(parties).rate
    assert rate is None or 0 <= rate <= 1, f"a rate is a probability, this one is {rate}"
    sizes = rng(seed, "check_select").integers(1, 50, parties)
    memory, world = select.start(Population(sizes)), World(seed)
    everybody = np.arange(parties)
    asked = set[int]()
    for t in range(40):
        for online in (everybody, everybody[everybody % 8 > 0], everybody[:0]):
            population = Population(sizes, None if online is everybody else online)
            cohort, goal = select.pick(t, population, History(t), memory, world)
            assert np.isin(cohort, online).all(), "somebody is asked who is not online"
            assert (np.diff(cohort) > 0).all(), "a cohort is not in order, or holds somebody twice"
            assert goal is None or goal <= len(cohort), "more answers are enough than parties are asked"
            again = select.pick(t, population, History(t), memory, world)
            assert np.array_equal(again.cohort, cohort), "pick is not pure: one round has two cohorts"
            assert again.goal == goal, "pick is not pure: one round has two numbers of answers"
            asked |= set(cohort.tolist())
        memory = select.learn(memory, select.pick(t, Population(sizes), History(t), memory, world), Replies(everybody))
    assert asked, "in forty rounds nobody is asked"


def check_rule(rule: Rule, n: int = 9, d: int = 40, *, seed: int = 0) -> None:
    """A rule does not depend on the order of rows, returns the row that all are equal to, and is pure.

    Args:
        rule: the rule.
        n: number of rows. Default 9.
        d: numbers of a row. Default 40.
        seed: of the rows that are drawn. Default 0.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_rule
        >>> check_rule(atoll.Median())
    """
    check_part(rule)
    rows = rng(seed, "check_rule").normal(size=(n, d)).astype(np.float32)
    given = rows.copy()
    out = rule(rows)
    assert out.shape == (d,), f"a rule gives one vector of {d}, this one {out.shape}"
    assert out.dtype == rows.dtype, f"a rule keeps the type of numbers, this one gave {out.dtype}"
    assert np.array_equal(rows, given), "the rule changed its argument"
    order = rng(seed, "check_rule", "order").permutation(n)
    assert np.allclose(rule(rows[order]), out, atol=1e-5), "the rule depends on the order of rows"
    same = np.repeat(rows[:1], n, 0)
    assert np.allclose(rule(same), rows[0], atol=1e-5), "for equal rows a rule returns the row"


@dataclass(frozen=True)
class Echo(Handler):
    """A handler that answers with the row of the body that has the party's number; it remembers how often it was asked.

    Args:
        split: the samples that it is given. Default "train".
        group_size: parties in one call, 1 or more. Default 3.

    Example:
        >>> from atoll.testing import Echo
        >>> Echo().group_size
        3
    """

    split: str = "train"
    group_size: int = 3

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        asked = group.memory.get("asked", 0.0) + 1
        return {"vector": body["rows"][group.me], "asked": asked, "me": group.me}, {"asked": asked}


class Loopback:
    """The smallest runtime: it asks one handler in this process. For checks and for teaching.

    Args:
        handlers: for each question, the handler that answers it.
        samples: the samples of the parties.
        absent: parties that never answer. Default: none.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> from atoll.core.effects import ask, drive
        >>> from atoll.core.party import PerParty
        >>> from atoll.testing import Loopback
        >>> data = atoll.data.load("wine").split(5, seed=0)
        >>> async def rows(parties):
        ...     replies = await ask(np.arange(parties), "count", {"t": 0}, fold=("n",))
        ...     return int(replies.sums["n"])
        >>> handlers = {"count": PerParty(lambda body, x, y, group: {"n": len(x)})}
        >>> drive(rows(len(data)), Loopback(handlers, data.train)) == len(data.train.x)
        True
    """

    def __init__(self, handlers: Mapping[str, Handler], samples: Samples, *, absent: tuple[int, ...] = ()) -> None:
        self.handlers, self.samples, self.absent = handlers, samples, absent
        self.memory: dict[int, Mapping[str, Array]] = {}
        self.notes: list[Note] = []
        self.kept: list[Tree] = []

    def ask(self, ask: Ask) -> Replies:
        who = np.array([p for p in np.asarray(ask.to).tolist() if p not in self.absent], dtype=int)
        who = np.sort(who[: ask.goal] if ask.goal is not None else who)
        answers = []
        for p in who.tolist():
            leaves = {name: leaf[None] for name, leaf in self.memory.get(p, {}).items()}
            memory = Remembered(np.array([p in self.memory]), leaves)
            group = Group(np.array([p]), self.samples, np.array([p]), World(), int(ask.body["t"]), memory=memory)
            reply, after = self.handlers[ask.what](ask.body, group)
            if after:
                self.memory[p] = {name: leaf[0] for name, leaf in after.items()}
            answers.append(reply)
        if not answers:
            return Replies(who)
        each = {name: np.concatenate([np.asarray(a[name]) for a in answers]) for name in answers[0]}
        from atoll.runtimes.local.worker import sum_type

        folded = {name: each.pop(name) for name in ask.fold}
        sums = {name: np.add.reduce(rows, 0, dtype=sum_type(rows, wide=ask.wide)) for name, rows in folded.items()}
        return Replies(who, each, sums)

    def together(self, asks: tuple[Ask, ...]) -> tuple[Replies, ...]:
        return tuple(self.ask(ask) for ask in asks)

    def checkpoint(self, memory: Tree) -> None:
        self.kept.append(memory)

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def settle(self, used: Array) -> None:
        self.used = used


def _silos(n: int) -> Silos:
    return Silos(np.zeros((n, 1), np.float32), np.zeros(n, np.int32), np.arange(n + 1))


def check_combine(
    combine: Combine,
    wire: Wire | None = None,
    *,
    seed: int = 0,
    absent: tuple[tuple[int, ...], ...] = ((), (2,), (0, 4)),
) -> None:
    """A combine of n equal rows stands for n times the row, takes only those who answer, and says who sees what.

    Parties 0, 1, 2, 4 and 7 are asked. In a ring the sum is exact. Where too few answered for a combine to open a sum,
    it says that nobody did.

    Args:
        combine: the combine.
        wire: the wire before it. Default: that of a small model.
        seed: of the rows that are drawn. Default 0.
        absent: for each trial, the parties that do not answer. Default: none; 2; 0 and 4.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_combine
        >>> check_combine(atoll.Each(atoll.Median()))
    """
    check_part(combine)
    wire = wire or Wire.of(size=6, cohort=5, divisor="answers")
    combine.check(wire)
    gather = combine.gather(wire, Setting("train", World(seed)))
    generator = rng(seed, "check_combine")
    if wire.ring is None:
        row = generator.normal(size=wire.row.size).astype(wire.row.dtype)
    else:
        row = generator.integers(
            -int(wire.ring.value_bound), int(wire.ring.value_bound), wire.row.size, endpoint=True
        ).astype(wire.row.dtype)
    rows = np.repeat(row[None], 8, 0)
    for gone in absent:
        runtime = Loopback({"train/contribute": Echo()}, _silos(8), absent=gone)
        cohort = np.array([0, 1, 2, 4, 7])
        vector, replies = drive(gather(cohort, {"rows": rows, "t": 0}, None), runtime)
        there = [p for p in cohort.tolist() if p not in gone]
        if "aborted" in replies.facts:
            assert not vector.any() and not len(replies), "nothing was opened, and yet there is something"  # noqa: PT018
            continue
        assert replies.parties.tolist() == there, "the combine does not say who answered"
        if wire.ring is None:
            assert np.allclose(vector, len(there) * row, rtol=1e-4, atol=1e-5), "equal rows do not add up"
        else:
            exact = np.add.reduce(rows[there], axis=0, dtype=rows.dtype)
            assert np.array_equal(vector, exact), "the sum in the ring is not exact"
    assert {"server", "other parties", "network"} <= set(combine.seen(wire, World(seed))), "seen() leaves somebody out"


def check_method(method: Method, data: Federated, *, seed: int = 0, tolerance: float = TOLERANCE) -> None:
    """A method answers for a group as for singles, is pure, keeps to its schema, and its state survives a round.

    Args:
        method: the method.
        data: a small federation.
        seed: of the first state. Default 0.
        tolerance: largest relative difference between a group and its parties one by one. Default 1e-5.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_method
        >>> check_method(atoll.FedSGD(atoll.models.softmax()), atoll.data.load("wine").split(5, seed=0))
    """
    from atoll.job.assemble import summary_of

    check_part(method)
    method, world = method.bind(summary_of(data)), World(seed)
    everybody = Population(data.train.sizes)
    state = method.init(world, everybody)
    _equal(state, method.init(world, everybody), "init is not a function of the seed")
    me = np.arange(min(len(data), 5))
    memory, asked = Remembered(np.zeros(len(me), bool)), list[str]()
    while not asked or (not method.complete(state) and len(asked) < 2 * len(method.phases)):
        group = Group(me, data.train, me, world, len(asked), memory=memory)
        asked.append(method.phase(state))
        state, memory = _check_ask(method, state, group, tolerance)
    said = " then ".join(asked)
    assert method.cycle in ((), tuple(asked)), f"a round asked {said}, and cycle says {' then '.join(method.cycle)}"
    broadcast = method.broadcast(state)
    if data.test is not None and method.evaluation is not None:
        sums = method.evaluate(broadcast, Group(np.arange(1), data.test, np.arange(1), world, 0, "test"))
        assert set(sums) == set(method.evaluation.sums), "evaluate gives the sums that are declared"
        assert np.asarray(sums["n"])[0] > 0
        values = method.evaluation.values({name: np.asarray(leaf)[0] for name, leaf in sums.items()})
        assert set(values) == set(method.evaluation.better), "each metric says whether high or low is good"


def _check_ask(method: Method, state: State, group: Group, tolerance: float) -> tuple[State, Remembered]:
    """Check one ask of a method in the phase that its state says; return the state and the memory after it."""
    broadcast, name, me = method.broadcast(state), method.phase(state), group.me
    phase, constant = method.phases[name], method.constant(state)
    group = replace(group, phase=name)
    if constant:
        group = replace(group, cache=tuple(method.prepare(constant, group)))
    given = method.client_update(broadcast, group)
    rows = flatten(given.vector, phase.schema)
    size = phase.schema.size
    assert rows.shape == (len(me), size), f"the schema says {size} numbers, client_update gave {rows.shape}"
    assert np.asarray(given.weight).shape == (len(me),), "client_update gives a weight for each party"
    assert bool(given.memory) <= method.remembers, "client_update gives memory: say `remembers = True`"
    for leaf in given.memory.values():
        assert len(leaf) == len(me), "memory has a row for each party"
    told = {leaf for leaf, _ in method.reports.leaves}
    assert set(given.reports) == told, f"it reports {set(given.reports)}, and declares {told}"
    _equal(method.client_update(broadcast, group).vector, given.vector, "client_update is not pure")
    for k in range(len(me)):
        single = method.client_update(broadcast, group.only(k))
        row = flatten(single.vector, phase.schema)[0]
        assert np.allclose(row, rows[k], rtol=tolerance, atol=tolerance), f"party {k} alone answers differently"
        for kept, value in single.memory.items():
            same = np.allclose(value[0], given.memory[kept][k], rtol=tolerance, atol=tolerance)
            assert same, f"party {k} alone remembers another '{kept}'"
    total = rows.mean(0) if phase.mean else rows.sum(0)
    info = RoundInfo(group.t, len(me), len(me), len(me), me)
    after = method.server_update(state, unflatten(total, phase.schema), info)
    assert set(after) == set(state), "server_update gives another kind of state than init"
    _equal(method.broadcast(state), broadcast, "server_update changed the state it was given")
    assert method.phase(after) in method.phases, f"there is no phase {method.phase(after)!r}"
    kept_leaves = {**group.memory.leaves, **given.memory}
    return after, Remembered(np.ones(len(me), bool), kept_leaves) if kept_leaves else group.memory


def _equal(a: Tree, b: Tree, sentence: str) -> None:
    for name in a:
        if isinstance(a[name], Mapping):
            _equal(a[name], b[name], sentence)
        else:
            assert np.array_equal(np.asarray(a[name]), np.asarray(b[name])), f"{sentence} ('{name}')"


def check_runtime(
    make: Callable[[Mapping[str, Handler], Samples], Runtime], *, parties: int = 11, exact: bool = True
) -> None:
    """A runtime asks everybody once, gives answers in order, folds bit for bit alike, and remembers for parties.

    Args:
        make: make(handlers, samples) returns a runtime in which everybody answers.
        parties: number of parties. Default 11.
        exact: whether a question that needs some answers gets exactly so many. Where parties answer by themselves more
            may have come. Default true.

    Example:
        >>> from atoll.testing import Loopback, check_runtime
        >>> check_runtime(Loopback)
    """
    runtime = make({"contribute": Echo()}, _silos(parties))
    rows = rng(0, "check_runtime").normal(size=(parties, 5)).astype(np.float32)
    who = np.array([p for p in range(parties) if p % 4 != 2])
    body = {"rows": rows, "t": 0}
    plain = runtime.ask(Ask(who, "contribute", body))
    assert plain.parties.tolist() == who.tolist(), "not everybody answered, or not in order"
    assert np.array_equal(plain.each["vector"], rows[who]), "answers belong to other parties"
    assert np.array_equal(plain.each["me"], who)
    folded = runtime.ask(Ask(who, "contribute", body, fold=("vector",)))
    assert "vector" not in folded.each, "a folded leaf comes as a sum only"
    assert np.allclose(folded.sums["vector"], rows[who].sum(0), rtol=1e-5, atol=1e-5), "the fold is no sum"
    again = runtime.ask(Ask(who, "contribute", body, fold=("vector",)))
    assert np.array_equal(again.sums["vector"], folded.sums["vector"]), "the fold gave other bits the second time"
    assert (plain.each["asked"] == 1).all(), "a party's memory does not start empty"
    assert (folded.each["asked"] == 2).all(), "a party's memory is lost between two questions"
    assert (again.each["asked"] == 3).all(), "a party's memory is lost between two questions"
    others = np.setdiff1d(np.arange(parties), who)
    assert (runtime.ask(Ask(others, "contribute", body)).each["asked"] == 1).all(), "parties broadcast a memory"
    few = runtime.ask(Ask(who, "contribute", body, goal=3))
    assert len(few) == 3 or (not exact and len(few) > 3), "`enough` answers end the wait"
    assert set(few) <= set(who.tolist())


def check_refusal(assembly: Callable[[], object], *words: str) -> None:
    """Something that makes no sense is refused in one sentence that contains these words.

    Args:
        assembly: a function without arguments that must raise.
        *words: what the sentence must contain.

    Example:
        >>> import atoll
        >>> from atoll.testing import check_refusal
        >>> channel = atoll.Channel([atoll.Weigh(), atoll.Clip(1.0)])
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), channel=channel)
        >>> check_refusal(lambda: atoll.assemble(job, atoll.data.load("wine").split(5, seed=0)), "put Clip() first")
    """
    try:
        assembly()
    except Mismatch as refusal:
        sentence = str(refusal)
        assert "\n" not in sentence, "a refusal is one sentence"
        for word in words:
            assert word in sentence, f"'{word}' is not in: {sentence}"
        return
    raise AssertionError("this was not refused")


def check_program(
    program: Program, data: Mapping[str, RoleData | Federated], *, rounds: int = 1, seed: int = 0
) -> RoleRun:
    """A program asks what it declares, seals what it says it seals, and gives the same result everywhere.

    Of every program: answers are computed twice, and all but what is sealed or secret must not differ; a role of many
    parties answers for a group as for each of them alone; every message is written and read as on the network; a run
    that is resumed at any checkpoint is bit-for-bit reproducible.

    A program with roles is also run with a session that is lost. A program whose parties hold splits of samples, as
    `atoll.assemble(job, data).program` does, is also run with an answer that is lost: it folds only what is declared,
    and settles only answers that it got.

    Args:
        program: the program.
        data: for each role, what it holds (a role of many parties: a federation). A role that holds nothing can be left
            out.
        rounds: number of rounds, 1 or more. Default 1.
        seed: of all public randomness. Default 0.

    Returns:
        The run of the simulator.

    Example:
        >>> import atoll
        >>> import numpy as np
        >>> from atoll.data.roles import columns
        >>> from atoll.testing import check_program
        >>> x, ids = np.random.default_rng(0).normal(size=(6, 2)), np.arange(6)
        >>> data = {"A": columns(x[:, :1], ids=ids), "B": columns(x[:, 1:], ids=ids)}
        >>> check_program(atoll.JointMoments(), data).reason
        'its only round is done'
        >>> parties = atoll.data.load("wine").split(5, seed=0)
        >>> job = atoll.Job(atoll.FedSGD(atoll.models.softmax()))
        >>> check_program(atoll.assemble(job, parties).program, {"party": parties}, rounds=2).reason
        'all 2 rounds done'
    """
    from atoll.runtimes.local.check import check_federation, federation_of
    from atoll.runtimes.roles.check import check_roles, run_of

    _check_record(program)
    assert all(role.about for role in program.roles.values()), "every role says what it is about"
    assert program.seen(), "seen() says nothing: say who learns what, and what is assumed"
    if (parties := federation_of(program, data, rounds)) is None:
        check_part(program)
        return check_roles(program, data, rounds, seed)
    return run_of(program, check_federation(program, parties, World(seed, watched=False)), rounds, seed)


__all__ = [
    "Echo", "Loopback", "check_combine", "check_method", "check_part", "check_program", "check_refusal", "check_rule",
    "check_runtime", "check_select", "check_stage",
]  # fmt: skip
