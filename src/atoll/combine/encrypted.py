"""Homomorphic sums: parties encrypt, the server adds ciphertexts, whoever holds the key opens the sum only."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import numpy as np

from atoll.combine import layouts, protocol
from atoll.combine.hidden import LEAST, SIMULATED, bits_of, check_ring, gather_in_clear, hidden_seen
from atoll.combine.protocol import PartySession, SumExchange
from atoll.core.effects import Cohort
from atoll.core.question import Exposure, Layout, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import ClientSide, Combine, Gather, Gathered, Mismatch, Setting, Train, Wire
from atoll.core.world import World
from atoll.crypto import additive, holders
from atoll.crypto.additive import Scheme, Sealer
from atoll.crypto.holders import Holder, KeyRequest, KeyRules, SumToOpen
from atoll.crypto.keys import Abort, packed, refuse_if
from atoll.crypto.records import encode
from atoll.crypto.terms import SESSION, Terms

SCHEMES = ("paillier", "ckks")
_ASSUMING = {
    "paillier": "deciding residues modulo n² is hard, with short exponents (Damgård, Jurik, Nielsen)",
    "ckks": "learning with errors is hard; sums are rounded to a grid, so they tell nothing of the key",
}


@dataclass(frozen=True)
class EncryptedSum(Combine):
    """Add vectors under homomorphic encryption; a key holder that is not the server decrypts the sum.

    The first parties by number hold the key, a new one for each round. A simulation adds the integers directly, bit
    for bit as the protocol would, and says so.

    Needs: a ring; a server and key holders that follow the protocol and do not collude.
    Reveals: the sum and who took part to the server; the sum to a single key holder.

    Args:
        scheme: "paillier" (packed, the default) or "ckks" (`pip install 'atoll[ckks]'`).
        bits: length of a Paillier key in bits, 2048 or 3072. Default 2048.
        key_holders: parties that share a Paillier key, 1 or more; all of them are needed to decrypt. Default 1.

    Example:
        >>> import atoll
        >>> atoll.EncryptedSum(key_holders=2).holders(range(10))
        (0, 1)
    """

    scheme: str = "paillier"
    bits: int = 2048
    key_holders: int = 1

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise Mismatch(f"EncryptedSum(scheme={self.scheme!r}): 'paillier' or 'ckks'")
        if self.bits not in (2048, 3072):
            raise Mismatch(f"EncryptedSum(bits={self.bits}): keys have 2048 or 3072 bits")
        if self.key_holders < 1:
            raise Mismatch(f"EncryptedSum(key_holders={self.key_holders}): somebody must hold the key, 1 or more")
        if self.scheme == "ckks" and self.key_holders > 1:
            raise Mismatch(
                f"EncryptedSum(key_holders={self.key_holders}): a CKKS key has one holder; share a Paillier key"
            )

    @property
    def hidden(self) -> Literal["semi-honest"]:
        return "semi-honest"

    def check(self, wire: Wire) -> None:
        check_ring(wire, "EncryptedSum()")
        if self.scheme == "ckks" and bits_of(wire) > 44:
            raise Mismatch(
                "EncryptedSum(scheme='ckks') is exact up to 44 bits, which the sum does not fit: fewer Ring bits"
            )
        if self.key_holders > wire.total.cohort:
            few = f"a round has about {wire.total.cohort} parties, take fewer"
            raise Mismatch(f"EncryptedSum(key_holders={self.key_holders}): {few}")

    def min_cohort(self, wire: Wire) -> int:
        return max(wire.total.min_cohort, LEAST)

    def holders(self, parties: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(parties)[: self.key_holders])

    def message_bytes(self, wire: Wire, holder: int | None = None) -> Mapping[str, tuple[int, int]]:
        n = wire.total.cohort
        sizes = holders.expected_bytes(self._scheme(wire, n), self.key_holders, n)
        mine = {None: ("seal",), 0: ("key", "seal", "open")}.get(holder, ("meet", "seal", "open"))
        return {f"encrypted.{step}": sizes[step] for step in mine}

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        alone = self.key_holders == 1
        holder = "the key holder" if alone else f"the {self.key_holders} key holders together"
        lies = (
            "anything against a server that lies: it could pass one party's ciphertext off as a sum; use SecureSum() "
            "there"
        )
        return {
            **hidden_seen(wire, world, LEAST, lies),
            "server": f"ciphertexts, and from {holder} the opened sum{SIMULATED if world.shortcut else ''}",
            "key holder": "the sum, never a vector" if alone else "the encrypted sum, never a vector",
            "against": "a semi-honest server and semi-honest key holders that do not work together",
            "assuming": "the key holder is not the server; " + _ASSUMING[self.scheme],
        }

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        if setting.world.shortcut:
            return (layouts.contribute(wire, setting, body, f"the sum of the vectors{SIMULATED}"),)
        sizes = holders.message_sizes(self._scheme(wire, parties), self.key_holders, parties)
        reveals = self._reveals(wire)
        found = []
        for step in holders.STEPS if self.key_holders > 1 else holders.STEPS[1:]:
            asks = body if step == "seal" else None
            form: Exposure = "sealed" if step == "seal" else "nothing"
            found.append(layouts.step(setting, f"encrypted.{step}", asks, sizes[step], reveals[step], form))
        return tuple(found)

    def gather(self, wire: Wire, setting: Setting) -> Gather:
        self.check(wire)
        if setting.world.shortcut:
            return gather_in_clear(wire, setting, lambda n: LEAST)
        self._check_installed()
        # Every start of a server is a session of its own: a round that was cut short is done again with a new key.
        session, least = secrets.token_bytes(SESSION), max(LEAST, wire.total.min_cohort)

        async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
            rules = self.rules(wire, setting)
            ids = [who for who in cohort.tolist() if who in rules.agreed.members]
            exchange = SumExchange(setting, "encrypted", len(ids))
            try:
                terms = rules.agreed.terms(session, int(question["t"]), ids, protocol.fingerprint(question))
                rules.agreed.check(terms, terms.t)
                total, among = await _Leader(rules, terms, exchange).lead(question, goal)
            except Abort as reason:
                return protocol.closed(wire, least, reason)
            return protocol.opened(total, among, wire, exchange.facts(len(cohort), len(among)))

        return gather

    def client(self, wire: Wire, setting: Setting, session: PartySession) -> ClientSide | None:
        if setting.world.shortcut:
            return None
        self._check_installed()
        return EncryptedParty(self, wire, setting, session)

    def rules(self, wire: Wire, setting: Setting, session: PartySession | None = None) -> KeyRules:
        """Put together what a party, or the server, knows of a sum by itself."""
        least = max(LEAST, wire.total.min_cohort, session.min_cohort if session else 0)
        how = packed("encrypted", self.scheme, self.bits, self.key_holders)
        mine = protocol.agreed(
            setting, wire, how, holders=self.key_holders, min_cohort=least, session=session
        )  # fmt: skip
        return KeyRules(mine, mine.always, lambda room: self._scheme(wire, room))

    def _scheme(self, wire: Wire, room: int) -> Scheme:
        value = int(wire.need_ring("EncryptedSum()").value_bound).bit_length() + 1  # bits of one number, with its sign
        if self.scheme == "ckks":
            return additive.CkksScheme(value, wire.row.size)
        return additive.PaillierScheme(self.bits, self.key_holders, value, room, wire.row.size)

    def _check_installed(self) -> None:
        if self.scheme == "ckks" and find_spec("tenseal") is None:
            raise Mismatch("EncryptedSum(scheme='ckks') needs TenSEAL: pip install 'atoll[ckks]'")

    def _reveals(self, wire: Wire) -> Mapping[str, Mapping[str, str]]:
        opened = f"the sum of at least {self.min_cohort(wire)} vectors"
        if self.key_holders > 1:
            opened = f"one of {self.key_holders} parts, which together open {opened}"
        return {
            "meet": {"server": "that the key holder is there; a fresh public key", "other parties": "the same"},
            "key": {"server": "the public key of this round", "other parties": "the same"},
            "seal": {"server": "one ciphertext, for which it has no key", "key holder": "nothing but the sum"},
            "open": {"server": opened},
        }


class _Leader:
    """The server's side of one round: a key from its holders, ciphertexts from the cohort, their sum to the holders."""

    def __init__(self, rules: KeyRules, terms: Terms, exchange: SumExchange) -> None:
        self._rules, self._terms, self._exchange = rules, terms, exchange

    async def lead(self, question: Tree, goal: int | None) -> tuple[Array, list[int]]:
        """Return the sum and who is in it."""
        rules, terms, least = self._rules, self._terms, self._rules.agreed.min_cohort
        first, others = rules.holders[0], rules.holders[1:]
        adverts = await self._all("meet", dict.fromkeys(others, encode(terms)))
        made = await self._all("key", {first: encode(KeyRequest(terms, sorted(adverts.items())))})
        with holders.doubts():
            dealt = rules.dealt(made[first], terms)
            sealer = rules.sealer(dealt.key)
        with closing(sealer):
            message = dict.fromkeys(terms.cohort, encode(dealt.key))
            goal = None if goal is None else max(goal, least)
            answers = await self._exchange.ask("seal", message, question, goal)
            among = [who for who, sealed in answers.items() if await self._added(sealer, who, sealed)]
            refuse_if(len(among) < least, f"{len(among)} vectors came, {least} are needed", Abort)
            boxes, total = dict(dealt.boxes), sealer.total()
            sums = {who: encode(SumToOpen(dealt.key, among, total, boxes.get(who, b""))) for who in rules.holders}
            opened = await self._all("open", sums)
            with holders.doubts():
                return sealer.read([opened[who] for who in rules.holders], len(among)), among

    async def _added(self, sealer: Sealer, who: int, sealed: bytes) -> bool:
        try:
            with holders.doubts():
                sealer.add(sealed)
        except Abort as fault:
            await self._exchange.reject(who, fault)
            return False
        return True

    async def _all(self, step: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Ask holders: without one of them there is no sum."""
        answers = await self._exchange.ask(step, messages, {"t": self._terms.t}) if messages else {}
        away = sorted(messages.keys() - answers.keys())
        refuse_if(bool(away), f"party {min(away, default=0)}, who holds the key, is away or declined", Abort)
        return answers


class EncryptedParty(ClientSide):
    """One party of encrypted sums, round after round; it may be a holder, too."""

    def __init__(self, how: EncryptedSum, wire: Wire, setting: Setting, session: PartySession) -> None:
        self._how, self._wire, self._setting, self._session = how, wire, setting, session
        self._holder = Holder(session.me, session.identity, session.spent, session.lists)

    def answer(self, step: str, body: Tree, train: Train) -> Tree:
        message, t = protocol.message_of(body), int(body["t"])
        step = protocol.read_step("encrypted", holders.STEPS, step)
        rules = self._how.rules(self._wire, self._setting, self._session)
        if step != "seal":
            return protocol.said(self._holder.answer(rules, step, message, t))
        question = protocol.question_of(body)
        with holders.doubts():
            key = rules.key_for(self._session.me, message, t, protocol.fingerprint(question))
            sealer = rules.sealer(key)
        self._session.lists.among(rules.agreed.key(key.terms), key.terms.cohort)
        with closing(sealer):
            vector = np.asarray(protocol.vector_of(self._setting, self._session, question, train))
            self._session.lists.keep(protocol.sum_key(self._setting, question), vector)
            with holders.doubts():
                return protocol.said(sealer.encrypt(protocol.around_zero(vector)))
