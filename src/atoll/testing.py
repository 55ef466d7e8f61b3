"""Public checks: the laws that every part must obey, Atoll's own and yours. Each raises AssertionError."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np

from atoll.core.effects import Ask, Note, Replies, Runtime, drive
from atoll.core.keys import rng
from atoll.core.method import History, Method, Roster, Select
from atoll.core.party import Group, Handler, Memory, Samples
from atoll.core.tree import Array, Tree, flatten, unflatten
from atoll.core.wire import About, Codec, Combine, Heard, Mismatch, Rule, Stage, Wire, chain
from atoll.data.federated import Federated, Silos

TOLERANCE = 1e-5


def check_part(part: Any) -> None:
    """A part is a frozen record: it prints, compares, hashes, copies, and cannot be changed."""
    assert is_dataclass(part), f"{type(part).__name__} is no dataclass: parts are frozen dataclasses"
    frozen: bool = type(part).__dict__["__dataclass_params__"].frozen
    assert frozen, f"{type(part).__name__} can be changed: freeze it"
    assert part == copy.deepcopy(part), f"{part!r} does not equal its copy"
    assert hash(part) == hash(copy.deepcopy(part)), f"{part!r} and its copy have different hashes"
    assert type(part).__name__ in repr(part), f"{part!r} does not print its name"
    assert (type(part).__doc__ or "").strip(), f"{type(part).__name__} has no docstring: its first line is its purpose"


def check_stage(
    stage: Stage, wire: Wire | None = None, *, first: tuple[Stage, ...] = (), lossless: bool = False, seed: int = 0
) -> Wire:
    """A stage keeps what its wire claims, is pure, answers for a group as for singles, and decodes what it encodes.

    `first` are stages that it needs before it: `check_stage(Ring(), first=(Clip(1.0),))`.
    `lossless`: decoding the sum of encoded rows gives their (weighted) mean, or their sum, exactly up to rounding.
    """
    check_part(stage)
    before = wire or Wire(size=12, cohort=7, shapes=((4, 3),))
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


def _rows(wire: Wire, scale: float, seed: int) -> tuple[Array, About]:
    generator = rng(seed, "check_stage", int(scale * 1000))
    rows = (generator.normal(size=(wire.cohort, wire.size)) * scale).astype(wire.dtype)
    weight = generator.integers(1, 50, wire.cohort).astype(wire.dtype)
    return rows, About(weight, seed, 3, np.arange(wire.cohort))


def _check_encoding(codec: Codec, after: Wire, rows: Array, about: About) -> None:
    given = rows.copy()
    out, memory = codec.encode(rows, {}, about)
    assert np.array_equal(rows, given), "encode changed its argument"
    assert out.shape == (len(rows), after.size), f"the wire says {after.size} numbers, encode gave {out.shape[1:]}"
    assert out.dtype == after.dtype, f"the wire says {after.dtype}, encode gave {out.dtype}"
    for row in out if after.form else ():
        packed = after.form.pack(row)  # type: ignore[union-attr]
        assert len(packed) == after.bytes, f"the wire says {after.bytes} bytes, a row takes {len(packed)}"
        assert np.array_equal(after.form.unpack(packed, after.size), row), "a row is not read as it was written"  # type: ignore[union-attr]
    again, _ = codec.encode(rows, {}, about)
    assert np.array_equal(out, again), "encode is not pure: the same rows gave two results"
    once, memory = codec.encode(rows, memory, about)  # with what it remembers from the first time
    for k in range(len(rows)):
        one = About(about.weight[k : k + 1], about.seed, about.t, about.me[k : k + 1])
        single, kept = codec.encode(rows[k : k + 1], {}, one)
        assert np.allclose(single[0], out[k], rtol=TOLERANCE, atol=0), "a group is not encoded as its singles are"
        single, _ = codec.encode(rows[k : k + 1], kept, one)
        assert np.allclose(single[0], once[k], rtol=TOLERANCE, atol=0), "memory of a group is not that of its singles"
    for name, leaf in memory.items():
        assert len(leaf) == len(rows), f"memory '{name}' has no axis of parties"


def _decoded(codec: Codec, rows: Array, about: About) -> Array:
    out, _ = codec.encode(rows, {}, about)
    whole = np.issubdtype(out.dtype, np.integer)
    total = out.sum(0, dtype=out.dtype) if whole else out.sum(0, dtype=np.float64).astype(out.dtype)
    return codec.decode(total, codec.start, Heard(len(rows), 0, 3))[0]


def _check_sum(codec: Codec, before: Wire, rows: Array, about: About) -> None:
    got = _decoded(codec, rows, about)
    assert got.shape == (before.size,), f"a sum of vectors of {before.size} numbers is decoded to {got.shape}"
    assert np.array_equal(got, _decoded(codec, rows, about)), "decode is not pure: the same sum gave two results"


def _check_decoding(codec: Codec, before: Wire, after: Wire, rows: Array, about: About) -> None:
    got = _decoded(codec, rows, about)
    weight = about.weight if after.weighted else np.ones(len(rows))
    expect = (rows * weight[:, None]).sum(0)
    if after.mean and not before.mean:
        expect = expect / weight.sum()
    slack = 100 * np.finfo(before.dtype).eps * np.abs(rows).max() * len(rows)
    assert np.allclose(got, expect, rtol=1e-4, atol=slack), "decode does not undo encode"


def _check_bound(codec: Codec, before: Wire, after: Wire, seed: int) -> None:
    for scale in (0.0, 1e-6, 1.0, 1e6, 1e30):
        rows, about = _rows(before, 1.0, seed)
        rows = rows * rows.dtype.type(scale)
        rows[0], rows[1] = np.nan, np.inf
        out, _ = codec.encode(rows, {}, about)
        around_zero = out.view(out.dtype.name[1:]) if np.issubdtype(out.dtype, np.unsignedinteger) else out
        length = np.linalg.norm(np.asarray(around_zero, np.float64), axis=1)
        assert after.l2 is not None
        assert (length <= after.l2).all(), f"the wire says no longer than {after.l2}, a row has {length.max()}"


def check_select(select: Select, parties: int = 24, *, seed: int = 0) -> None:
    """A select asks only who is online, each once and in order, and depends on round, history and seed only."""
    check_part(select)
    assert 1 <= select.expected(parties) <= parties, f"of {parties} parties it expects {select.expected(parties)}"
    assert select.rate is None or 0 <= select.rate <= 1, f"a rate is a probability, this one is {select.rate}"
    sizes = rng(seed, "check_select").integers(1, 50, parties)
    history = History(served=rng(seed, "check_select", "served").integers(0, 5, parties))
    everybody = np.arange(parties)
    asked = set[int]()
    for t in range(40):
        for online in (everybody, everybody[everybody % 8 > 0], everybody[:0]):
            roster = Roster(sizes, None if online is everybody else online)
            cohort, enough = select.pick(t, roster, history, seed)
            assert np.isin(cohort, online).all(), "somebody is asked who is not online"
            assert (np.diff(cohort) > 0).all(), "a cohort is not in order, or holds somebody twice"
            assert enough is None or enough <= len(cohort), "more answers are enough than parties are asked"
            again = select.pick(t, roster, history, seed)
            assert np.array_equal(again.cohort, cohort), "pick is not pure: one round has two cohorts"
            assert again.enough == enough, "pick is not pure: one round has two numbers of answers"
            asked |= set(cohort.tolist())
    assert asked, "in forty rounds nobody is asked"


def check_rule(rule: Rule, n: int = 9, d: int = 40, *, seed: int = 0) -> None:
    """A rule does not care for the order of rows, returns the row that all are equal to, and is pure."""
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
class Echo:
    """A handler that answers with the row of the body that has the party's number; remembers how often it was asked."""

    room: str = "train"
    width: int = 3

    def __call__(self, body: Tree, group: Group) -> tuple[Tree, Memory]:
        asked = group.memory.get("asked", np.zeros(len(group))) + 1
        return {"vector": body["rows"][group.me], "asked": asked, "me": group.me}, {"asked": asked}


class Loopback:
    """The smallest runtime: asks one handler in this process. For checks and for teaching."""

    def __init__(self, handlers: Mapping[str, Handler], samples: Samples, *, absent: tuple[int, ...] = ()) -> None:
        self.handlers, self.samples, self.absent = handlers, samples, absent
        self.memory: dict[int, Mapping[str, Array]] = {}
        self.notes: list[Note] = []
        self.kept: list[Tree] = []

    def ask(self, ask: Ask) -> Replies:
        who = np.array([p for p in np.asarray(ask.to).tolist() if p not in self.absent], dtype=int)
        who = np.sort(who[: ask.enough] if ask.enough is not None else who)
        answers = []
        for p in who.tolist():
            memory = {name: leaf[None] for name, leaf in self.memory.get(p, {}).items()}
            group = Group(np.array([p]), self.samples, np.array([p]), 0, int(ask.body["t"]), memory)
            reply, after = self.handlers[ask.what](ask.body, group)
            self.memory[p] = {name: leaf[0] for name, leaf in after.items()}
            answers.append(reply)
        if not answers:
            return Replies(who)
        each = {name: np.concatenate([np.asarray(a[name]) for a in answers]) for name in answers[0]}
        sums = {name: np.add.reduce(each[name], 0, dtype=each.pop(name).dtype) for name in ask.fold}
        return Replies(who, each, sums)

    def keep(self, memory: Tree) -> None:
        self.kept.append(memory)

    def note(self, note: Note) -> None:
        self.notes.append(note)


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

    Parties 0, 1, 2, 4 and 7 are asked; `absent` lists who of them does not answer, one trial each. In a ring the sum is
    exact. Where too few answered for a combine to open a sum it says that nobody did.
    """
    check_part(combine)
    wire = wire or Wire(size=6, cohort=5, mean=True)
    gather = combine(wire)
    generator = rng(seed, "check_combine")
    if wire.ring is None:
        row = generator.normal(size=wire.size).astype(wire.dtype)
    else:
        row = generator.integers(-int(wire.peak), int(wire.peak), wire.size, endpoint=True).astype(wire.dtype)
    rows = np.repeat(row[None], 8, 0)
    for gone in absent:
        runtime = Loopback({"contribute": Echo()}, _silos(8), absent=gone)
        cohort = np.array([0, 1, 2, 4, 7])
        vector, replies = drive(gather(cohort, {"rows": rows, "t": 0}, None), runtime)
        there = [p for p in cohort.tolist() if p not in gone]
        if "unopened" in replies.facts:
            assert not vector.any() and not len(replies), "nothing was opened, and yet there is something"  # noqa: PT018
            continue
        assert replies.parties.tolist() == there, "the combine does not say who answered"
        if wire.ring is None:
            assert np.allclose(vector, len(there) * row, rtol=1e-4, atol=1e-5), "equal rows do not add up"
        else:
            exact = np.add.reduce(rows[there], axis=0, dtype=rows.dtype)
            assert np.array_equal(vector, exact), "the sum in the ring is not exact"
    assert {"server", "other parties", "network"} <= set(combine.seen(wire)), "seen() leaves somebody out"


def check_method(method: Method, data: Federated, *, seed: int = 0, tolerance: float = TOLERANCE) -> None:
    """A method answers for a group as for singles, is pure, keeps to its schema, and its state survives a round."""
    from atoll.job import bind

    check_part(method)
    method = bind(method, data)
    state = method.init(seed)
    _equal(state, method.init(seed), "init is not a function of the seed")
    assert "params" in state, "a state has 'params', from which runs and stops read"
    share = method.share(state)
    me = np.arange(min(len(data), 5))
    group = Group(me, data.train, me, seed, 0)
    vector, weight = method.task(share, group)
    rows = flatten(vector, method.schema)
    size = method.schema.size
    assert rows.shape == (len(me), size), f"the schema says {size} numbers, task gave {rows.shape}"
    assert np.asarray(weight).shape == (len(me),), "task gives a weight for each party"
    _equal(method.task(share, group).vector, vector, "task is not pure")
    for k in range(len(me)):
        single = flatten(method.task(share, group.only(k)).vector, method.schema)[0]
        assert np.allclose(single, rows[k], rtol=tolerance, atol=tolerance), f"party {k} alone answers differently"
    total = rows.mean(0) if method.mean else rows.sum(0)
    after = method.merge(state, unflatten(total, method.schema))
    assert set(after) == set(state), "merge gives another kind of state than init"
    assert np.asarray(after["params"]).shape == np.asarray(state["params"]).shape
    _equal(method.share(state), share, "merge changed the state it was given")
    if data.test is not None:
        scores = method.evaluate(share, Group(np.arange(1), data.test, np.arange(1), seed, 0))
        assert {"n", "loss"} <= set(scores), "evaluate gives at least n and loss"
        assert np.asarray(scores["n"])[0] > 0


def _equal(a: Tree, b: Tree, sentence: str) -> None:
    for name in a:
        if isinstance(a[name], Mapping):
            _equal(a[name], b[name], sentence)
        else:
            assert np.array_equal(np.asarray(a[name]), np.asarray(b[name])), f"{sentence} ('{name}')"


def check_runtime(
    make: Callable[[Mapping[str, Handler], Samples], Runtime], *, parties: int = 11, exact: bool = True
) -> None:
    """A runtime asks everybody once, gives answers in order, folds to the same bits, and remembers for parties.

    `make(handlers, samples)` gives a runtime in which everybody answers. Where parties answer by themselves more may
    have come when `enough` are there: that is not `exact`.
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
    assert (runtime.ask(Ask(others, "contribute", body)).each["asked"] == 1).all(), "parties share a memory"
    few = runtime.ask(Ask(who, "contribute", body, enough=3))
    assert len(few) == 3 or (not exact and len(few) > 3), "`enough` answers end the wait"
    assert set(few) <= set(who.tolist())


def check_refusal(assembly: Callable[[], object], *words: str) -> None:
    """Something that makes no sense is refused in one sentence that holds these words."""
    try:
        assembly()
    except Mismatch as refusal:
        sentence = str(refusal)
        assert "\n" not in sentence, "a refusal is one sentence"
        for word in words:
            assert word in sentence, f"'{word}' is not in: {sentence}"
        return
    raise AssertionError("this was not refused")


__all__ = [
    "Echo", "Loopback", "check_combine", "check_method", "check_part", "check_refusal", "check_rule",
    "check_runtime", "check_select", "check_stage",
]  # fmt: skip
