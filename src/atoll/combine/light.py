"""Light secure aggregation: one coded mask a party, so that the server's work does not depend on who drops out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import MsgspecError, msgpack

from atoll.combine.hidden import check, fingerprint, gather_hidden, server_sees
from atoll.combine.talk import TERMS, Dialogue, Sitting, Train, Unopened, closed, converse
from atoll.core.effects import Cohort, Replies
from atoll.core.tree import Array, Tree
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Wire
from atoll.crypto.keys import refuse_if
from atoll.crypto.secagg.policy import Abort

if TYPE_CHECKING:
    from atoll.crypto.light import Client, Light


@dataclass(frozen=True)
class LightSum:
    """Learn the sum through one coded mask a party (LightSecAgg, So et al. 2022): against a semi-honest server.

    `privacy` is the fraction of the parties that may tell the server all they know, `target` the fraction that must
    stay to the end. The server's work does not depend on how many drop out. Needs: a ring whose sums fit 30 bits.
    """

    privacy: float = 0.5
    target: float = 0.7
    real: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.privacy < self.target <= 1:
            raise ValueError(f"LightSum(privacy={self.privacy}, target={self.target}): fractions, privacy below target")

    def counts(self, n: int) -> tuple[int, int]:
        """How many of n may collude, and how many must stay."""
        privacy = max(floor(self.privacy * n + 1e-9), 1)
        return privacy, max(floor(self.target * n + 1e-9), privacy + 2)

    def seen(self, wire: Wire) -> Mapping[str, str]:
        colluding, least = self.counts(wire.cohort)
        return {
            **server_sees(wire, least, self.real),
            "against": f"a semi-honest server (it follows the protocol) and {colluding} parties that tell it all",
            "assuming": "parties know each other's keys from elsewhere than the server; X25519, Ed25519, AES-256",
            "not promised": "anything against a server that lies: use SecureSum() there",
        }

    def __call__(self, wire: Wire) -> Gather:
        check(wire, "LightSum()")
        if self.counts(wire.cohort)[1] > wire.cohort:
            raise Mismatch(f"LightSum() of {wire.cohort} parties needs {self.counts(wire.cohort)[1]}: select more")
        if wire.span >= 2**30 - 1:
            raise Mismatch(
                "LightSum() adds in a field of 31 bits, which the sum does not fit: use Ring(bits=…) with fewer"
            )
        return gather_hidden(wire, lambda n: self.counts(n)[1], self._protocol if self.real else None)

    def needs(self, wire: Wire, parties: int) -> dict[str, tuple[int, int]]:
        """Say how many bytes each message of a party, and the one it answers, have at most, by the question."""
        from atoll.crypto.keys import KEY, NONCE, SIGNATURE, TAG
        from atoll.crypto.light import STEPS

        privacy, target = self.counts(parties)
        share = 4 * -(-wire.size // (target - privacy))
        letters, adverts = parties * (share + NONCE + TAG + 64), parties * (KEY + SIGNATURE + 64)
        up = (KEY + SIGNATURE, TERMS + letters, 4 * wire.size, share)
        down = (TERMS + 16 * parties, TERMS + adverts, TERMS + letters, TERMS + 16 * parties)
        return {f"light.{step}": (a, b) for step, a, b in zip(STEPS, up, down, strict=True)}

    def talk(self, wire: Wire, keys: Callable[[], Mapping[int, bytes]], schema: bytes) -> Gather:
        """Ask real parties; `keys` are those they sign with."""
        from atoll.crypto import field, light

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            known, session = keys(), secrets.token_bytes(16)
            ids = [who for who in cohort.tolist() if who in known]
            privacy, target = self.counts(len(ids))
            least = max(target, wire.floor)
            try:
                if len(ids) < least:
                    raise Unopened(f"{len(ids)} parties are there, {least} are needed")
                terms = light.Light(
                    {who: known[who] for who in ids}, privacy, least, wire.size, session, int(question["t"]),
                    fingerprint(question) + schema,
                )  # fmt: skip
                server = light.Server(terms)
                first = dict.fromkeys(ids, msgpack.encode((session, ids)))
                facts = await converse("light", light.STEPS, server, first, question, None, Abort)
                total = field.to_signed(server.finish())
            except (Abort, Unopened) as reason:
                return closed(wire, least, str(reason))
            facts |= {"lost": lost} if (lost := len(ids) - len(server.survivors)) else {}
            return Gathered(total.astype(wire.dtype), Replies(np.array(server.survivors, np.int64), facts=facts))

        return gather

    def party(self, sitting: Sitting) -> Dialogue:
        """Sit down to light sums."""
        return LightParty(self, sitting)

    def _protocol(self, rows: Array, sent: Cohort, asked: Cohort, question: Question) -> tuple[Array, dict[str, Any]]:
        from atoll.crypto.light import rehearse

        ids = asked.tolist()
        there = dict(zip(sent.tolist(), rows.astype(np.int64), strict=True))
        blank = np.zeros(rows.shape[1], np.int64)
        privacy, target = self.counts(len(ids))
        total, _, facts = rehearse(
            np.stack([there.get(i, blank) for i in ids]), ids=ids, privacy=privacy, target=target,
            drop={i: "upload" for i in ids if i not in there}, model=fingerprint(question), round=int(question["t"]),
        )  # fmt: skip
        cost = {
            "protocol_bytes": float(np.mean(list(facts.bytes.values()))),
            "protocol_client": facts.client_seconds,
            "protocol_server": facts.unmask_seconds,
        }
        return total, cost

    def bytes(self, wire: Wire) -> int:
        from atoll.crypto.keys import KEY, NONCE, SIGNATURE, TAG

        privacy, target = self.counts(wire.cohort)
        share = 4 * -(-wire.size // (target - privacy))
        return KEY + SIGNATURE + (wire.cohort - 1) * (share + NONCE + TAG) + 4 * wire.size + share


class LightParty:
    """One real party of light sums, round after round. How many must stay follows from the job, not from the server."""

    def __init__(self, how: LightSum, sitting: Sitting) -> None:
        self._how, self._sitting = how, sitting
        self._client: Client | None = None
        self._vector: Array = np.zeros(0)

    def answer(self, step: str, body: Tree, train: Train) -> bytes:
        from atoll.crypto import field, light

        message = np.asarray(body["message"]).tobytes()
        if step == "advertise":
            question = {name: leaf for name, leaf in body.items() if name != "message"}
            self._client = light.Client(self._terms(message, question), self._sitting.me, self._sitting.identity)
            row = train(question)
            self._vector = field.from_signed(row.view(np.int32 if row.itemsize == 4 else np.int64).astype(np.int64))
            return self._client.advertise()
        if self._client is None:
            raise Abort("this party was started again and has no keys of this round: it is back in the next")
        if step == "upload":
            return self._client.upload(message, self._vector)
        return self._client.share(message) if step == "share" else self._client.recover(message)

    def _terms(self, message: bytes, question: Question) -> Light:
        """Read who takes part; everything else this party knows itself."""
        from atoll.crypto import light

        mine = self._sitting
        try:
            session, ids = msgpack.decode(message, type=tuple[bytes, list[int]])
        except MsgspecError:
            raise Abort("the terms of the round cannot be read") from None
        strangers = sorted(set(ids) - mine.keys.keys())
        refuse_if(bool(strangers), f"parties {strangers[:5]} are not in this party's roster", Abort)
        refuse_if(len(ids) < mine.least, f"{len(ids)} parties: the policy asks for {mine.least}", Abort)
        privacy, target = self._how.counts(len(ids))
        model = fingerprint(question) + mine.schema
        roster = {who: mine.keys[who] for who in ids}
        return light.Light(roster, privacy, max(target, mine.floor), mine.size, session, int(question["t"]), model)
