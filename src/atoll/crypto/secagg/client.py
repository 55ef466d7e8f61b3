"""One party's side of secure aggregation (Bonawitz et al., CCS 2017) against a server that may lie.

Five messages, five methods, bytes in and bytes out. Every doubt ends the round for this party: it raises `Abort`, the
secrets are dropped, and nothing further is answered. A request that comes twice counts as a doubt, so whoever repeats
messages on the way keeps the answer and repeats that.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import msgspec
import numpy as np

from atoll.crypto import graph, shamir
from atoll.crypto.keys import KEY, Abort, Pair, Refused, agree, derive, open_sealed, refuse_if, seal, verify
from atoll.crypto.mask import Integers, add_mask, pack
from atoll.crypto.records import encode
from atoll.crypto.secagg.messages import (
    Advert,
    Boxes,
    Bundle,
    Masked,
    Opened,
    SecurePlan,
    Signatures,
    Signed,
    Survivors,
    advert_statement,
    adverts_digest,
    commit,
    decode,
    survivors_statement,
)  # fmt: skip
from atoll.crypto.secagg.policy import STEPS, Participant

Step = Literal["advertise", "share", "masked", "consistent", "unmask", "over"]


class RoundState(msgspec.Struct, frozen=True):
    """All that a party keeps between two messages; `state` is the message it may send next."""

    state: Step = "advertise"
    plan: SecurePlan | None = None
    c: bytes = b""
    s: bytes = b""
    seed: bytes = b""
    adverts: list[Advert] = []
    holders: list[int] = []  # who gets shares of this party's secrets, and gives it shares of theirs
    shares: dict[int, bytes] = {}  # from whom: the share of the mask key, then the share of the seed
    survivors: list[int] = []

    def __repr__(self) -> str:
        return f"RoundState(state={self.state!r})"


OVER = RoundState("over")


def share_key(plan: SecurePlan, secret: bytes, i: int, j: int) -> bytes:
    """The key under which i seals shares for j."""
    return derive(secret, purpose="share", context=plan.digest, i=i, j=j)


def mask_key(plan: SecurePlan, secret: bytes, i: int, j: int) -> bytes:
    """The key of the mask between i and j. The whole plan is in it: masks made for two plans do not cancel."""
    return derive(secret, purpose="mask", context=plan.digest, i=min(i, j), j=max(i, j))


def others(plan: SecurePlan, adverts: list[Advert], me: int) -> list[int]:
    """Who shares with this party: everybody else, or its neighbours on a ring that the adverts decide."""
    ids = [a.id for a in adverts]
    if plan.neighbours == 0:
        return [j for j in ids if j != me]
    return list(graph.around(me, graph.ring(ids, adverts_digest(adverts)), plan.neighbours))


class SecureClient:
    """One party in one round."""

    def __init__(self, party: Participant) -> None:
        self.party = party
        self.expansions = 0
        self._memory = RoundState()

    def __repr__(self) -> str:
        return f"SecureClient(id={self.party.id}, state={self.state!r})"

    @property
    def state(self) -> Step:
        return self._memory.state

    def dump(self) -> bytes:
        """Everything to go on from here, secrets included: keep it where the identity key is kept."""
        return msgspec.msgpack.encode(self._memory)

    @classmethod
    def load(cls, data: bytes, party: Participant) -> SecureClient:
        """A party as it was dumped. What it did after the dump is in its record, and is not done twice."""
        client = cls(party)
        client._memory = msgspec.msgpack.decode(data, type=RoundState)
        return client

    @contextmanager
    def _at(self, state: Step) -> Iterator[None]:
        """Do one message, or end the round."""
        try:
            was = self._memory.state
            refuse_if(was != state, f"asked for {state!r} where {was!r} is next: the session is over", Abort)
            yield
        except Refused as fault:
            self._memory = OVER
            raise Abort(f"{fault}: the session is over") from None
        except Exception:
            self._memory = OVER
            raise

    def _spend(self, plan: SecurePlan) -> None:
        # Before the message exists outside: a crash in between costs this party the round, never its secrets.
        self.party.spent.spend(plan.terms.session, plan.terms.t, STEPS.index(self.state))

    def _plan(self) -> SecurePlan:
        assert self._memory.plan is not None
        return self._memory.plan

    def answer(self, step: str, message: bytes, x: Integers) -> bytes:
        """Answer any message but the first."""
        match step:
            case "share":
                return self.share(message)
            case "masked":
                return self.masked(message, x)
            case "consistent":
                return self.consistent(message)
            case _:
                return self.unmask(message)

    def advertise(self, plan: bytes, *, t: int, model: bytes) -> bytes:
        """Message 0: hold the plan against what this party agreed to, its policy and the model at hand; make keys.

        `t` is the round and `model` the hash of the question that came with the plan. Who has signed survivors of a
        sum of this model before says which: it signs no others.
        """
        with self._at("advertise"):
            me = self.party
            proposed = decode(SecurePlan, plan, len(me.agreed.members))
            me.agreed.check(proposed.terms, t)
            me.agreed.check_asked(proposed.terms, me.id, model)
            me.policy.check_plan(proposed)
            spent = me.spent.last(proposed.terms.session)[0]
            refuse_if(t <= spent, f"round {t}: round {spent} was already spent", Abort)
            among = me.lists.among(me.agreed.key(proposed.terms), proposed.terms.cohort)
            c, s, seed = Pair.new(), Pair.new(), secrets.token_bytes(KEY)
            promise = commit(proposed, me.id, seed)
            signature = me.identity.sign(advert_statement(proposed, me.id, c.public, s.public, promise))
            mine = Advert(me.id, c.public, s.public, promise, signature)
            self._memory = RoundState("share", proposed, c.secret, s.secret, seed, [mine])
            return encode(msgspec.structs.replace(mine, among=among))

    def share(self, bundle: bytes) -> bytes:
        """Message 1: check everybody's keys; deal shares of the mask key and of the seed."""
        with self._at("share"):
            plan, me, memory = self._plan(), self.party, self._memory
            adverts = decode(Bundle, bundle, len(plan.terms.cohort)).adverts
            self._check_adverts(plan, adverts)
            near = others(plan, adverts, me.id)
            # In the complete graph a party holds a share of its own, as the threshold of all n counts it.
            holders = sorted([*near, me.id]) if plan.neighbours == 0 else near
            xs = [j + 1 for j in holders]
            keys, seeds = shamir.split(memory.s, xs, plan.threshold), shamir.split(memory.seed, xs, plan.threshold)
            dealt = {j: keys[j + 1] + seeds[j + 1] for j in holders}
            public, c = {a.id: a.c for a in adverts}, Pair.of(memory.c)
            boxes = [(j, self._seal(plan, c, public[j], j, dealt[j])) for j in near]
            mine = {me.id: dealt[me.id]} if me.id in dealt else {}
            self._spend(plan)
            self._memory = msgspec.structs.replace(
                memory, state="masked", adverts=adverts, holders=holders, shares=mine
            )  # fmt: skip
            return encode(Boxes(boxes))

    def _check_adverts(self, plan: SecurePlan, adverts: list[Advert]) -> None:
        me, ids = self.party, [a.id for a in adverts]
        refuse_if(ids != sorted(set(ids)), "the adverts are not in ascending order, each party once", Abort)
        mine = next((a for a in adverts if a.id == me.id), None)
        refuse_if(mine != self._memory.adverts[0], f"party {me.id}: its own advert is missing or changed", Abort)
        keys, asked = [key for a in adverts for key in (a.c, a.s)], set(plan.terms.cohort)
        refuse_if(len(set(keys)) < len(keys), "one key is advertised twice", Abort)
        for a in adverts:
            refuse_if(a.id not in asked, f"party {a.id} was not asked for this sum", Abort)
            said = advert_statement(plan, a.id, a.c, a.s, a.commitment)
            valid = verify(me.agreed.roster.get(a.id, b""), said, a.signature)
            refuse_if(not valid, f"party {a.id}: its advert is not signed by it for this plan", Abort)
        me.policy.check_cohort(plan, len(adverts))

    def _seal(self, plan: SecurePlan, c: Pair, theirs: bytes, j: int, text: bytes) -> bytes:
        key = share_key(plan, _agree(c, theirs, j), self.party.id, j)
        return seal(key, text, context=plan.digest, i=self.party.id, j=j)

    def masked(self, boxes: bytes, x: Integers) -> bytes:
        """Message 2: open the shares of the others; send the vector under its own mask and those of all pairs."""
        with self._at("masked"):
            plan, me, memory = self._plan(), self.party, self._memory
            dtype = np.dtype(f"uint{plan.width}")
            refuse_if(
                x.dtype != dtype or x.shape != (plan.size,), f"a {x.dtype} array of {x.shape} for the plan", Abort
            )
            shares = memory.shares | self._open(plan, decode(Boxes, boxes, len(plan.terms.cohort)).boxes)
            few = len(shares) < plan.threshold
            refuse_if(few, f"shares of {len(shares)} parties: {plan.threshold} are needed", Abort)
            y, s = x.copy(), Pair.of(memory.s)
            public = {a.id: a.s for a in memory.adverts}
            for j in shares:
                if j != me.id:
                    key = mask_key(plan, _agree(s, public[j], j), me.id, j)
                    add_mask(y, key, sign=1 if me.id < j else -1)
            add_mask(y, mask_key(plan, memory.seed, me.id, me.id))
            self.expansions = len(set(shares) | {me.id})
            me.lists.keep(me.agreed.key(plan.terms), x)
            self._spend(plan)
            self._memory = msgspec.structs.replace(memory, state="consistent", shares=shares, s=b"", seed=b"")
            return encode(Masked(pack(y, plan.bits)))

    def _open(self, plan: SecurePlan, boxes: list[tuple[int, bytes]]) -> dict[int, bytes]:
        me, memory = self.party, self._memory
        senders = [j for j, _ in boxes]
        refuse_if(senders != sorted(set(senders)), "the shares are not in ascending order, each party once", Abort)
        strangers = set(senders) - (set(memory.holders) - {me.id})
        refuse_if(bool(strangers), f"shares of {sorted(strangers)[:5]}: none were expected of them", Abort)
        public, c, out = {a.id: a.c for a in memory.adverts}, Pair.of(memory.c), {}
        for j, box in boxes:
            key = share_key(plan, _agree(c, public[j], j), j, me.id)
            out[j] = open_sealed(key, box, context=plan.digest, i=j, j=me.id)
        return out

    def consistent(self, survivors: bytes) -> bytes:
        """Message 3: sign whose vectors are said to have arrived, once."""
        with self._at("consistent"):
            plan, me, memory = self._plan(), self.party, self._memory
            ids = decode(Survivors, survivors, len(plan.terms.cohort)).ids
            refuse_if(ids != sorted(set(ids)), "the survivors are not in ascending order, each party once", Abort)
            refuse_if(me.id not in ids, f"party {me.id} is not among the survivors, though it sent its vector", Abort)
            # Of parties that are no neighbours only the advert is known; of neighbours, whether they dealt shares.
            dead = {a.id for a in memory.adverts} - ({me.id} | set(memory.shares))
            dead = dead & set(memory.holders) if plan.neighbours else dead
            unknown = set(ids) - ({a.id for a in memory.adverts} - dead)
            refuse_if(bool(unknown), f"survivors {sorted(unknown)[:5]} never dealt shares", Abort)
            least = me.policy.least(len(memory.adverts))
            least = least if plan.neighbours else max(least, plan.threshold)
            refuse_if(len(ids) < least, f"{len(ids)} survivors: {least} are needed", Abort)
            me.agreed.check_survivors(ids)
            said = survivors_statement(plan, adverts_digest(memory.adverts), ids)
            me.lists.sign(me.agreed.key(plan.terms), tuple(ids))
            self._spend(plan)
            self._memory = msgspec.structs.replace(memory, state="unmask", survivors=ids, c=b"")
            return encode(Signed(me.identity.sign(said)))

    def unmask(self, signatures: bytes) -> bytes:
        """Message 4: when enough others signed the same survivors, give one share for each party and be done."""
        with self._at("unmask"):
            plan, me, memory = self._plan(), self.party, self._memory
            signed = decode(Signatures, signatures, len(plan.terms.cohort)).signatures
            signers = [j for j, _ in signed]
            refuse_if(signers != sorted(set(signers)), "the signatures are not in ascending order, each once", Abort)
            may = set(memory.survivors) & set(memory.holders) - {me.id}
            strangers = set(signers) - may
            refuse_if(bool(strangers), f"signatures of {sorted(strangers)[:5]}: none were expected of them", Abort)
            said = survivors_statement(plan, adverts_digest(memory.adverts), memory.survivors)
            for j, signature in signed:
                valid = verify(me.agreed.roster[j], said, signature)
                refuse_if(not valid, f"party {j} has not signed the survivors that party {me.id} was told of", Abort)
            count = len(signed) + (me.id in memory.holders)
            few = count < plan.threshold
            refuse_if(few, f"{count} signatures under the survivors: {plan.threshold} are needed", Abort)
            alive, cut = set(memory.survivors), shamir.SHARE
            shares = [(j, both[cut:] if j in alive else both[:cut]) for j, both in sorted(memory.shares.items())]
            self._spend(plan)
            self._memory = OVER
            return encode(Opened(shares))


def _agree(pair: Pair, theirs: bytes, j: int) -> bytes:
    try:
        return agree(pair, theirs)
    except Refused as fault:
        raise Refused(f"party {j}: {fault}") from None
