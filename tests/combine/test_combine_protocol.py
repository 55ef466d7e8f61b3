"""Every hidden sum has one protocol: in one process it gives the bits of the sum that a simulation adds up.

Questions and answers are held against what the sum declares of them, as they are over a network.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.combine.protocol import PartySession, fingerprint
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.question import Layout
from atoll.core.tree import Array
from atoll.core.wire import Combine, Gathered, Member, Setting, Wire, chain
from atoll.core.world import World
from atoll.crypto.keys import Abort, Identity
from atoll.crypto.lists import SignedLists
from atoll.crypto.secagg import SpentHere

PHASE = "model"
KEYS: dict[int, Identity] = {}  # made once: parties of many trials have them in common


def question(t: int) -> dict[str, Any]:
    return {"broadcast": {"params": np.arange(4.0) + t}, "t": t}


class Protocols:
    """The smallest runtime for hidden sums: parties of this process, each with its own side of the protocol.

    `drop` names the question that a party does not answer, without the phase. What parties decline is in `declined`.
    """

    def __init__(
        self, combine: Combine, wire: Wire, rows: Mapping[int, Array], world: World, drop: Mapping[int, str]
    ) -> None:
        self.rows, self.drop, self.declined, self.notes = rows, drop, dict[int, str](), list[Note]()
        for who in rows:
            KEYS.setdefault(who, Identity.new())
        members = {who: Member(f"party {who}", KEYS[who].public) for who in rows}
        setting = Setting(PHASE, world, b"agreed" * 5, lambda: members)
        self.gather = combine.gather(wire, setting)
        sessions = {who: PartySession(who, KEYS[who], 3, 100, SpentHere(), SignedLists()) for who in rows}
        self.clients = {who: combine.client(wire, setting, session) for who, session in sessions.items()}
        declared = combine.questions(wire, setting, Layout.of(question(0)), len(rows))
        self.questions = {one.name: one for one in declared}

    def round(self, t: int, goal: int | None = None) -> Gathered:
        return drive(self.gather(np.array(sorted(self.rows)), question(t), goal), self)

    def ask(self, ask: Ask) -> Replies:
        step, declared, found = ask.what.removeprefix(f"{PHASE}/"), self.questions[ask.what], dict[int, Any]()
        for who in ask.to.tolist():
            if self.drop.get(who) == step or len(found) == ask.goal:
                continue
            body = {**ask.body, **ask.each.get(who, {})}
            declared.asks.check(body)
            client = self.clients[who]
            if client is None:
                reply = {"vector": self.rows[who][None], "finite": np.ones(1, bool)}
            else:
                try:
                    reply = client.answer(step, body, lambda _, who=who: self.rows[who])
                except Abort as reason:
                    self.declined[who] = str(reason)
                    continue
            declared.answers.check(reply)
            found[who] = reply
        parties = np.array(list(found), np.int64)
        if ask.fold:
            vectors = [reply["vector"] for reply in found.values()]
            sums = {"vector": np.add.reduce(np.concatenate(vectors), 0, dtype=vectors[0].dtype)} if vectors else {}
            return Replies(parties, sums=sums)
        messages = np.empty(len(found), object)
        for k, reply in enumerate(found.values()):
            messages[k] = reply["message"]
        return Replies(parties, {"message": messages}, facts={"seconds": 0.5, "elapsed": 2.0})

    def note(self, note: Note) -> None:
        self.notes.append(note)

    def checkpoint(self, memory: object) -> None:
        raise AssertionError("a sum keeps nothing")


def check_hidden(combine: Combine, wire: Wire, *, lost: int = 1, seed: int = 0, real: bool = False) -> None:
    """The protocol of a hidden sum, in one process, equals what a simulation adds up in the clear, bit for bit.

    As many parties as the wire expects take part; `lost` of them drop out, at each question in turn. The vectors of
    those in the sum are also added up in the clear, and every bit is compared. Nobody may decline, and questions and
    answers keep to what the combine declares. One question after another, all parties but two drop out at it, and
    nothing is opened.

    Args:
        combine: the hidden sum.
        wire: what is proven of the vectors; it has a ring.
        lost: parties that drop out at a time, from those with the highest numbers; a sum without them is opened.
        seed: of the vectors.
        real: draw from the operating system, as between real parties.
    """
    protocol = World.real(seed) if real else World.simulated(seed, protocols=True)
    generator, most = np.random.default_rng(seed), int(wire.ring.value_bound)
    who = sorted(generator.choice(4 * wire.total.cohort, wire.total.cohort, replace=False).tolist())
    rows = {i: generator.integers(-most, most, wire.row.size, endpoint=True).astype(wire.row.dtype) for i in who}
    rows[who[0]] = np.full(wire.row.size, -most, np.int64).astype(wire.row.dtype)
    whole = Protocols(combine, wire, rows, protocol, {})
    for t in range(2):
        _check_equal(combine, wire, rows, whole.round(t), (), t)
    for name in whole.questions:
        step = name.removeprefix(f"{PHASE}/")
        runtime = Protocols(combine, wire, rows, protocol, dict.fromkeys(who[len(who) - lost :], step))
        _check_equal(combine, wire, rows, runtime.round(3), runtime.drop, 3)
        assert not runtime.declined, f"parties declined: {runtime.declined}"
        few = Protocols(combine, wire, rows, protocol, dict.fromkeys(who[:-2], step))
        vector, replies = few.round(4)
        assert "nothing was opened" in replies.facts["aborted"], f"{step}: a sum of two was opened"
        assert not vector.any() and not len(replies), "nothing was opened, and yet there is something"  # noqa: PT018


def _check_equal(
    combine: Combine, wire: Wire, rows: Mapping[int, Array], given: Gathered, lost: Collection[int], t: int
) -> None:
    """What the protocol gave is what a simulation gives when just those in the sum answer."""
    vector, replies = given
    there = replies.parties.tolist()
    assert "aborted" not in replies.facts, replies.facts
    assert set(rows) - set(lost) <= set(there), "a party that was there to the end is not in the sum"
    gone = dict.fromkeys(set(rows) - set(there), "contribute")
    clear, fast = Protocols(combine, wire, rows, World.simulated(0), gone).round(t)
    assert fast.parties.tolist() == there
    assert vector.dtype == clear.dtype == np.dtype(wire.row.dtype)
    assert vector.tobytes() == clear.tobytes(), "the protocol and the simulation differ"
    exact = np.add.reduce([rows[i] for i in there], 0, dtype=wire.row.dtype)
    assert np.array_equal(vector, exact), "the sum is not exact"


def wire_of(n: int, d: int, *more: Any, ring: Any = None) -> Wire:
    return chain(atoll.Clip(1.0), atoll.Average("expected"), ring or atoll.Ring(), *more)(Wire.of(d, n))[0]


NOISE = atoll.Gaussian(0.3, "distributed", honest=0.5)
SUMS = {
    "secure": (atoll.SecureSum(), wire_of(10, 10_000), 3),
    "secure, 64 bits": (atoll.SecureSum(), wire_of(4, 300, ring=atoll.Ring(40, 64)), 1),
    "secure, with noise": (atoll.SecureSum(0.8, min_parties=4), wire_of(7, 50, NOISE), 1),
    "sparse": (atoll.SecureSum(sparse=True), wire_of(12, 1000), 2),
    "light": (atoll.LightSum(), wire_of(10, 10_000), 3),
    "light, with noise": (atoll.LightSum(0.2, 0.7), wire_of(5, 70, NOISE), 1),
    "encrypted": (atoll.EncryptedSum(), wire_of(5, 1000), 1),
    "encrypted, two holders": (atoll.EncryptedSum(key_holders=2), wire_of(4, 100, NOISE), 1),
    "ckks": (atoll.EncryptedSum("ckks"), wire_of(4, 50), 1),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_protocol_in_process_equals_the_simulation(name: str) -> None:
    if name == "ckks":
        pytest.importorskip("tenseal")
    combine, wire, lost = SUMS[name]
    check_hidden(combine, wire, lost=lost)


@pytest.mark.parametrize("name", ["secure, 64 bits", "light, with noise"])
def test_so_it_is_between_real_parties(name: str) -> None:
    combine, wire, lost = SUMS[name]
    check_hidden(combine, wire, lost=lost, real=True)


@pytest.mark.slow
def test_a_sparse_graph_of_many_gives_the_same_sum() -> None:
    check_hidden(atoll.SecureSum(sparse=True), wire_of(60, 8), lost=6)


def sums(n: int = 5, d: int = 20) -> dict[str, tuple[Combine, Wire]]:
    return {name: (combine, wire_of(n, d)) for name, (combine, _, _) in SUMS.items() if "," not in name} | {
        "sparse": (atoll.SecureSum(sparse=True), wire_of(10, d))
    }


@pytest.mark.parametrize("name", ["secure", "light", "encrypted"])
def test_what_the_protocol_cost_is_told(name: str) -> None:
    combine, wire = sums()[name]
    rows = {i: np.full(wire.row.size, i, wire.row.dtype) for i in range(5)}
    runtime = Protocols(combine, wire, rows, World.simulated(0, protocols=True), {4: f"{name}.seal"})
    facts = runtime.round(0).replies.facts
    # Each question took the runtime half a second.
    assert facts["seconds"] == len(runtime.questions) / 2
    assert facts["elapsed"] == 2.0
    assert facts["protocol_bytes"] > wire.row.bytes
    assert 0 < facts["protocol_server"] < 10
    assert facts.get("lost", 0) == (name == "encrypted")


@pytest.mark.parametrize("name", ["secure", "sparse", "light", "encrypted"])
def test_messages_are_as_long_as_is_said_before_they_are_made(name: str) -> None:
    combine, wire = sums()[name]
    n = wire.total.cohort
    rows = {i: np.full(wire.row.size, i, wire.row.dtype) for i in range(n)}
    facts = Protocols(combine, wire, rows, World.simulated(0, protocols=True), {}).round(0).replies.facts
    each = sum(map(sum, combine.message_bytes(wire).values()))
    holders = [sum(map(sum, combine.message_bytes(wire, k).values())) for k, _ in enumerate(combine.holders(range(n)))]
    said = each + sum(held - each for held in holders) / n
    assert facts["protocol_bytes"] == pytest.approx(said, rel=0.005, abs=50)


@pytest.mark.parametrize("goal", [3, 4])
@pytest.mark.parametrize("name", ["secure", "encrypted"])
def test_enough_answers_are_enough(name: str, goal: int) -> None:
    combine, wire = sums()[name]
    rows = {i: np.full(wire.row.size, i + 1, wire.row.dtype) for i in range(5)}
    vector, replies = Protocols(combine, wire, rows, World.simulated(0, protocols=True), {}).round(0, goal)
    assert replies.parties.tolist() == list(range(goal))
    assert set(vector.tolist()) == {sum(range(goal + 1))}
    assert replies.facts["lost"] == 5 - goal


def test_messages_that_cannot_be_right_are_left_out_and_noted() -> None:
    combine, wire = sums()["secure"]
    rows = {i: np.ones(wire.row.size, wire.row.dtype) for i in range(5)}
    runtime = Protocols(combine, wire, rows, World.simulated(0, protocols=True), {})
    ask = runtime.ask

    def spoilt(question: Ask) -> Replies:
        replies = ask(question)
        if question.what.endswith("secure.masked"):
            replies.each["message"][2] = np.zeros(3, np.uint8)
        return replies

    runtime.ask = spoilt  # type: ignore[method-assign]
    vector, replies = runtime.round(0)
    assert replies.parties.tolist() == [0, 1, 3, 4]
    assert set(vector.tolist()) == {4}
    (note,) = runtime.notes
    assert note.facts == {"number": 2, "reason": "secure", "why": "the bytes are no Masked"}


# --- what is declared and said


@pytest.mark.parametrize("name", sums())
@pytest.mark.parametrize("world", [World.simulated(0), World.simulated(0, protocols=True), World.real(0)], ids=str)
def test_questions_are_declared_for_the_world(name: str, world: World) -> None:
    combine, wire = sums()[name]
    setting, body = Setting("grow", world), Layout.of(question(0))
    asked = combine.questions(wire, setting, body, 12)
    assert all(one.name.startswith("grow/") and one.reveals for one in asked)
    contributing = [one for one in asked if one.contributes]
    assert len(contributing) == 1
    if world.shortcut:
        assert [one.name for one in asked] == ["grow/contribute"]
        assert contributing[0].exposure == "plain"
        assert contributing[0].asks == body
        assert "simulated" in contributing[0].reveals["server"]
        return
    kind = {"sparse": "secure", "ckks": "encrypted"}.get(name, name)
    gives = {"secure": "masked", "light": "upload", "encrypted": "seal"}[kind]
    assert contributing[0].name == f"grow/{kind}.{gives}"
    assert contributing[0].exposure == ("sealed" if kind == "encrypted" else "masked")
    assert all(one.exposure == "nothing" for one in asked if not one.contributes)
    (first,) = [one for one in asked if "broadcast/params" in one.asks.leaves]
    assert first.name == (f"grow/{kind}.seal" if kind == "encrypted" else f"grow/{kind}.advertise")
    assert first.asks.leaves.keys() == body.leaves.keys() | {"message"}
    assert all(one.asks.leaves.keys() == {"t", "message"} for one in asked if one != first)
    assert all(one.answers.leaves.keys() == {"message"} and one.answers.leaves["message"].upto for one in asked)


def test_plain_sums_declare_one_question() -> None:
    wire = chain(atoll.Clip(1.0), atoll.Weigh())(Wire.of(6, 5, shapes=((6,),)))[0]
    noised = chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(1.0, "local"))(Wire.of(6, 5))[0]
    plain = chain(atoll.Clip(1.0), atoll.Average())(Wire.of(6, 5))[0]
    body, setting = Layout.of(question(0)), Setting("model", World.real(0))
    for combine, about in ((atoll.Sum(), wire), (atoll.Buffered(4), wire), (atoll.Each(atoll.Median()), plain),
                           (atoll.Sum(), noised)):  # fmt: skip
        (one,) = combine.questions(about, setting, body, 9)
        assert one.name == "model/contribute"
        assert one.asks == body
        assert one.contributes
        assert one.exposure == ("noised" if about is noised else "plain")
        assert set(one.answers.leaves) == {"vector", "finite"}
        assert one.answers.leaves["vector"].shape == (1, about.row.size)
        assert combine.client(about, setting, None) is None
        assert not combine.hidden
        assert combine.holders([1, 2]) == ()
        assert combine.message_bytes(about) == {}
        assert combine.min_cohort(about) == 1
    assert atoll.Sum().staleness is None
    assert atoll.Buffered(4, max_staleness=7).staleness == 7
    answers = atoll.Sum().questions(wire, setting, body, 9)[0].answers
    vector = np.zeros((1, 7), np.float32)
    answers.check({"vector": vector + 0.1, "finite": np.ones(1, bool)})
    with pytest.raises(ValueError, match="weights"):
        answers.check({"vector": vector, "finite": np.ones(1, bool)})


def test_words_follow_from_wire_and_world() -> None:
    """What is said of a run is made from what runs, and edited nowhere."""
    noisy = wire_of(5, 20, NOISE)
    for name, (combine, wire) in sums().items():
        worlds = {"fast": World.simulated(0), "protocols": World.simulated(0, protocols=True), "real": World.real(0)}
        seen = {key: combine.seen(wire, world) for key, world in worlds.items()}
        assert {key: "(simulated: the same integers" in said["server"] for key, said in seen.items()} == {
            "fast": True, "protocols": False, "real": False,
        }, name  # fmt: skip
        assert seen["fast"]["network"] == seen["protocols"]["network"] == "nothing: all parties are on this machine"
        assert "mutual TLS" in seen["real"]["network"]
        assert all("subtract sums of successive, similar models" in said["not promised"] for said in seen.values())
        if name != "sparse":
            assert "successive" not in combine.seen(noisy, World.real(0))["not promised"]
    assert "noisy sum of at least 4 vectors" in atoll.SecureSum().seen(noisy, World.real(0))["server"]
    plain = Wire.of(6, 5)
    assert "mutual TLS" in atoll.Sum().seen(plain, World.real(0))["network"]
    assert atoll.Sum().seen(plain, World.simulated(0))["network"] == "nothing: all parties are on this machine"


def test_who_must_be_there() -> None:
    wire = wire_of(5, 20, atoll.Gaussian(0.3, "distributed", honest=0.8))
    assert wire.total.min_cohort == 4
    for combine in (atoll.SecureSum(), atoll.LightSum(), atoll.EncryptedSum()):
        assert combine.hidden
        assert combine.min_cohort(wire) == 4
        assert combine.min_cohort(wire_of(5, 20)) == 3
    assert atoll.SecureSum(min_parties=5).min_cohort(wire) == 5
    assert atoll.EncryptedSum(key_holders=2).holders([9, 4, 6]) == (4, 6)
    assert atoll.SecureSum().holders([9, 4]) == ()


def test_limits_hold_for_small_cohorts_of_many_parties() -> None:
    """Of a hundred parties five are asked: a share of a mask is then longer than with a hundred."""
    wire = wire_of(5, 4000)
    rows = {i: np.ones(wire.row.size, wire.row.dtype) for i in range(5)}
    for combine in (atoll.SecureSum(), atoll.LightSum(), atoll.EncryptedSum()):
        runtime = Protocols(combine, wire, rows, World.simulated(0, protocols=True), {})
        setting = Setting(PHASE, World.simulated(0, protocols=True))
        runtime.questions = {one.name: one for one in combine.questions(wire, setting, Layout.of(question(0)), 100)}
        assert set(runtime.round(0).vector.tolist()) == {5}


def test_a_fingerprint_is_of_names_types_shapes_and_contents() -> None:
    first = {"broadcast": {"a": np.arange(4.0), "b": np.arange(4.0)}, "t": 1}
    others: list[dict[str, Any]] = [
        {**first, "u": 2}, {**first, "u": 1}, {"t": 1}, {**first, "u": 1.0}, {**first, "u": None}, {**first, "u": ""},
        {"broadcast": {"a": np.arange(4.0), "c": np.arange(4.0)}, "t": 1},
        {"broadcast": {"a": np.arange(4.0).reshape(2, 2), "b": np.arange(4.0)}, "t": 1},
        {"broadcast": {"a": np.arange(4.0, dtype=np.float32), "b": np.arange(4.0)}, "t": 1},
        {"broadcast": {"a": np.arange(8.0), "b": np.arange(0.0)}, "t": 1},
    ]  # fmt: skip
    assert len({fingerprint(one) for one in [first, *others]}) == len(others) + 1
    swapped = {"t": np.int64(1), "broadcast": {"b": np.arange(4.0, dtype=">f8"), "a": np.arange(8.0)[::2] / 2}}
    assert fingerprint(swapped) == fingerprint(first)
    assert fingerprint({**first, "t": 2}) == fingerprint(first)  # one model in two rounds; terms name the round


def test_ckks_says_what_it_needs() -> None:
    if find_spec("tenseal") is None:
        with pytest.raises(ValueError, match="pip install"):
            atoll.EncryptedSum("ckks").gather(wire_of(4, 5), Setting("model", World.real(0)))
