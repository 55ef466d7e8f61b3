"""Secure aggregation: the server learns the sum of many vectors and none of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.combine.hidden import LEAST, bits_of, check, fingerprint, gather_hidden, server_sees
from atoll.combine.talk import TERMS, Dialogue, Sitting, Train, Unopened, closed, converse
from atoll.core.effects import Cohort, Replies
from atoll.core.tree import Array, Tree
from atoll.core.wire import Gather, Gathered, Mismatch, Question, Wire
from atoll.crypto.keys import refuse_if

if TYPE_CHECKING:
    from atoll.crypto.secagg import Client, Party


@dataclass(frozen=True)
class SecureSum:
    """Learn the sum of more than `threshold` of the cohort and nothing else, whatever the server does. Needs: a ring.

    The five messages of Bonawitz et al. (2017) against a malicious server: signed keys, shares, masked vectors,
    signed survivors, unmasking. `sparse` masks pairs on a sparse graph (Bell et al. 2020), which pays for cohorts of
    many hundreds. A simulation adds the integers up, which gives the same bits, and says so; `real` runs the whole
    protocol among all parties in this process.
    """

    threshold: float = 2 / 3
    least: int = LEAST
    sparse: bool = False
    real: bool = False

    def __post_init__(self) -> None:
        if not 2 / 3 <= self.threshold < 1:
            raise ValueError(f"SecureSum(threshold={self.threshold}): from 2/3, below which a server could tell two "
                             "halves two stories, to below 1")  # fmt: skip
        if self.least < LEAST:
            raise ValueError(f"SecureSum(least={self.least}): a sum of fewer than {LEAST} vectors hides none of them")

    def seen(self, wire: Wire) -> Mapping[str, str]:
        lying = "a server that lies after the keys are out" if self.sparse else "a server that may do anything"
        colluding = "up to 5 % of the parties" if self.sparse else "fewer than a third of the parties"
        return {
            **server_sees(wire, self.needed(wire.cohort), self.real),
            "against": f"{lying}, together with {colluding}",
            "assuming": "parties know each other's keys from elsewhere than the server; X25519, Ed25519, AES-256",
            "not promised": "that the sum is right, or that it tells nothing by itself (add noise for that)",
        }

    def needed(self, n: int) -> int:
        """How many of n must answer."""
        return max(floor(self.threshold * n + 1e-9) + 1, self.least)

    def __call__(self, wire: Wire) -> Gather:
        check(wire, "SecureSum()", self.least)
        if self.sparse:
            self._graph(wire.cohort)
        return gather_hidden(wire, self.needed, self._protocol(wire) if self.real else None)

    def needs(self, wire: Wire, parties: int) -> dict[str, tuple[int, int]]:
        """Say how many bytes each message of a party, and the one it answers, have at most, by the question."""
        from atoll.crypto.secagg import STEPS, message_sizes

        sizes = message_sizes(parties, wire.size, bits_of(wire))
        # Of every other party a message of the server holds keys, a share or a signature.
        return {f"secure.{step}": (up, TERMS + 256 * parties) for step, up in zip(STEPS, sizes, strict=True)}

    def party(self, sitting: Sitting) -> Dialogue:
        """Sit down to secure sums."""
        from atoll.crypto import secagg
        from atoll.crypto.graph import Sparse

        sparse = Sparse() if self.sparse else None
        rules = secagg.Policy(sitting.least, sitting.schema, sitting.size, sitting.width, sitting.rounds, sparse=sparse)
        spent = secagg.Spent(sitting.folder)
        return SecureParty(secagg.Party(sitting.me, sitting.identity, sitting.keys, rules, spent), sitting.floor)

    def talk(self, wire: Wire, keys: Callable[[], Mapping[int, bytes]], schema: bytes) -> Gather:
        """Ask real parties; `keys` are those they sign with. Every start of a server is a session of its own: a round
        that was cut short is done again with new masks.
        """
        from atoll.crypto.secagg import STEPS, Abort, Plan, Server, encode

        session = secrets.token_bytes(16)

        async def gather(cohort: Cohort, question: Question, enough: int | None) -> Gathered:
            known = keys()
            ids = [who for who in cohort.tolist() if who in known]
            expected, t = min(enough or len(ids), len(ids)), int(question["t"])
            least = max(self.needed(expected), wire.floor)
            neighbours, threshold = self._graph(expected) if self.sparse and expected >= least else (0, least)
            plan = Plan(
                session, t, fingerprint(question), schema, threshold, neighbours,
                8 * np.dtype(wire.dtype).itemsize, bits_of(wire), wire.size,
            )  # fmt: skip
            server = Server(plan, {who: known[who] for who in ids})
            first = dict.fromkeys(ids, encode(plan))
            try:
                if expected < least:
                    raise Unopened(f"{expected} parties are there, {least} are needed")
                facts = await converse("secure", STEPS, server, first, question, enough, Abort)
                done = server.finish()
            except (Abort, Unopened) as reason:
                return closed(wire, least, str(reason))
            facts |= {"lost": lost} if (lost := len(cohort) - len(done.survivors)) else {}
            total = around_zero(done.sum, plan.bits).astype(wire.dtype)
            return Gathered(total, Replies(np.array(done.survivors, np.int64), facts=facts))

        return gather

    def _graph(self, n: int) -> tuple[int, int]:
        """Neighbours and threshold after the published rule, for 5 % colluding parties and a third of dropouts."""
        from atoll.crypto.graph import Sparse, parameters

        try:
            return parameters(n, Sparse())
        except ValueError as error:
            raise Mismatch(f"SecureSum(sparse=True): {error}") from None

    def _protocol(self, wire: Wire) -> Any:
        def run(rows: Array, sent: Cohort, asked: Cohort, question: Question) -> tuple[Array, dict[str, Any]]:
            from atoll.crypto.secagg import rehearse

            bits, ids = bits_of(wire), asked.tolist()
            there = dict(zip(sent.tolist(), rows, strict=True))
            blank = np.zeros(wire.size, wire.dtype)
            vectors = np.stack([there[i].view(wire.dtype) if i in there else blank for i in ids])
            t = self._graph(len(ids)) if self.sparse else (None, self.needed(len(ids)))
            done = rehearse(
                vectors, ids=ids, t=t[1], neighbours=t[0], model=fingerprint(question), round=int(question["t"]),
                bits=bits, drop={i: "masked" for i in ids if i not in there},
            )  # fmt: skip
            mean = float(np.mean(list(done.facts.bytes.values())))
            cost = {
                "protocol_bytes": mean,
                "protocol_client": done.facts.client_seconds,
                "protocol_server": done.facts.server_seconds,
            }
            return around_zero(done.sum, bits), cost

        return run

    def bytes(self, wire: Wire) -> int:
        from atoll.crypto.secagg import bytes_sent

        n = self._graph(wire.cohort)[0] + 1 if self.sparse else wire.cohort
        return round(bytes_sent(n, wire.size, bits_of(wire)))


class SecureParty:
    """One real party of secure sums, round after round."""

    def __init__(self, party: Party, floor: int) -> None:
        self._party, self._floor = party, floor
        self._client: Client | None = None
        self._vector: Array = np.zeros(0)

    def answer(self, step: str, body: Tree, train: Train) -> bytes:
        from atoll.crypto.secagg import Abort, Client, Plan, answer, decode

        message, model = np.asarray(body["message"]).tobytes(), b""
        if step == "advertise":
            question = {name: leaf for name, leaf in body.items() if name != "message"}
            plan, floor = decode(Plan, message, len(self._party.roster)), self._floor
            few = plan.neighbours == 0 and plan.t < floor
            refuse_if(few, f"t={plan.t}: the noise of a party is a share of what {floor} add", Abort)
            self._vector, self._client, model = train(question), Client(self._party), fingerprint(question)
        if self._client is None:
            raise Abort("this party was started again and has no keys of this round: it is back in the next")
        return answer(self._client, step, message, model, self._vector)


def around_zero(total: Array, bits: int) -> Array:
    """Read a sum modulo 2^bits as a number around zero."""
    wide = total.astype(np.uint64) << np.uint64(64 - bits)
    return wide.view(np.int64) >> np.int64(64 - bits)
