"""One list of survivors for each sum: a server that asks again, however it does, gets the same sum or nothing.

Real parties with disks of their own against a server that restarts as often as it likes and chooses who is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_crypto_bound import JOB, KEYS, QUESTION, SIZE, VICTIM, Belief, Lying, wire_of

import atoll
from atoll.combine.protocol import PartySession, fingerprint
from atoll.core.effects import Ask, Replies, drive
from atoll.crypto.keys import Abort
from atoll.crypto.lists import KEPT, SignedLists, SumKey
from atoll.crypto.secagg import SecureServer, Spent

N = 6
COMBINES = {
    "complete": atoll.SecureSum(),
    "light": atoll.LightSum(privacy=0.2, target=0.7),
    "encrypted": atoll.EncryptedSum(),
}
HIDDEN = ("complete", "light")  # what is quick: every encrypted sum makes a key
NEXT = {**QUESTION, "t": 3}  # the same model in the next round
EVERYBODY, OTHERS = tuple(range(N)), tuple(who for who in range(N) if who != VICTIM)


class Restarting(Lying):
    """Parties on their disks. Every `begin` is a new process of the server and of all parties."""

    def __init__(self, folder: Path, name: str, batches: Any = ()) -> None:
        self.folder, self.belief, self.batches = folder, Belief(wire_of(N), COMBINES[name]), batches
        super().__init__(dict.fromkeys(range(N), self.belief), flatter=False)
        self.away: Mapping[str, Collection[int]] = {}

    def session(self, who: int) -> PartySession:
        mine = self.folder / f"{who}"
        mine.mkdir(exist_ok=True)
        return PartySession(who, KEYS[who], 3, 99, Spent(mine), SignedLists(mine), self.batches)

    def begin(self, cohort: Collection[int] = EVERYBODY, question: Any = QUESTION, **away: Collection[int]) -> Any:
        """Ask for a sum of these parties; `away` names who does not answer the steps of a name."""
        belief, self.away = replace(self.belief, question=question), away
        self.beliefs = dict.fromkeys(range(N), belief)
        self.clients = {who: belief.combine.client(belief.wire, belief.setting, self.session(who)) for who in range(N)}
        self.given, self.declined, self.trained = [], {}, []
        gather = belief.combine.gather(belief.wire, belief.setting)
        return drive(gather(np.array(cohort), belief.question, None), self)

    def ask(self, ask: Ask) -> Replies:
        gone = self.away.get(ask.what.rpartition(".")[2], ())
        return super().ask(ask._replace(to=np.array([who for who in ask.to.tolist() if who not in gone], np.int64)))


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not care what parties have signed before."""
    monkeypatch.setattr(SecureServer, "_able", lambda self: sorted(self._adverts))


def refused(found: Any, parties: Restarting, words: str) -> None:
    vector, replies = found
    assert not vector.any()
    assert not len(replies)
    assert any(words in said for said in parties.declined.values()), parties.declined


@pytest.mark.parametrize(("name", "question"), [
    *((name, question) for name in HIDDEN for question in (QUESTION, NEXT)), ("encrypted", NEXT),
], ids=["complete-again", "complete-next", "light-again", "light-next", "encrypted-next"])  # fmt: skip
def test_no_second_sum_of_a_model_has_other_survivors(tmp_path: Path, lying: None, name: str, question: Any) -> None:
    """What the two sums differ by is the victim's vector; before lists were kept, both were opened."""
    parties = Restarting(tmp_path, name)
    first, replies = parties.begin()
    assert replies.parties.tolist() == list(EVERYBODY)
    assert np.array_equal(first, sum(parties.rows.values()))
    refused(parties.begin(OTHERS, question), parties, "[3], who are not asked now")
    assert not parties.trained
    if name in HIDDEN:
        refused(parties.begin(EVERYBODY, question, masked=[VICTIM], upload=[VICTIM]), parties, "signed other")


@pytest.mark.parametrize("name", HIDDEN)
def test_a_list_is_signed_though_its_sum_was_never_opened(tmp_path: Path, lying: None, name: str) -> None:
    """The server says that it was killed before the last message; nobody can know whether it was."""
    parties = Restarting(tmp_path, name)
    _, replies = parties.begin(**{"unmask": EVERYBODY} if name == "complete" else {"recover": (0, 1, 2)})
    assert not len(replies)
    refused(parties.begin(OTHERS), parties, "signed other survivors of a sum of this model")
    again, replies = parties.begin()
    assert replies.parties.tolist() == list(EVERYBODY)
    assert np.array_equal(again, sum(parties.rows.values()))


@pytest.mark.parametrize("name", COMBINES)
def test_the_same_list_gets_the_same_vectors_under_new_masks(tmp_path: Path, name: str) -> None:
    """Noise drawn again would be averaged away: what was given before is given again, and nobody trains."""
    parties = Restarting(tmp_path, name)
    first, _ = parties.begin()
    parties.rows = {who: row + np.uint32(1) for who, row in parties.rows.items()}  # as other noise would have it
    again, replies = parties.begin()
    assert np.array_equal(first, again)
    assert not parties.trained
    assert replies.parties.tolist() == list(EVERYBODY)
    later, _ = parties.begin(question=NEXT)  # a round of its own, with the same survivors
    assert np.array_equal(later, sum(parties.rows.values()))
    assert sorted(set(parties.trained)) == list(EVERYBODY)


@pytest.mark.parametrize("name", HIDDEN)
def test_a_vector_that_left_is_given_again_though_nothing_was_signed(tmp_path: Path, name: str) -> None:
    parties = Restarting(tmp_path, name)
    parties.begin(consistent=EVERYBODY, recover=EVERYBODY)
    parties.rows = {who: row + np.uint32(1) for who, row in parties.rows.items()}
    again, replies = parties.begin(OTHERS)
    assert replies.parties.tolist() == list(OTHERS)
    assert np.array_equal(again + len(OTHERS), sum(parties.rows[who] for who in OTHERS))


@pytest.mark.parametrize("name", HIDDEN)
def test_a_round_has_one_question(tmp_path: Path, name: str) -> None:
    parties = Restarting(tmp_path, name)
    parties.begin()
    other = {**QUESTION, "broadcast": {"params": np.zeros(3)}}
    refused(parties.begin(question=other), parties, "round 3: this party has answered another question of this round")
    assert not parties.trained
    _, replies = parties.begin(OTHERS, {**other, "t": 3})  # another model in the next round
    assert replies.parties.tolist() == list(OTHERS)


@pytest.mark.parametrize("name", HIDDEN)
def test_batches_of_a_policy_are_whole_or_not_there(tmp_path: Path, name: str) -> None:
    parties = Restarting(tmp_path, name, ((0, 3), (1, 4), (2, 5)))
    _, replies = parties.begin((0, 1, 3, 4))
    assert replies.parties.tolist() == [0, 1, 3, 4]
    other = {**NEXT, "broadcast": {"params": np.zeros(3)}}
    refused(parties.begin((0, 1, 2, 3, 4), other), parties, "some of the batch (2, 5) and not all")


def test_an_honest_server_asks_for_the_list_that_was_signed(tmp_path: Path) -> None:
    """A party that is new in the second attempt is left out of it, and the sum is opened."""
    parties = Restarting(tmp_path, "complete")
    parties.begin(OTHERS, unmask=OTHERS)
    again, replies = parties.begin()
    assert replies.parties.tolist() == list(OTHERS)
    assert np.array_equal(again, sum(parties.rows[who] for who in OTHERS))


def test_who_claims_a_list_of_its_own_stands_alone(tmp_path: Path) -> None:
    parties = Restarting(tmp_path, "complete")
    session = parties.session(VICTIM)
    key = SumKey(parties.belief.setting.agreement, "model", 2, fingerprint(QUESTION))
    session.lists.sign(key, (1, 2, VICTIM))
    vector, replies = parties.begin()
    assert replies.parties.tolist() == list(OTHERS)
    assert set(vector.tolist()) == {len(OTHERS)}


# --- the record itself

KEY = SumKey(JOB.encode()[:32], "train", 4, bytes(32))


def test_a_record_is_read_again_and_keeps_the_vectors_of_two_rounds(tmp_path: Path) -> None:
    for t in range(5):
        key = KEY._replace(t=t, model=bytes([t]) * 32)
        SignedLists(tmp_path).keep(key, np.full(SIZE, t, np.uint32))
        SignedLists(tmp_path).sign(key, (1, 2, t + 3))
    again = SignedLists(tmp_path)
    assert len(list(tmp_path.glob("*.vector"))) == KEPT
    for t in range(5):
        key = KEY._replace(t=t, model=bytes([t]) * 32)
        assert again.among(key, range(9)) == (1, 2, t + 3)
        assert again.among(key._replace(t=9), range(9)) == (1, 2, t + 3)
        assert again.among(key._replace(t=9, phase="evaluate.local"), range(9)) == ()
        if t >= 5 - KEPT:
            assert (again.vector(key) == t).all()
        else:
            with pytest.raises(Abort, match="no longer has it: serve the run from its newest checkpoint"):
                again.vector(key)
    assert again.vector(KEY._replace(t=9)) is None


def test_a_torn_line_was_never_signed_and_a_damaged_one_ends_it(tmp_path: Path) -> None:
    SignedLists(tmp_path).sign(KEY, (1, 2, 3))
    (path,) = tmp_path.glob("*.lists")
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    record = SignedLists(tmp_path)
    assert record.among(KEY, range(9)) == (1, 2, 3)
    record.sign(KEY._replace(t=5, model=bytes([1]) * 32), (4, 5, 6))
    assert SignedLists(tmp_path).among(KEY._replace(t=5, model=bytes([1]) * 32), range(9)) == (4, 5, 6)
    for place in (3, 40, len(whole) - 5):
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 1
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "b" / path.name).write_bytes(damaged)
        with pytest.raises(Abort, match="line 1 is damaged: what this party has signed is not known"):
            SignedLists(tmp_path / "b").among(KEY, range(9))


def test_a_damaged_vector_is_not_given(tmp_path: Path) -> None:
    for place, words in ((-1, "no longer has it"), (3, "no longer has it")):
        SignedLists(tmp_path).keep(KEY, np.arange(SIZE, dtype=np.uint32))
        (path,) = tmp_path.glob("*.vector")
        damaged = bytearray(path.read_bytes())
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Abort, match=words):
            SignedLists(tmp_path).vector(KEY)
