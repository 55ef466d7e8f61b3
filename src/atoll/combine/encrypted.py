"""Homomorphic sums: parties encrypt, the server adds ciphertexts, whoever holds the key opens the sum only."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.combine.hidden import LEAST, bits_of, check, fingerprint, gather_hidden, server_sees
from atoll.combine.talk import Dialogue, Sitting, Train, Unopened, closed
from atoll.core.effects import Cohort, Replies, ask, note
from atoll.core.tree import Array, Tree
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Wire
from atoll.crypto.keys import packed
from atoll.crypto.secagg.policy import Abort

if TYPE_CHECKING:
    from atoll.crypto.additive import Scheme, Sealer
    from atoll.crypto.holders import Table, Terms

SCHEMES = ("paillier", "ckks")


@dataclass(frozen=True)
class EncryptedSum:
    """Add vectors under encryption; a key holder that is not the server opens the sum. Needs: a ring.

    "paillier" (`bits` 2048 or 3072, packed) or "ckks" (extra `ckks`). The first parties by number hold the key: with
    `holders` above 1 a Paillier key is shared, and all of them must take part in opening. A key lives for one round. A
    simulation adds the integers up, which gives the same bits, and says so; `real` encrypts, adds and decrypts in this
    process.
    """

    scheme: str = "paillier"
    bits: int = 2048
    holders: int = 1
    real: bool = False

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"EncryptedSum(scheme={self.scheme!r}): 'paillier' or 'ckks'")
        if self.bits not in (2048, 3072):
            raise ValueError(f"EncryptedSum(bits={self.bits}): keys have 2048 or 3072 bits")
        if self.holders < 1:
            raise ValueError(f"EncryptedSum(holders={self.holders}): somebody must hold the key, 1 or more")
        if self.scheme == "ckks" and self.holders > 1:
            raise ValueError(f"EncryptedSum(holders={self.holders}): a CKKS key has one holder; share a Paillier key")

    def seen(self, wire: Wire) -> Mapping[str, str]:
        simulated = "" if self.real else " (simulated: the same integers are added up in the clear)"
        holder = "the key holder" if self.holders == 1 else f"the {self.holders} key holders together"
        return {
            **server_sees(wire, LEAST, self.real),
            "server": f"ciphertexts, and from {holder} the opened sum{simulated}",
            "key holder": "the sum, never a vector" if self.holders == 1 else "the encrypted sum, never a vector",
            "against": "a semi-honest server and semi-honest key holders that do not work together",
            "assuming": "the key holder is not the server; " + _ASSUMING[self.scheme],
            "not promised": "anything against a server that lies: it could pass one party's ciphertext off as a sum; "
            "use SecureSum() there",
        }

    def __call__(self, wire: Wire) -> Gather:
        check(wire, "EncryptedSum()")
        if self.scheme == "ckks" and bits_of(wire) > 44:
            raise Mismatch(
                "EncryptedSum(scheme='ckks') is exact up to 44 bits, which the sum does not fit: fewer Ring bits"
            )
        if self.scheme == "ckks" and self.real and find_spec("tenseal") is None:
            raise Mismatch("EncryptedSum(scheme='ckks') needs TenSEAL: pip install 'atoll[ckks]'")
        if self.holders > wire.cohort:
            raise Mismatch(f"EncryptedSum(holders={self.holders}): a round has about {wire.cohort} parties, take fewer")
        return gather_hidden(wire, lambda n: LEAST, partial(self._protocol, wire) if self.real else None)

    def holding(self, parties: Iterable[int]) -> tuple[int, ...]:
        """Say who of these holds the key: the first by number."""
        return tuple(sorted(parties)[: self.holders])

    def needs(self, wire: Wire, parties: int) -> dict[str, tuple[int, int]]:
        """Say how many bytes each message of a party, and the one it answers, have at most, by the question."""
        from atoll.crypto.holders import message_sizes

        sizes = message_sizes(self._scheme(_value(wire), parties, wire.size), self.holders, parties)
        # The first is the one that comes with the model.
        return {f"encrypted.{step}": sizes[step] for step in sorted(sizes, key=lambda step: step != "seal")}

    def talk(self, wire: Wire, keys: Callable[[], Mapping[int, bytes]], schema: bytes) -> Gather:
        """Ask real parties; `keys` are those they sign with. Every start of a server is a session of its own."""
        from atoll.crypto.holders import Terms

        session, least = secrets.token_bytes(16), max(LEAST, wire.floor)

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            known = keys()
            table = self._table(known, _value(wire), wire.size, schema, least)
            ids = [who for who in cohort.tolist() if who in known]
            terms = Terms(session, int(question["t"]), ids, fingerprint(question), table.form)
            try:
                table.check_terms(terms, terms.t)
                total, among, facts = await _Round(table, terms, question).lead(enough)
            except (Abort, Unopened) as reason:
                return closed(wire, least, str(reason))
            facts |= {"lost": lost} if (lost := len(cohort) - len(among)) else {}
            return Gathered(total.astype(wire.dtype), Replies(np.array(among, np.int64), facts=facts))

        return gather

    def party(self, sitting: Sitting) -> Dialogue:
        """Sit down to encrypted sums."""
        least = max(sitting.least, sitting.floor)
        table = self._table(sitting.keys, sitting.value, sitting.size, sitting.schema, least)
        return EncryptedParty(table, sitting)

    def _table(self, keys: Mapping[int, bytes], value: int, size: int, schema: bytes, least: int) -> Table:
        from atoll.crypto.holders import PROTOCOL, Table

        form = sha256(packed(PROTOCOL, schema, self.scheme, self.bits, self.holders, value, size)).digest()
        return Table(keys, self.holding(keys), form, least, lambda room: self._scheme(value, room, size))

    def _scheme(self, value: int, room: int, size: int) -> Scheme:
        from atoll.crypto import additive

        if self.scheme == "ckks":
            return additive.Ckks(value, size)
        return additive.Paillier(self.bits, self.holders, value, room, size)

    def _protocol(
        self, wire: Wire, rows: Array, sent: Cohort, asked: Cohort, question: Question
    ) -> tuple[Array, dict[str, Any]]:
        """Encrypt, add and open in one process."""
        n, scheme = len(rows), self._scheme(_value(wire), len(asked), wire.size)
        mine, shares = scheme.new()
        with closing(mine), closing(scheme.sealer(mine.public)) as sealer:
            sealed = [sealer.encrypt(row.astype(np.int64)) for row in rows]
            for one in sealed:
                sealer.add(one)
            openers = [mine, *(scheme.opener(share) for share in shares)]
            opened = [opener.open(sealer.total(), n) for opener in openers]
            return sealer.read(opened, n), {"protocol_bytes": float(len(sealed[0]))}

    def bytes(self, wire: Wire) -> int:
        if self.scheme == "ckks":
            from atoll.crypto.ckks import BYTES, SLOTS

            return -(-wire.size // SLOTS) * BYTES
        return self._scheme(_value(wire), wire.most, wire.size).sizes[1]


def _value(wire: Wire) -> int:
    """Bits of one number, with its sign."""
    return int(wire.peak).bit_length() + 1


_ASSUMING = {
    "paillier": "deciding residues modulo n² is hard, with short exponents (Damgård, Jurik, Nielsen)",
    "ckks": "learning with errors is hard; sums are rounded to a grid, so they tell nothing of the key",
}


class _Round:
    """The server's side of one round: a key from its holders, ciphertexts from the cohort, their sum to the holders."""

    def __init__(self, table: Table, terms: Terms, question: Question) -> None:
        self._table, self._terms, self._question = table, terms, question
        self._facts: dict[str, Any] = {"seconds": 0.0}

    async def lead(self, enough: int | None) -> tuple[Array, list[int], dict[str, Any]]:
        """Return the sum, who is in it, and what the runtime measured."""
        from atoll.crypto import holders

        table, terms = self._table, self._terms
        first, others = table.holders[0], table.holders[1:]
        adverts = await self._all("meet", dict.fromkeys(others, holders.encode(terms)))
        made = await self._all("key", {first: holders.encode(holders.Ask(terms, sorted(adverts.items())))})
        with holders.doubts():
            dealt = table.dealt(made[first], terms)
            sealer = table.sealer(dealt.key)
        with closing(sealer):
            message = dict.fromkeys(terms.cohort, holders.encode(dealt.key))
            enough = None if enough is None else max(enough, table.least)
            answers = await self._ask("seal", message, self._question, enough)
            among = [who for who, sealed in answers.items() if await self._added(sealer, who, sealed)]
            if len(among) < table.least:
                raise Unopened(f"{len(among)} vectors came, {table.least} are needed")
            boxes, total = dict(dealt.boxes), sealer.total()
            sums = {
                who: holders.encode(holders.Total(dealt.key, among, total, boxes.get(who, b"")))
                for who in table.holders
            }
            opened = await self._all("open", sums)
            with holders.doubts():
                return sealer.read([opened[who] for who in table.holders], len(among)), among, self._facts

    async def _added(self, sealer: Sealer, who: int, sealed: bytes) -> bool:
        from atoll.crypto.holders import doubts

        try:
            with doubts():
                sealer.add(sealed)
        except Abort as fault:
            await note("rejected", number=who, reason="encrypted", why=str(fault))
            return False
        return True

    async def _all(self, step: str, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Ask holders: without one of them there is no sum."""
        answers = await self._ask(step, messages, {"t": self._terms.t}, None) if messages else {}
        if away := sorted(messages.keys() - answers.keys()):
            raise Unopened(f"party {away[0]}, who holds the key, is away or declined")
        return answers

    async def _ask(
        self, step: str, messages: Mapping[int, bytes], body: Question, enough: int | None
    ) -> dict[int, bytes]:
        each = {who: {"message": np.frombuffer(message, np.uint8)} for who, message in messages.items()}
        to = np.array(sorted(messages), np.int64)
        replies = await ask(to, f"encrypted.{step}", body, enough=enough, each=each)
        self._facts["seconds"] += replies.facts.get("seconds", 0.0)
        self._facts |= {name: replies.facts[name] for name in ("elapsed",) if name in replies.facts}
        found = list(zip(replies.parties.tolist(), replies.each.get("message", ()), strict=True))
        return {who: message.tobytes() for who, message in found[:enough]}


class EncryptedParty:
    """One real party of encrypted sums, round after round; it may be a holder, too."""

    def __init__(self, table: Table, sitting: Sitting) -> None:
        from atoll.crypto.holders import Holder
        from atoll.crypto.secagg import Spent

        self._table, self._me = table, sitting.me
        self._holder = Holder(sitting.me, sitting.identity, table, Spent(sitting.folder))

    def answer(self, step: str, body: Tree, train: Train) -> bytes:
        from atoll.crypto.holders import doubts

        message, t = np.asarray(body["message"]).tobytes(), int(body["t"])
        if step != "seal":
            return self._holder.answer(step, message, t)
        question = {name: leaf for name, leaf in body.items() if name != "message"}
        with doubts():
            sealer = self._table.sealer(self._table.key_for(self._me, message, t, fingerprint(question)))
        with closing(sealer):
            row = train(question)
            with doubts():
                return sealer.encrypt(row.view(np.int32 if row.itemsize == 4 else np.int64).astype(np.int64))
