"""What was agreed is bound: parties that were told different things never complete a sum together.

Real parties against a server that lies. It knows everything that everybody believes, tells each party terms that fit
its beliefs, and takes whatever comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import pytest

import atoll
from atoll.combine.hidden import bits_of
from atoll.combine.protocol import PartySession, agreed, fingerprint
from atoll.core.effects import Ask, Note, Replies, drive
from atoll.core.wire import Combine, Member, Mismatch, Setting, Wire, chain
from atoll.core.world import World
from atoll.crypto import holders, records
from atoll.crypto.keys import Abort, Identity
from atoll.crypto.light import LightServer
from atoll.crypto.lists import SignedLists
from atoll.crypto.secagg import SecurePlan, SecureServer, SpentHere
from atoll.crypto.secagg.messages import Advert
from atoll.crypto.terms import Agreement, Terms

SIZE = 40
KEYS = [Identity.new() for _ in range(21)]
MEMBERS = {who: Member(f"party {who}", key.public) for who, key in enumerate(KEYS[:20])}
QUESTION = {"broadcast": {"params": np.arange(3.0)}, "t": 2}
JOB = 'stages = [{use = "clip", norm = 1e9}, "ring"]\ncombine = "secure_sum"'
VICTIM = 3
change = msgspec.structs.replace


def wire_of(n: int, *noise: Any) -> Wire:
    return chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), *noise)(Wire.of(SIZE, n))[0]


@dataclass(frozen=True)
class Belief:
    """What one party was told, or knows: the job's text, the wire that follows, who is who, who takes part."""

    wire: Wire
    combine: Combine
    job: str = JOB
    phase: str = "model"
    question: Mapping[str, Any] = field(default_factory=lambda: QUESTION)
    members: Mapping[int, Member] = field(default_factory=lambda: MEMBERS)
    without: tuple[int, ...] = ()  # parties that it is not told of

    @property
    def setting(self) -> Setting:
        return Setting(self.phase, World.real(0), sha256(self.job.encode()).digest(), lambda: self.members)


def differing(what: str, ours: Belief) -> Belief:
    """What the victim believes where all others believe something else."""
    wire, combine = ours.wire, ours.combine
    noise = wire_of(wire.total.cohort, atoll.Gaussian(0.3, "distributed", honest=0.5))
    return {
        "job": replace(ours, job="another job"),
        "clip": replace(ours, job=JOB.replace("1e9", "1.0")),
        "noise": replace(ours, wire=noise),
        "cohort": replace(ours, without=(wire.total.cohort - 1,)),
        "key": replace(ours, members={**MEMBERS, 2: Member("party 2", KEYS[20].public)}),
        "name": replace(ours, members={**MEMBERS, 2: Member("somebody", KEYS[2].public)}),
        "numbers": replace(ours, members={**MEMBERS, 1: MEMBERS[2], 2: MEMBERS[1]}),
        "phase": replace(ours, phase="another phase"),
        "way of hiding": replace(ours, combine=harder(combine)),
        "round": replace(ours, question={**QUESTION, "t": 3}),
        "model": replace(ours, question={**QUESTION, "broadcast": {"params": np.zeros(3)}}),
    }[what]


def harder(combine: Any) -> Combine:
    """The same way of hiding but for one of its numbers."""
    if isinstance(combine, atoll.EncryptedSum):
        return atoll.EncryptedSum(key_holders=3)
    light = isinstance(combine, atoll.LightSum)
    return replace(combine, target=0.75) if light else replace(combine, threshold=0.7)


class Lying:
    """The runtime of a server that lies. With `flatter` it rewrites terms so that each party finds its own in them."""

    def __init__(self, beliefs: Mapping[int, Belief], flatter: bool) -> None:
        self.beliefs, self.flatter = beliefs, flatter
        self.spent = {who: SpentHere() for who in beliefs}
        self.lists = {who: SignedLists() for who in beliefs}
        self.clients = {
            who: belief.combine.client(
                belief.wire, belief.setting, PartySession(who, KEYS[who], 3, 9, self.spent[who], self.lists[who])
            )
            for who, belief in beliefs.items()
        }
        # The others' vectors are next to nothing: an opened sum would be the victim's vector.
        self.rows = {who: np.ones(SIZE, np.uint32) for who in beliefs}
        self.rows[VICTIM] = np.random.default_rng(1).integers(-9999, 9999, SIZE).astype(np.uint32)
        self.told = dict[tuple[int, str], bytes]()
        self.trained, self.given, self.declined = list[int](), list[tuple[int, str]](), dict[int, str]()

    def agreed(self, who: int) -> Agreement:
        belief = self.beliefs[who]
        if isinstance(belief.combine, atoll.EncryptedSum):
            return belief.combine.rules(belief.wire, belief.setting).agreed
        return belief.combine.agreed(belief.wire, belief.setting)

    def terms(self, who: int, terms: Terms) -> Terms:
        mine = self.beliefs[who]
        cohort = tuple(i for i in self.beliefs if i not in mine.without)
        model, context = fingerprint(mine.question), self.agreed(who).context(cohort)
        return change(terms, t=mine.question["t"], cohort=cohort, model=model, context=context)

    def flattered(self, who: int, step: str, message: bytes) -> bytes:
        """What the server says; with `flatter`, so that this party finds its own terms in it."""
        kind = {"secure.advertise": SecurePlan, "light.advertise": Terms, "encrypted.meet": Terms,
                "encrypted.key": holders.KeyRequest, "encrypted.seal": holders.SignedKey,
                "encrypted.open": holders.SumToOpen}.get(step)  # fmt: skip
        if kind is None or not self.flatter:
            return message
        said = records.decode(kind, message, 10**6)
        if kind is Terms:
            return records.encode(self.terms(who, said))
        if kind is SecurePlan:
            said = change(said, bits=bits_of(self.beliefs[who].wire))
        if kind is holders.SumToOpen:
            return records.encode(change(said, key=change(said.key, terms=self.terms(who, said.key.terms))))
        return records.encode(change(said, terms=self.terms(who, said.terms)))

    def ask(self, ask: Ask) -> Replies:
        step, found = ask.what.partition("/")[2], dict[int, Any]()
        for who in ask.to.tolist():
            message = ask.each[who]["message"].tobytes()
            self.told[who, step] = message = self.flattered(who, step, message)
            told = self.beliefs[who].question
            body = {**{name: told[name] for name in ask.body}, "message": np.frombuffer(message, np.uint8)}

            def train(_: object, who: int = who) -> Any:
                self.trained.append(who)
                return self.rows[who]

            try:
                found[who] = self.clients[who].answer(step, body, train)["message"]
                self.given.append((who, step))
            except Abort as reason:
                self.declined.setdefault(who, str(reason))
        rows = np.empty(len(found), object)
        for k, answer in enumerate(found.values()):
            rows[k] = answer
        return Replies(np.array(list(found), np.int64), {"message": rows})

    def play(self, server: Belief) -> Any:
        """Play one round; the server's own belief decides what it says first."""
        gather = server.combine.gather(server.wire, server.setting)
        return drive(gather(np.arange(len(self.beliefs)), server.question, None), self)

    def note(self, note: Note) -> None: ...
    def checkpoint(self, memory: object) -> None: ...


@pytest.fixture
def gullible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes keys and signatures as they come, so that whoever stops a sum is a party."""

    def advert(self: Any, sender: int, data: bytes) -> None:
        self._adverts[sender] = records.decode(Advert, data, 10**6)

    take = LightServer.take

    def take_any(self: Any, who: int, message: bytes) -> None:
        if self._due == "advertise":
            self._adverts[who] = message
        else:
            take(self, who, message)

    monkeypatch.setattr(SecureServer, "_advert", advert)
    monkeypatch.setattr(LightServer, "take", take_any)
    monkeypatch.setattr(holders.KeyRules, "dealt", lambda self, answer, terms: records.decode(
        holders.Dealt, answer, 10**6))  # fmt: skip


COMBINES = {
    "complete": (atoll.SecureSum(), 6), "light": (atoll.LightSum(), 6), "encrypted": (atoll.EncryptedSum(), 6),
    "two holders": (atoll.EncryptedSum(key_holders=2), 6), "sparse": (atoll.SecureSum(sparse=True), 12),
    "ckks": (atoll.EncryptedSum("ckks"), 6),
}  # fmt: skip
DIFFER = ("job", "clip", "noise", "cohort", "key", "name", "numbers", "phase", "way of hiding")
ASKED = ("round", "model")  # parties that were asked different things, and know of nothing better
CASES = [(name, what) for name in COMBINES for what in DIFFER + ASKED if name != "ckks" or what in ("clip", "key")]
GIVES = {"secure.masked", "light.upload", "encrypted.seal"}


def played(name: str, what: str | None, flatter: bool, victim: int = VICTIM) -> tuple[Lying, Any]:
    """A round in which the victim believes other things than all others, or the same."""
    if name == "ckks":
        pytest.importorskip("tenseal")
    combine, n = COMBINES[name]
    ours = Belief(wire_of(n), combine)
    theirs = differing(what, ours) if what else ours
    lying = Lying(dict.fromkeys(range(n), ours) | {victim: theirs}, flatter)
    return lying, lying.play(ours)


@pytest.mark.parametrize("name", COMBINES)
def test_without_a_difference_the_sum_opens_and_is_all_but_the_victims_vector(name: str) -> None:
    """So what follows is prevented by nothing but the binding."""
    lying, (vector, replies) = played(name, None, flatter=True)
    n = len(lying.rows)
    assert replies.parties.tolist() == list(range(n))
    assert np.array_equal(vector, sum(lying.rows.values()))
    rows = lying.rows[VICTIM].view(np.int32), vector.view(np.int32)
    assert np.corrcoef(*rows)[0, 1] > 0.99
    assert not lying.declined


@pytest.mark.parametrize(("name", "what"), CASES, ids=str)
def test_told_each_its_own_story_nobody_completes_a_sum(name: str, what: str, gullible: None) -> None:
    """The victim finds its own terms in what it is told, and everybody finds that the others' differ."""
    lying, (vector, replies) = played(name, what, flatter=True)
    assert not [step for who, step in lying.given if who == VICTIM and step in GIVES], "the victim gave its vector"
    assert "did not sign" in lying.declined[VICTIM] or "not signed" in lying.declined[VICTIM]
    if isinstance(COMBINES[name][0], atoll.EncryptedSum):  # the others agree, and their sum is theirs
        assert replies.parties.tolist() == [0, 1, 2, 4, 5]
        assert set(vector.tolist()) == {5}
    else:
        assert sorted(lying.declined) == list(range(len(lying.rows)))
        assert "nothing was opened" in replies.facts["aborted"]
        assert not vector.any()


@pytest.mark.parametrize(("name", "what"), [case for case in CASES if case[1] not in ("cohort", *ASKED)], ids=str)
def test_told_one_story_who_knows_better_refuses_it_before_it_trains(name: str, what: str) -> None:
    lying, (vector, replies) = played(name, what, flatter=False)
    assert "another job, vector or cohort" in lying.declined.pop(VICTIM)
    assert not lying.declined
    assert VICTIM not in lying.trained
    assert replies.parties.tolist() == [who for who in lying.rows if who != VICTIM]
    assert set(vector.tolist()) == {len(lying.rows) - 1}  # independent of the victim's vector


@pytest.mark.parametrize("what", DIFFER)
@pytest.mark.parametrize("name", ["encrypted", "two holders"])
def test_a_holder_that_was_told_another_thing_opens_nothing(name: str, what: str, gullible: None) -> None:
    for flatter in (False, True) if what != "cohort" else (True,):
        lying, (vector, replies) = played(name, what, flatter, victim=0)
        assert "nothing was opened" in replies.facts["aborted"]
        assert not vector.any()
        assert not [who for who, step in lying.given if who != 0 and step in GIVES]


def test_half_of_the_parties_are_no_sum_with_the_other_half(gullible: None) -> None:
    """Jobs with and without noise cannot be mixed, whoever is how many."""
    for name in ("complete", "light", "encrypted"):
        combine, n = COMBINES[name]
        ours = Belief(wire_of(n), combine)
        noisy = differing("noise", ours)
        lying = Lying({who: noisy if who % 2 else ours for who in range(n)}, flatter=True)
        vector, replies = lying.play(ours)
        assert not set(replies.parties.tolist()) & {1, 3, 5}
        assert np.array_equal(vector, sum(lying.rows[who] for who in replies.parties.tolist()) * np.ones(SIZE))


# --- a server that says again what it said in another sum


class Again(Lying):
    """The runtime of a server that tells one party, at one step, what it told it in another sum."""

    def __init__(self, beliefs: Mapping[int, Belief], victim: int, step: str, other: Lying) -> None:
        super().__init__(beliefs, flatter=False)
        self.victim, self.step, self.other = victim, step, other

    def flattered(self, who: int, step: str, message: bytes) -> bytes:
        return self.other.told[who, step] if (who, step) == (self.victim, self.step) else message


REPLAYED = [
    *((name, step, what) for name in ("complete", "sparse", "light") for what in (None, "job", "phase", "round")
      for step in (("light.share", "light.upload") if name == "light" else
                   ("secure.share", "secure.masked", "secure.unmask"))),
    *(("encrypted", "encrypted.seal", what) for what in ("job", "phase", "round")),
    *(("encrypted", "encrypted.open", what) for what in (None, "job")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "step", "what"), REPLAYED, ids=str)
def test_what_was_said_in_another_sum_is_refused_in_this(name: str, step: str, what: str | None) -> None:
    """The other sum was of another session at least, among the same parties with the same keys."""
    combine, n = COMBINES[name]
    ours = Belief(wire_of(n), combine)
    theirs = differing(what, ours) if what else ours
    other = Lying(dict.fromkeys(range(n), theirs), flatter=False)
    assert len(other.play(theirs)[1]) == n
    victim = 0 if step == "encrypted.open" else VICTIM
    again = Again(dict.fromkeys(range(n), ours), victim, step, other)
    vector, replies = again.play(ours)
    assert (victim, step) not in again.given
    assert list(again.declined) == [victim]
    among = replies.parties.tolist()
    assert np.array_equal(vector, sum((again.rows[who] for who in among), np.zeros(SIZE, np.uint32)))
    assert step in ("secure.unmask", "encrypted.open") or VICTIM not in among


# --- what a party, and the server, refuse by themselves


def alone(belief: Belief, **other: Any) -> Any:
    """One party's side, with another session than usual."""
    session = PartySession(VICTIM, KEYS[VICTIM], 3, 9, SpentHere(), SignedLists())._replace(**other)
    return belief.combine.client(belief.wire, belief.setting, session)


def first(belief: Belief, n: int = 6, **other: Any) -> tuple[str, dict[str, Any]]:
    """The first question with a vector in it, as an honest server puts it."""
    mine = replace(belief, members=MEMBERS)
    combine, lying = mine.combine, Lying(dict.fromkeys(range(n), mine), flatter=False)
    terms = change(lying.agreed(0).terms(bytes(16), 2, range(n), fingerprint(QUESTION)), **other)
    if isinstance(combine, atoll.LightSum):
        return "light.advertise", {**QUESTION, "message": np.frombuffer(records.encode(terms), np.uint8)}
    plan = SecurePlan(terms, 5, 0, 32, 23, SIZE)
    return "secure.advertise", {**QUESTION, "message": np.frombuffer(records.encode(plan), np.uint8)}


def never(_: object) -> Any:
    raise AssertionError("it trained")


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum()], ids=str)
@pytest.mark.parametrize(("other", "words"), [
    ({"cohort": (0, 1, 2)}, "another job|not named"), ({"cohort": (0, 1, 2, 3, 60)}, r"parties \[60\] are not in"),
    ({"cohort": (0, 1, 3, 3)}, "twice"), ({"cohort": (3, 2, 1, 0)}, "ascending order"), ({"t": 1}, "terms of round 2"),
    ({"cohort": (2, 3)}, "2 parties are asked: a sum holds 3 or more"), ({"context": bytes(32)}, "another job"),
    ({"model": bytes(32)}, "another model than the one that came"),
], ids=str)  # fmt: skip
def test_terms_are_held_against_what_the_party_knows(combine: Combine, other: dict[str, Any], words: str) -> None:
    step, body = first(Belief(wire_of(6), combine), **other)
    with pytest.raises(Abort, match=words):
        alone(Belief(wire_of(6), combine)).answer(step, body, never)


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum()], ids=str)
def test_a_sum_without_the_party_is_not_its_own(combine: Combine) -> None:
    belief = Belief(wire_of(6), combine)
    lying = Lying(dict.fromkeys(range(6), belief), flatter=False)
    context = lying.agreed(0).context((0, 1, 2, 4))
    step, body = first(belief, cohort=(0, 1, 2, 4), context=context)
    with pytest.raises(Abort, match="the sum is not party 3's"):
        alone(belief).answer(step, body, never)


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum()], ids=str)
def test_a_policy_asks_for_more(combine: Combine) -> None:
    belief = Belief(wire_of(6), combine)
    step, body = first(belief)
    with pytest.raises(Abort, match="6 parties are asked: a sum holds 7 or more"):
        alone(belief, min_cohort=7).answer(step, body, never)
    with pytest.raises(Abort, match="round 3: the policy ends after 2"):
        alone(belief, rounds=2).answer(step, body, never)


def test_a_light_sum_that_opens_with_fewer_than_a_policy_asks_for_is_not_begun() -> None:
    belief = Belief(wire_of(10), atoll.LightSum())
    assert atoll.LightSum().counts(10) == (3, 7)
    step, body = first(belief, 10)
    with pytest.raises(Abort, match="a sum of 7 vectors may be opened: 8 are the least"):
        alone(belief, min_cohort=8).answer(step, body, never)


@pytest.mark.parametrize("n", range(3, 60))
def test_no_two_light_sums_of_a_round_have_their_own_majorities(n: int) -> None:
    for privacy, target in ((0.01, 0.51), (0.3, 0.7), (0.5, 0.76), (0.9, 0.96)):
        colluding, least = atoll.LightSum(privacy, target).counts(n)
        assert 2 * least > n + colluding


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum(), atoll.EncryptedSum()], ids=str)
def test_who_is_not_in_its_own_roster_takes_no_part(combine: Combine) -> None:
    for members in ({}, {who: member for who, member in MEMBERS.items() if who != VICTIM},
                    {**MEMBERS, VICTIM: Member("party 3", KEYS[20].public)}):  # fmt: skip
        belief = Belief(wire_of(6), combine, members=members)
        step, body = first(belief) if not isinstance(combine, atoll.EncryptedSum) else (
            "encrypted.seal", {**QUESTION, "message": np.zeros(0, np.uint8)})  # fmt: skip
        with pytest.raises(Abort, match="another key for it than its own, or none"):
            alone(belief).answer(step, body, never)
    twice = {**MEMBERS, 7: MEMBERS[8]}
    with pytest.raises(Abort, match="names one key twice"):
        alone(Belief(wire_of(6), combine, members=twice)).answer(step, body, never)


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum(), atoll.EncryptedSum()], ids=str)
def test_questions_of_another_sum_and_out_of_turn_are_refused(combine: Combine) -> None:
    body = {"t": 2, "message": np.zeros(0, np.uint8)}
    mine = str(type(combine).__name__).removesuffix("Sum").lower()
    for step in (
        "contribute",
        "masked",
        "secure.nothing",
        "light.masked",
        "encrypted.share",
        f"{mine}.",
        "seal.secure",
    ):
        with pytest.raises(Abort, match="is no question of this sum"):
            alone(Belief(wire_of(6), combine)).answer(step, body, never)
    later = {"secure": "share", "light": "upload", "encrypted": "open"}[mine]
    with pytest.raises(Abort, match=r"no keys of this round|the key is kept by party 0"):
        alone(Belief(wire_of(6), combine)).answer(f"{mine}.{later}", body, never)
    begin = f"{mine}.seal" if mine == "encrypted" else f"{mine}.advertise"
    for size, words in ((0, "the bytes are no"), (10**6, "has at most")):
        message = {"message": np.zeros(size, np.uint8)}
        with pytest.raises(Abort, match=words):
            alone(Belief(wire_of(6), combine)).answer(begin, {**QUESTION, **message}, never)


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum(), atoll.EncryptedSum()], ids=str)
def test_real_parties_are_bound_to_a_job(combine: Combine) -> None:
    setting = Setting("model", World.real(0), b"", lambda: MEMBERS)
    with pytest.raises(Abort, match=r"give its hash as Setting\.agreement"):
        agreed(setting, wire_of(6), b"")
    client = combine.client(wire_of(6), setting, PartySession(0, KEYS[0], 3, 9, SpentHere(), SignedLists()))
    mine = type(combine).__name__.removesuffix("Sum").lower()
    step = "seal" if mine == "encrypted" else "advertise"
    with pytest.raises(Abort, match="bound to their job"):
        client.answer(f"{mine}.{step}", {**QUESTION, "message": np.zeros(0, np.uint8)}, never)


def test_a_noise_floor_is_the_partys_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's noise is a share of what six add: parties open no sum of five, whatever the server says."""
    belief = Belief(wire_of(6, atoll.Gaussian(0.3, "distributed", honest=1.0)), atoll.SecureSum())
    assert belief.wire.total.min_cohort == 6
    monkeypatch.setattr("atoll.combine.secure.SecurePlan", lambda terms, _, *rest: SecurePlan(terms, 5, *rest))
    monkeypatch.setattr(SecureServer, "_enough", lambda _, ids: ids)

    class Greedy(Lying):
        """Its server has forgotten the floor."""

        def ask(self, ask: Ask) -> Replies:
            here = ask.to[ask.to != 5] if ask.what.endswith("masked") else ask.to
            return super().ask(ask._replace(to=here))

    lying = Greedy(dict.fromkeys(range(6), belief), flatter=False)
    vector, replies = lying.play(belief)
    assert not vector.any()
    assert not len(replies)
    assert set(lying.declined) == {0, 1, 2, 3, 4}
    assert "a sum of 5 vectors: the job has 6 or none" in lying.declined[0]


@pytest.mark.parametrize("combine", [atoll.LightSum(), atoll.SecureSum(), atoll.EncryptedSum()], ids=str)
def test_a_server_begins_no_sum_of_too_few(combine: Combine) -> None:
    belief = Belief(wire_of(6), combine, members={who: MEMBERS[who] for who in range(2)})
    lying = Lying(dict.fromkeys(range(2), belief), flatter=False)
    vector, replies = lying.play(belief)
    assert not vector.any()
    assert not len(replies)
    assert not lying.given
    assert "2 parties are" in replies.facts["aborted"]


def test_a_sparse_graph_of_too_few_is_not_begun() -> None:
    belief = Belief(wire_of(12), atoll.SecureSum(sparse=True))
    lying = Lying(dict.fromkeys(range(5), belief), flatter=False)
    assert "no sparse graph of 5 parties is safe" in lying.play(belief)[1].facts["aborted"]
    with pytest.raises(Mismatch, match="no sparse graph"):
        atoll.SecureSum(sparse=True).check(wire_of(5))
