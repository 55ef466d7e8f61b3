"""Who holds the key of an encrypted sum: a key lives for one round, opens one sum and is forgotten.

**Semi-honest**: the server is trusted to hand the holders sums and nothing else; see `atoll.crypto.secagg` where it may
lie. All else is checked: whose key it is, for which job, round, model and cohort, how many vectors a sum is said to
hold, and the form of every message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from atoll.crypto.additive import Opener, Scheme, Sealer
from atoll.crypto.ckks import ChildDied
from atoll.crypto.keys import (
    KEY,
    NONCE,
    SIGNATURE,
    TAG,
    Abort,
    Identity,
    Pair,
    agree,
    derive,
    open_sealed,
    packed,
    refuse_if,
    seal,
    verify,
)  # fmt: skip
from atoll.crypto.lists import SignedLists
from atoll.crypto.records import AnyMessage, Id, Key, Message, Signature, decode, encode
from atoll.crypto.secagg.policy import SpentRecord
from atoll.crypto.terms import Agreement, Terms, blank

PROTOCOL = "atoll/encrypted/2"
STEPS = ("meet", "key", "seal", "open")
ADVERT = KEY + SIGNATURE
_FRAME = 4096  # bytes of a message beside its keys, ciphertexts and names
_NAME = 16  # bytes of a party's number, and of a frame


class KeyRequest(Message, frozen=True, tag="ask"):
    """To the first holder: make a key, and deal it to those who sent these adverts."""

    terms: Terms
    adverts: list[tuple[Id, Annotated[bytes, Meta(min_length=ADVERT, max_length=ADVERT)]]]


class SignedKey(Message, frozen=True, tag="key"):
    """The key of one round, with the signature of the holder that made it."""

    terms: Terms
    public: bytes
    dealer: Key | None  # the key under which shares were sealed, if there are any
    signature: Signature

    def statement(self, holders: Sequence[int]) -> bytes:
        """Give what the first holder signs."""
        parts = packed(*holders), self.public, self.dealer or b""
        return packed(PROTOCOL, "key", self.terms.digest, *parts)


class Dealt(Message, frozen=True, tag="dealt"):
    """From the first holder: the key, and a sealed share for each of the others."""

    key: SignedKey
    boxes: list[tuple[Id, bytes]]


class SumToOpen(Message, frozen=True, tag="total"):
    """To a holder: the sum of the vectors of these parties, and its share of the key, if it has not got one yet."""

    key: SignedKey
    among: list[Id]  # ascending
    total: bytes
    box: bytes = b""


def message_sizes(scheme: Scheme, holders: int, parties: int) -> dict[str, tuple[int, int]]:
    """Bytes at most, by the step: of what a party answers, and of what it is asked."""
    public, sealed, opened, share = scheme.sizes
    terms, box = _FRAME + _NAME * parties, NONCE + share + TAG
    return {
        "meet": (ADVERT, terms),
        "key": (terms + public + holders * (box + _NAME), terms + holders * (ADVERT + _NAME)),
        "seal": (sealed, terms + public),
        "open": (opened, terms + public + _NAME * parties + box + sealed),
    }


def expected_bytes(scheme: Scheme, holders: int, parties: int) -> dict[str, tuple[int, int]]:
    """Bytes of what a party is asked and answers, by the step, where nobody drops out."""
    public, sealed, opened, share = scheme.expected
    terms, others = blank(parties), range(1, holders)
    key = SignedKey(terms, bytes(public), bytes(KEY) if others else None, bytes(SIGNATURE))
    boxes = [(who, bytes(NONCE + share + TAG)) for who in others]
    request = KeyRequest(terms, [(who, bytes(ADVERT)) for who in others])
    total = SumToOpen(key, list(terms.cohort), b"", boxes[0][1] if boxes else b"")
    return {
        "meet": (len(encode(terms)), ADVERT),
        "key": (len(encode(request)), len(encode(Dealt(key, boxes)))),
        "seal": (len(encode(key)), sealed),
        "open": (len(encode(total)) + sealed, opened),
    }


@contextmanager
def doubts() -> Iterator[None]:
    """End the round, in a sentence, over whatever is wrong with what a peer sent."""
    try:
        yield
    except (ValueError, ChildDied) as fault:
        raise Abort(str(fault)) from None


@dataclass(frozen=True)
class KeyRules:
    """What a party, or the server, knows of an encrypted sum by itself: what was agreed, and who holds the key."""

    agreed: Agreement = field(repr=False)
    holders: tuple[int, ...]  # who keeps the key; the first of them makes it
    scheme: Callable[[int], Scheme] = field(repr=False)  # by the number of parties that are asked

    @cached_property
    def _sizes(self) -> dict[str, tuple[int, int]]:
        parties = len(self.agreed.members)
        return message_sizes(self.scheme(parties), len(self.holders), parties)

    def key_for(self, me: int, message: bytes, t: int, model: bytes) -> SignedKey:
        """Read the key to encrypt with in this round; `model` is the hash of what this party was given."""
        key = self.read(SignedKey, "seal", message)
        self.agreed.check(key.terms, t)
        self.agreed.check_asked(key.terms, me, model)
        self.check_key(key)
        return key

    def dealt(self, answer: bytes, terms: Terms) -> Dealt:
        """Read what the first holder answered."""
        dealt = decode(Dealt, answer, self._sizes["key"][0])
        refuse_if(dealt.key.terms != terms, "the holder made a key for another round", Abort)
        self.check_key(dealt.key)
        return dealt

    def read(self, kind: type[AnyMessage], step: str, message: bytes) -> AnyMessage:
        """Read what the server says at a step."""
        return decode(kind, message, self._sizes[step][1])

    def check_key(self, key: SignedKey) -> None:
        """Refuse a key that its holder did not sign for exactly this job, round, model and cohort."""
        maker = self.holders[0]
        signed = verify(self.agreed.roster[maker], key.statement(self.holders), key.signature)
        refuse_if(not signed, f"party {maker}, who holds the key, did not sign this one for this round", Abort)

    def check_advert(self, terms: Terms, who: int, advert: bytes) -> bytes:
        """Give the key of an advert, once its signature has been checked."""
        key, signature = advert[:KEY], advert[KEY:]
        signed = verify(self.agreed.roster[who], advert_statement(terms, who, key), signature)
        refuse_if(not signed, f"party {who} did not sign the key to seal its share with", Abort)
        return key

    def sealer(self, key: SignedKey) -> Sealer:
        return self.scheme(len(key.terms.cohort)).sealer(key.public)


def advert_statement(terms: Terms, who: int, key: bytes) -> bytes:
    """Give what a holder signs when it asks for its share."""
    return packed(PROTOCOL, "meet", terms.digest, who, key)


@dataclass
class _KeyRound:
    """What a holder has in memory from the first message to the sum."""

    terms: Terms
    pair: Pair | None = field(default=None, repr=False)
    opener: Opener | None = field(default=None, repr=False)
    key: SignedKey | None = None


class Holder:
    """One holder, round after round: it has the key, or the share, of the present round only."""

    def __init__(self, me: int, identity: Identity, spent: SpentRecord, lists: SignedLists) -> None:
        self._me, self._identity, self._spent, self._lists = me, identity, spent, lists
        self._round: _KeyRound | None = None

    def __repr__(self) -> str:
        return f"Holder({self._me}, {'a key' if self._round else 'no key'})"

    def answer(self, rules: KeyRules, step: str, message: bytes, t: int) -> bytes:
        """Take one step; every doubt ends the round."""
        me, names = self._me, ", ".join(f"party {who}" for who in rules.holders)
        role = me in rules.holders[1:] if step == "meet" else me == rules.holders[0] if step == "key" else True
        refuse_if(
            not role or me not in rules.holders, f"asked for {step!r}, and the key is kept by {names}", Abort
        )  # fmt: skip
        with doubts():
            if step == "meet":
                return self._meet(rules, rules.read(Terms, step, message), t)
            if step == "key":
                return self._deal(rules, rules.read(KeyRequest, step, message), t)
            return self._open(rules, rules.read(SumToOpen, step, message), t)

    def _meet(self, rules: KeyRules, terms: Terms, t: int) -> bytes:
        """Ask for a share: a fresh key to seal it with, signed."""
        self._begin(rules, terms, t)
        pair = Pair.new()
        self._round = _KeyRound(terms, pair)
        return pair.public + self._identity.sign(advert_statement(terms, self._me, pair.public))

    def _deal(self, rules: KeyRules, said: KeyRequest, t: int) -> bytes:
        """Make the key; keep one's own share of it and seal the others'. Nothing keeps the whole of a shared key."""
        terms = said.terms
        self._begin(rules, terms, t)
        others = rules.holders[1:]
        refuse_if([who for who, _ in said.adverts] != list(others), "not all other holders asked for a share", Abort)
        theirs = [rules.check_advert(terms, who, advert) for who, advert in said.adverts]
        mine, shares = rules.scheme(len(terms.cohort)).new()
        pair = Pair.new() if others else None
        key = SignedKey(terms, mine.public, pair.public if pair else None, b"")
        key = msgspec.structs.replace(key, signature=self._identity.sign(key.statement(rules.holders)))
        boxes = []
        for who, public, share in zip(others, theirs, shares, strict=True):
            assert pair is not None
            key_of_box = _share_key(pair, public, terms, self._me, who)
            boxes.append((who, seal(key_of_box, share, context=terms.digest, i=self._me, j=who)))
        self._round = _KeyRound(terms, None, mine, key)
        return encode(Dealt(key, boxes))

    def _open(self, rules: KeyRules, said: SumToOpen, t: int) -> bytes:
        # Whatever comes of it, this round's key is not used again.
        now, self._round = self._round, None
        if now is None:
            raise Abort("this party has no key of this round, which was opened, or it was started again: "
                        "it is back in the next")  # fmt: skip
        try:
            self._check(rules, now, said, t)
            opener = now.opener or self._share(rules, now, said)
            refuse_if(opener.public != said.key.public, "a share of another key than the one that was signed", Abort)
            # Before the sum exists outside: a crash in between costs the round.
            self._lists.sign(rules.agreed.key(now.terms), tuple(said.among))
            self._spent.spend(now.terms.session, t, 0)
            return opener.open(said.total, len(said.among))
        finally:
            if now.opener is not None:
                now.opener.close()

    def _begin(self, rules: KeyRules, terms: Terms, t: int) -> None:
        """Hold the terms against one's own; what is left of an earlier round is dropped."""
        if self._round is not None and self._round.opener is not None:
            self._round.opener.close()
        self._round = None
        rules.agreed.check(terms, t)
        self._lists.among(rules.agreed.key(terms), terms.cohort)
        opened = self._spent.last(terms.session)[0]
        refuse_if(t <= opened, f"round {t + 1}: its sum, or a later one, was already opened once", Abort)

    def _check(self, rules: KeyRules, now: _KeyRound, said: SumToOpen, t: int) -> None:
        among = set(said.among)
        rules.agreed.check(said.key.terms, t)
        other = said.key.terms != now.terms or (now.key is not None and said.key != now.key)
        refuse_if(other, "a sum under another key than the one of this round", Abort)
        rules.check_key(said.key)
        refuse_if(sorted(among) != said.among, "the sum names a party twice, or not in order", Abort)
        refuse_if(not among <= set(now.terms.cohort), "the sum names parties that were not asked", Abort)
        rules.agreed.check_survivors(said.among)

    def _share(self, rules: KeyRules, now: _KeyRound, said: SumToOpen) -> Opener:
        """Open the box with one's share of the key."""
        dealer, terms = rules.holders[0], now.terms
        if now.pair is None or said.key.dealer is None:
            raise Abort("a key that was not dealt, where it should have been")
        key = _share_key(now.pair, said.key.dealer, terms, dealer, self._me)
        share = open_sealed(key, said.box, context=terms.digest, i=dealer, j=self._me)
        return rules.scheme(len(terms.cohort)).opener(share)


def _share_key(pair: Pair, theirs: bytes, terms: Terms, i: int, j: int) -> bytes:
    """The key under which the dealer i seals a share for j."""
    return derive(agree(pair, theirs), purpose="encrypted", context=terms.digest, i=i, j=j)
