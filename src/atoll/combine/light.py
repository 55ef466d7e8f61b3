"""Light secure aggregation: one coded mask a party, so that the server's work does not depend on who drops out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal

import numpy as np

from atoll.combine import layouts, protocol
from atoll.combine.hidden import LEAST, SIMULATED, check_ring, gather_in_clear, hidden_seen
from atoll.combine.protocol import FRAME, PartySession, SumExchange
from atoll.core.effects import Cohort
from atoll.core.question import Exposure, Layout, Question
from atoll.core.tree import Tree
from atoll.core.wire import ClientSide, Combine, Gather, Gathered, Mismatch, Setting, Train, Wire
from atoll.core.world import World
from atoll.crypto import field, records
from atoll.crypto.keys import KEY, NONCE, SIGNATURE, TAG, Abort, Refused, packed, refuse_if
from atoll.crypto.light import STEPS, Light, LightClient, LightServer
from atoll.crypto.lists import SumKey
from atoll.crypto.terms import SESSION, Agreement, Terms, blank, max_bytes

ITEM = 7  # bytes that frame one entry of a list: a number, and the length of what stands beside it
_REVEALS: Mapping[str, Mapping[str, str]] = {
    "advertise": {"server": "that the party takes part; a fresh public key", "other parties": "the same"},
    "share": {
        "server": "nothing: shares are encrypted for other parties",
        "other parties": "one coded share of a mask, which alone tells nothing",
    },
    "upload": {"server": "one masked vector: nothing of it without the others' shares of its mask"},
    "recover": {"server": "a sum of shares that opens the sum of those who took part, and no vector of one party"},
}


@dataclass(frozen=True)
class LightSum(Combine):
    """Learn the sum through one coded mask for each party (LightSecAgg, So et al. 2022), against a semi-honest server.

    The server's work does not depend on how many parties drop out. A simulation adds the integers directly, bit for bit
    as the protocol would, and says so.

    Needs: a ring whose sums fit 30 bits and a sign, and the other parties' keys from a source that is not the server.
    Reveals: the sum and who took part to the server; nothing of a single vector.

    Args:
        privacy: fraction of the cohort that may collude with the server, above 0. Default 0.3.
        target: fraction of the cohort that must stay to the end, above (1 + `privacy`) / 2 so that no two sums of a
            round have their own majorities, at most 1. Default 0.7.

    Example:
        >>> import atoll
        >>> atoll.LightSum(privacy=0.3, target=0.7).counts(20)  # parties that may collude, parties that must stay
        (6, 14)
    """

    privacy: float = 0.3
    target: float = 0.7

    def __post_init__(self) -> None:
        if not 0 < self.privacy < self.target <= 1:
            raise Mismatch(f"LightSum(privacy={self.privacy}, target={self.target}): fractions, privacy below target")
        if 2 * self.target <= 1 + self.privacy:
            raise Mismatch(f"LightSum(privacy={self.privacy}, target={self.target}): parties of two halves could be "
                           f"told of two sums; take a target above {(1 + self.privacy) / 2:g}")  # fmt: skip

    @property
    def hidden(self) -> Literal["semi-honest"]:
        return "semi-honest"

    def counts(self, n: int) -> tuple[int, int]:
        """How many of n may collude (T), and how many must stay (U); 2 U > n + T also where fractions are rounded."""
        privacy = max(floor(self.privacy * n + 1e-9), 1)
        return privacy, max(floor(self.target * n + 1e-9), privacy + 2, (n + privacy) // 2 + 1)

    def check(self, wire: Wire) -> None:
        check_ring(wire, "LightSum()")
        cohort = wire.total.cohort
        if self.counts(cohort)[1] > cohort:
            raise Mismatch(f"LightSum() of {cohort} parties needs {self.counts(cohort)[1]}: select more")
        if wire.need_ring("LightSum()").sum_bound >= 2**30 - 1:
            raise Mismatch(
                "LightSum() adds in a field of 31 bits, which the sum does not fit: use Ring(bits=…) with fewer"
            )

    def min_cohort(self, wire: Wire) -> int:
        return max(wire.total.min_cohort, LEAST)

    def message_bytes(self, wire: Wire, holder: int | None = None) -> Mapping[str, tuple[int, int]]:
        n, advert, share = wire.total.cohort, KEY + SIGNATURE, self._share(wire, wire.total.cohort)
        letters = (n - 1) * (share + NONCE + TAG + ITEM)
        return {
            "light.advertise": (len(records.encode(blank(n))), advert),
            "light.share": (n * (advert + ITEM), letters),
            "light.upload": (letters, 4 * wire.row.size),
            "light.recover": (n + 3, share),
        }

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        colluding, least = self.counts(wire.total.cohort)
        return {
            **hidden_seen(wire, world, least, "anything against a server that lies: use SecureSum() there"),
            "against": f"a semi-honest server (it follows the protocol) and {colluding} parties that tell it all",
            "assuming": "parties know each other's keys from elsewhere than the server; X25519, Ed25519, AES-256",
        }

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        if setting.world.shortcut:
            return (layouts.contribute(wire, setting, body, f"the sum of the vectors{SIMULATED}"),)
        found, sizes = [], self._limits(wire, parties)
        for step in STEPS:
            asks = body if step == STEPS[0] else None
            exposure: Exposure = "masked" if step == "upload" else "nothing"
            limits = sizes[step]
            found.append(layouts.step(setting, f"light.{step}", asks, limits, _REVEALS[step], exposure))
        return tuple(found)

    def gather(self, wire: Wire, setting: Setting) -> Gather:
        self.check(wire)
        if setting.world.shortcut:
            return gather_in_clear(wire, setting, lambda n: self.counts(n)[1])

        async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
            mine = self.agreed(wire, setting)
            ids = [who for who in cohort.tolist() if who in mine.members]
            least = max(self.counts(len(ids))[1], wire.total.min_cohort)
            exchange = SumExchange(setting, "light", len(ids))
            try:
                refuse_if(len(ids) < least, f"{len(ids)} parties are there, {least} are needed", Abort)
                session, model = secrets.token_bytes(SESSION), protocol.fingerprint(question)
                terms = mine.terms(session, int(question["t"]), ids, model)
                server = LightServer(self.about(wire, mine, terms))
                first = dict.fromkeys(ids, records.encode(terms))
                await protocol.converse(exchange, STEPS, server, first, question, None)
                total = field.to_signed(server.finish())
            except Abort as reason:
                return protocol.closed(wire, least, reason)
            among = server.survivors
            return protocol.opened(total, among, wire, exchange.facts(len(cohort), len(among)))

        return gather

    def client(self, wire: Wire, setting: Setting, session: PartySession) -> ClientSide | None:
        return None if setting.world.shortcut else LightParty(self, wire, setting, session)

    def about(self, wire: Wire, mine: Agreement, terms: Terms) -> Light:
        """Work out what a round is about: of the terms only who is asked, all else is known to everybody."""
        roster = {who: mine.roster[who] for who in terms.cohort}
        privacy, target = self.counts(len(roster))
        least = max(target, wire.total.min_cohort)
        return Light(roster, privacy, least, wire.row.size, terms.session, terms.t, terms.digest)

    def agreed(self, wire: Wire, setting: Setting, session: PartySession | None = None) -> Agreement:
        """Put together what a party, or the server, knows of a sum by itself."""
        least = LEAST if session is None else max(session.min_cohort, LEAST)
        how = packed("light", self.privacy, self.target)
        return protocol.agreed(setting, wire, how, min_cohort=least, session=session)

    def _share(self, wire: Wire, parties: int) -> int:
        """Bytes of one share of a mask."""
        privacy, target = self.counts(parties)
        return 4 * -(-wire.row.size // (target - privacy))

    def _limits(self, wire: Wire, parties: int) -> dict[str, tuple[int, int]]:
        """Bytes at most, by the step: of a party's message, and of the one that it answers."""
        # The fewer are asked, the longer a share is.
        shares = {n: self._share(wire, n) for n in range(LEAST, max(parties, LEAST) + 1)}
        letters = max(n * (share + NONCE + TAG + 64) for n, share in shares.items())
        return {
            "advertise": (KEY + SIGNATURE, FRAME + 16 * parties),
            "share": (FRAME + letters, FRAME + parties * (KEY + SIGNATURE + 64)),
            "upload": (4 * wire.row.size, FRAME + letters),
            "recover": (max(shares.values()), FRAME + 16 * parties),
        }


class LightParty(ClientSide):
    """One party of light sums, round after round. How many must stay follows from the job, not from the server."""

    def __init__(self, how: LightSum, wire: Wire, setting: Setting, session: PartySession) -> None:
        self._how, self._wire, self._setting, self._session = how, wire, setting, session
        self._client: LightClient | None = None
        self._vector, self._key = np.zeros(0, np.uint32), SumKey(b"", "", 0, b"")

    def answer(self, step: str, body: Tree, train: Train) -> Tree:
        message = protocol.message_of(body)
        step = protocol.read_step("light", STEPS, step)
        if step == STEPS[0]:
            return protocol.said(self._begin(message, protocol.question_of(body), train))
        if self._client is None:
            raise Abort("this party has no keys of this round, or was started again: it is back in the next")
        if step == "upload":
            self._session.lists.keep(self._key, self._vector)
        return protocol.said(self._client.answer(step, message, field.from_signed(protocol.around_zero(self._vector))))

    def _begin(self, message: bytes, question: Tree, train: Train) -> bytes:
        """Hold the terms against what this party knows, then train."""
        self._client, me = None, self._session
        mine = self._how.agreed(self._wire, self._setting, me)
        try:
            terms = records.decode(Terms, message, max_bytes(len(mine.members)))
            mine.check(terms, int(question["t"]))
            mine.check_asked(terms, me.me, protocol.fingerprint(question))
            key, about = mine.key(terms), self._how.about(self._wire, mine, terms)
            few = about.target < mine.min_cohort
            refuse_if(few, f"a sum of {about.target} vectors may be opened: {mine.min_cohort} are the least", Abort)
            me.lists.among(key, terms.cohort)

            def sign(among: Sequence[int]) -> None:
                mine.check_survivors(among)
                me.lists.sign(key, tuple(sorted(among)))

            client = LightClient(about, me.me, me.identity, sign)
        except Refused as fault:
            raise Abort(str(fault)) from None
        self._vector = protocol.vector_of(self._setting, me, question, train)
        self._client, self._key = client, key
        return client.advertise()
