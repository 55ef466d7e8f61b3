"""Secure aggregation: the server learns the sum of many vectors and none of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal

import numpy as np

from atoll.combine import layouts, protocol
from atoll.combine.hidden import LEAST, SIMULATED, bits_of, check_ring, gather_in_clear, hidden_seen
from atoll.combine.protocol import FRAME, PartySession, SumExchange
from atoll.core.effects import Cohort
from atoll.core.question import Exposure, Layout, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import ClientSide, Combine, Gather, Gathered, Mismatch, Setting, Train, Wire
from atoll.core.world import World
from atoll.crypto import secagg
from atoll.crypto.graph import Sparse, parameters
from atoll.crypto.keys import Abort, Refused, packed, refuse_if
from atoll.crypto.secagg import Participant, SecureClient, SecurePlan, SecurePolicy, SecureServer
from atoll.crypto.terms import SESSION, Agreement, blank

_REVEALS: Mapping[str, Mapping[str, str]] = {
    "advertise": {"server": "that the party takes part; fresh public keys", "other parties": "the same"},
    "share": {
        "server": "nothing: shares are encrypted for other parties",
        "other parties": "one share of a mask key and of a seed, which alone tells nothing",
    },
    "masked": {"server": "one masked vector: nothing of it without the others' masks"},
    "consistent": {"server": "a signature under who took part", "other parties": "the same"},
    "unmask": {"server": "shares that open the sum of those who took part, and no vector of one party"},
}


@dataclass(frozen=True)
class SecureSum(Combine):
    """Learn the sum of more than `threshold` of the cohort and nothing else, also against a malicious server.

    The protocol is Bonawitz et al. (2017) with its five messages: signed keys, shares, masked vectors, signed
    survivors, unmasking. A simulation adds the integers directly, bit for bit as the protocol would, and says so.

    Needs: a ring, and the other parties' keys from a source that is not the server.
    Reveals: the sum and who took part to the server; nothing of a single vector.

    Args:
        threshold: more than this fraction of the cohort must take part to the end, from 2/3 to below 1. Default 2/3.
        min_parties: a sum of fewer vectors is not opened, 3 or more. Default 3.
        sparse: whether masks are shared with some of the other parties only (Bell et al. 2020), which is cheaper for
            cohorts of many hundreds. Default false.

    Example:
        >>> import atoll
        >>> stages = [atoll.Clip(2.0), atoll.Weigh(max_weight=100), atoll.Ring()]
        >>> channel = atoll.Channel(stages, atoll.SecureSum())
        >>> channel.combine.needed(10)  # parties of 10 that must take part to the end
        7
    """

    threshold: float = 2 / 3
    min_parties: int = LEAST
    sparse: bool = False

    def __post_init__(self) -> None:
        if not 2 / 3 <= self.threshold < 1:
            raise Mismatch(f"SecureSum(threshold={self.threshold}): from 2/3, below which a server could tell two "
                             "halves two stories, to below 1")  # fmt: skip
        if self.min_parties < LEAST:
            raise Mismatch(
                f"SecureSum(min_parties={self.min_parties}): a sum of fewer than {LEAST} vectors hides none of them"
            )

    @property
    def hidden(self) -> Literal["sparse", "malicious"]:
        return "sparse" if self.sparse else "malicious"

    def check(self, wire: Wire) -> None:
        check_ring(wire, "SecureSum()", self.min_parties)
        if self.sparse:
            self._graph(wire.total.cohort)

    def min_cohort(self, wire: Wire) -> int:
        return max(wire.total.min_cohort, self.min_parties)

    def message_bytes(self, wire: Wire, holder: int | None = None) -> Mapping[str, tuple[int, int]]:
        n = wire.total.cohort
        neighbours, threshold = self._graph(n) if self.sparse else (0, self.needed(n))
        plan = SecurePlan(blank(n), threshold, neighbours, _width(wire), bits_of(wire), wire.row.size)
        sizes = secagg.expected_bytes(plan)
        return {f"secure.{step}": size for step, size in zip(secagg.STEPS, sizes, strict=True)}

    def seen(self, wire: Wire, world: World) -> Mapping[str, str]:
        lying = "a server that lies after the keys are out" if self.sparse else "a server that may do anything"
        colluding = "up to 5 % of the parties" if self.sparse else "fewer than a third of the parties"
        not_promised = "that the sum is right, or that it tells nothing by itself (add noise for that)"
        return {
            **hidden_seen(wire, world, self.needed(wire.total.cohort), not_promised),
            "against": f"{lying}, together with {colluding}",
            "assuming": "parties know each other's keys from elsewhere than the server; X25519, Ed25519, AES-256",
        }

    def questions(self, wire: Wire, setting: Setting, body: Layout, parties: int) -> tuple[Question, ...]:
        if setting.world.shortcut:
            return (layouts.contribute(wire, setting, body, f"the sum of the vectors{SIMULATED}"),)
        sizes = secagg.message_sizes(parties, wire.row.size, bits_of(wire))
        found = []
        for step, up in zip(secagg.STEPS, sizes, strict=True):
            asks = body if step == secagg.STEPS[0] else None
            exposure: Exposure = "masked" if step == "masked" else "nothing"
            # Of every other party a message of the server holds keys, a share or a signature.
            limits = up, FRAME + 256 * parties
            found.append(layouts.step(setting, f"secure.{step}", asks, limits, _REVEALS[step], exposure))
        return tuple(found)

    def gather(self, wire: Wire, setting: Setting) -> Gather:
        self.check(wire)
        if setting.world.shortcut:
            return gather_in_clear(wire, setting, self.needed)
        # Every start of a server is a session of its own: a round that was cut short is done again with new masks.
        session = secrets.token_bytes(SESSION)

        async def gather(cohort: Cohort, question: Tree, goal: int | None) -> Gathered:
            mine = self.agreed(wire, setting)
            ids = [who for who in cohort.tolist() if who in mine.members]
            expected, t = min(goal or len(ids), len(ids)), int(question["t"])
            least = max(self.needed(expected), wire.total.min_cohort)
            exchange = SumExchange(setting, "secure", len(ids))
            try:
                neighbours, threshold = self._graph(expected) if self.sparse else (0, least)
                refuse_if(expected < least, f"{expected} parties are there, {least} are needed", Abort)
                terms = mine.terms(session, t, ids, protocol.fingerprint(question))
                plan = SecurePlan(terms, threshold, neighbours, _width(wire), bits_of(wire), wire.row.size)
                server = SecureServer(plan, mine.roster, least)
                first = dict.fromkeys(ids, secagg.encode(plan))
                await protocol.converse(exchange, secagg.STEPS, server, first, question, goal)
                total = signed(server.finish(), plan.bits)
            except (Abort, Mismatch) as reason:
                return protocol.closed(wire, least, reason)
            among = server.survivors
            return protocol.opened(total, among, wire, exchange.facts(len(cohort), len(among)))

        return gather

    def client(self, wire: Wire, setting: Setting, session: PartySession) -> ClientSide | None:
        return None if setting.world.shortcut else SecureParty(self, wire, setting, session)

    def participant(self, wire: Wire, setting: Setting, session: PartySession) -> Participant:
        """Put together what a party brings to one sum, and insists on, whatever the server says."""
        mine = self.agreed(wire, setting, session)
        policy = SecurePolicy(
            mine.min_cohort, wire.row.size, _width(wire), bits_of(wire), self._fraction,
            Sparse() if self.sparse else None,
        )  # fmt: skip
        return Participant(session.me, session.identity, mine, policy, session.spent, session.lists)

    def needed(self, n: int) -> int:
        """How many of n must answer. A sparse graph needs one party more than each has neighbours, and itself."""
        least = max(floor(self._fraction * n) + 1, self.min_parties)
        if not self.sparse:
            return least
        try:
            return max(least, self._graph(n)[0] + 2)
        except Mismatch:  # so few have no sparse graph, and no sum
            return n + 1

    @property
    def _fraction(self) -> Fraction:
        return max(Fraction(2, 3), Fraction(str(self.threshold)))  # 2/3 is a little more than its decimals

    def agreed(self, wire: Wire, setting: Setting, session: PartySession | None = None) -> Agreement:
        """Put together what a party, or the server, knows of a sum by itself."""
        least = self.min_parties if session is None else max(session.min_cohort, self.min_parties)
        how = packed("secure", self.threshold, self.min_parties, self.sparse)
        return protocol.agreed(setting, wire, how, min_cohort=least, session=session)

    def _graph(self, n: int) -> tuple[int, int]:
        """Neighbours and threshold after the published rule, for 5 % colluding parties and a third of dropouts."""
        try:
            return parameters(n, Sparse())
        except ValueError as error:
            raise Mismatch(f"SecureSum(sparse=True): {error}") from None


class SecureParty(ClientSide):
    """One party of secure sums, round after round."""

    def __init__(self, how: SecureSum, wire: Wire, setting: Setting, session: PartySession) -> None:
        self._how, self._wire, self._setting, self._session = how, wire, setting, session
        self._client: SecureClient | None = None
        self._vector: Array = np.zeros(0)

    def answer(self, step: str, body: Tree, train: Train) -> Tree:
        message = protocol.message_of(body)
        step = protocol.read_step("secure", secagg.STEPS, step)
        if step == secagg.STEPS[0]:
            return protocol.said(self._begin(message, protocol.question_of(body), train))
        if self._client is None:
            raise Abort("this party has no keys of this round, or was started again: it is back in the next")
        return protocol.said(self._client.answer(step, message, self._vector))

    def _begin(self, message: bytes, question: Tree, train: Train) -> bytes:
        """Hold the plan against what this party knows, then train."""
        self._client = None
        try:
            client = SecureClient(self._how.participant(self._wire, self._setting, self._session))
        except Refused as fault:
            raise Abort(str(fault)) from None
        advert = client.advertise(message, t=int(question["t"]), model=protocol.fingerprint(question))
        self._vector = protocol.vector_of(self._setting, self._session, question, train)
        self._client = client
        return advert


def _width(wire: Wire) -> int:
    return 8 * np.dtype(wire.row.dtype).itemsize


def signed(total: Array, bits: int) -> Array:
    """Read a sum modulo 2^bits as a number around zero."""
    wide = total.astype(np.uint64) << np.uint64(64 - bits)
    return wide.view(np.int64) >> np.int64(64 - bits)
