"""The honest server of secure aggregation: it carries messages, sums with wrap-around, and unmasks the sum only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from atoll.crypto import graph, shamir
from atoll.crypto.keys import Abort, Pair, Refused, agree, refuse_if, verify
from atoll.crypto.mask import Integers, add_mask, packed_bytes, unpack
from atoll.crypto.records import Message, encode
from atoll.crypto.secagg.client import mask_key
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
from atoll.crypto.secagg.policy import STEPS


class SecureServer:
    """One round: `take` the messages of a step, `turn` to the next, `finish` after the last.

    A message that cannot be right is refused without harm to the round; too few right ones end it. No sum of fewer
    than `least` vectors is asked for.
    """

    def __init__(self, plan: SecurePlan, roster: Mapping[int, bytes], least: int = 0) -> None:
        self.plan = plan
        self.least = least
        self.step = 0
        self.expansions = 0
        self._roster = roster
        self._waiting = set(plan.terms.cohort)  # who may still send a message in this step
        self._adverts: dict[int, Advert] = {}
        self._digest = b""
        self._near: dict[int, tuple[int, ...]] = {}
        self._boxes: dict[int, dict[int, bytes]] = {}
        self._total: Integers = np.zeros(plan.size, f"uint{plan.width}")
        self._survivors: list[int] = []
        self._signatures: dict[int, bytes] = {}
        self._opened: dict[int, dict[int, bytes]] = {}  # of whom, by whom

    def __repr__(self) -> str:
        return f"SecureServer(step={STEPS[self.step]!r}, waiting={len(self._waiting)})"

    def take(self, sender: int, data: bytes) -> None:
        """Accept one party's message of this step; the transport vouches for the sender."""
        refuse_if(sender not in self._waiting, f"party {sender} has no message to send now")
        take = (self._advert, self._deal, self._mask, self._sign, self._open)[self.step]
        take(sender, data)
        self._waiting.remove(sender)

    def turn(self) -> dict[int, bytes]:
        """End the step: what to send to whom."""
        turn = (self._bundle, self._deliver, self._tell, self._show)[self.step]
        out = {who: encode(message) for who, message in turn().items()}
        self.step += 1
        self._waiting = set(out)
        return out

    def _enough(self, ids: list[int]) -> list[int]:
        # In the sparse graph the threshold counts neighbours, and parties that have too few say so themselves.
        least = self.plan.threshold if self.plan.neighbours == 0 else self.plan.neighbours + 2
        least = max(least, self.least) if self.step <= STEPS.index("masked") else least
        what = STEPS[self.step]
        refuse_if(len(ids) < least, f"{len(ids)} parties sent {what!r}, {least} are needed: the round is over", Abort)
        return ids

    def _holders(self, who: int) -> tuple[int, ...]:
        return (who, *self._near[who]) if self.plan.neighbours == 0 else self._near[who]

    def _advert(self, sender: int, data: bytes) -> None:
        advert = decode(Advert, data, len(self._roster))
        said = advert_statement(self.plan, sender, advert.c, advert.s, advert.commitment)
        signed = advert.id == sender and verify(self._roster[sender], said, advert.signature)
        refuse_if(not signed, f"party {sender}: its advert is not signed by it for this plan")
        self._adverts[sender] = advert

    def _bundle(self) -> dict[int, Message]:
        ids = self._enough(self._able())
        adverts = [msgspec.structs.replace(self._adverts[who], among=()) for who in ids]
        self._digest, k = adverts_digest(adverts), self.plan.neighbours
        self._near = graph.harary(ids, k, self._digest) if k else graph.complete(ids)
        return dict.fromkeys(ids, Bundle(adverts))

    def _able(self) -> list[int]:
        """Name the most parties that can sign one list: who is free to, or all of a list that some have signed."""
        said = {who: advert.among for who, advert in self._adverts.items()}
        free = tuple(who for who, among in said.items() if not among)
        whole = [among for among in set(said.values()) if all(said.get(who) in ((), among) for who in among)]
        most = max([free, *whole], key=len)
        return sorted(most)

    def _deal(self, sender: int, data: bytes) -> None:
        boxes = decode(Boxes, data, len(self._roster)).boxes
        wrong = tuple(j for j, _ in boxes) != self._near[sender]
        refuse_if(wrong, f"party {sender}: it dealt to others than its neighbours")
        self._boxes[sender] = dict(boxes)

    def _deliver(self) -> dict[int, Message]:
        dealt = self._enough(sorted(self._boxes))
        return {j: Boxes([(i, self._boxes[i][j]) for i in dealt if j in self._boxes[i]]) for j in dealt}

    def _mask(self, sender: int, data: bytes) -> None:
        plan = self.plan
        y = decode(Masked, data, len(self._roster), plan).y
        right = packed_bytes(plan.size, plan.bits)
        refuse_if(len(y) != right, f"party {sender}: a vector of {len(y)} bytes, the plan has {right}")
        self._total += unpack(y, plan.size, plan.bits, plan.width)
        self._survivors.append(sender)

    def _tell(self) -> dict[int, Message]:
        self._survivors = self._enough(sorted(self._survivors))
        return dict.fromkeys(self._survivors, Survivors(self._survivors))

    def _sign(self, sender: int, data: bytes) -> None:
        signature = decode(Signed, data, len(self._roster)).signature
        said = survivors_statement(self.plan, self._digest, self._survivors)
        valid = verify(self._roster[sender], said, signature)
        refuse_if(not valid, f"party {sender}: it signed other survivors")
        self._signatures[sender] = signature

    def _show(self) -> dict[int, Message]:
        signers = self._enough(sorted(self._signatures))
        out: dict[int, Message] = {}
        for who in signers:
            near = [j for j in self._near[who] if j in self._signatures]
            needed = near[: self.plan.threshold - (self.plan.neighbours == 0)]  # its own counts in the complete graph
            out[who] = Signatures([(j, self._signatures[j]) for j in needed])
        return out

    def _open(self, sender: int, data: bytes) -> None:
        shares = decode(Opened, data, len(self._roster)).shares
        expected = sorted(v for v in self._holders(sender) if v in self._boxes)
        refuse_if([v for v, _ in shares] != expected, f"party {sender}: shares of others than it was dealt")
        for v, share in shares:
            self._opened.setdefault(v, {})[sender] = share

    def _secret(self, v: int, what: str) -> bytes:
        given = self._opened.get(v, {})
        t = self.plan.threshold
        refuse_if(
            len(given) < t, f"{len(given)} shares of party {v}'s {what}, {t} are needed: the round is over", Abort
        )
        try:
            secret = shamir.combine({holder + 1: share for holder, share in given.items()}, t)
        except Refused:
            secret = b""
        advert = self._adverts[v]
        if what == "seed":
            right = secret != b"" and commit(self.plan, v, secret) == advert.commitment
        else:
            right = secret != b"" and Pair.of(secret).public == advert.s
        used = sorted(given)[:t]
        refuse_if(not right, f"party {v}'s {what} is not what it advertised: party {v} or one of {used} lied", Abort)
        return secret

    @property
    def survivors(self) -> tuple[int, ...]:
        """Whose vectors are in the sum."""
        return tuple(self._survivors)

    def finish(self) -> Integers:
        """Take the masks away, the survivors' own and those they share with the dropped out: the sum modulo 2^bits."""
        refuse_if(self.step != len(STEPS) - 1, f"the round is at {STEPS[self.step]!r}: finish after the last message")
        plan, total, alive = self.plan, self._total.copy(), set(self._survivors)
        dropped = [(v, [u for u in self._near[v] if u in alive]) for v in sorted(self._boxes) if v not in alive]
        seeds = {v: self._secret(v, "seed") for v in self._survivors}
        pairs = {v: Pair.of(self._secret(v, "mask key")) for v, near in dropped if near}
        for v, seed in seeds.items():
            add_mask(total, mask_key(plan, seed, v, v), sign=-1)
        for v, near in dropped:
            for u in near:
                key = mask_key(plan, agree(pairs[v], self._adverts[u].s), u, v)
                add_mask(total, key, sign=-1 if u < v else 1)
        self.expansions = len(seeds) + sum(len(near) for _, near in dropped)
        if plan.bits < plan.width:
            total &= total.dtype.type((1 << plan.bits) - 1)
        return total
