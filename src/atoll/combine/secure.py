"""Secure aggregation: the server learns the sum of many vectors and none of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np

from atoll.combine.hidden import LEAST, bits_of, check, fingerprint, gather_hidden, server_sees
from atoll.core.effects import Cohort
from atoll.core.tree import Array
from atoll.core.wire import Gather, Mismatch, Question, Wire


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

    def bytes(self, wire: Wire) -> int:
        from atoll.crypto.secagg import bytes_sent

        n = self._graph(wire.cohort)[0] + 1 if self.sparse else wire.cohort
        return round(bytes_sent(n, wire.size, bits_of(wire)))

    def __call__(self, wire: Wire) -> Gather:
        check(wire, "SecureSum()", self.least)
        if self.sparse:
            self._graph(wire.cohort)
        return gather_hidden(wire, self.needed, self._protocol(wire) if self.real else None)

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

    def bytes(self, wire: Wire) -> int:
        from atoll.crypto.keys import KEY, NONCE, SIGNATURE, TAG

        privacy, target = self.counts(wire.cohort)
        share = 4 * -(-wire.size // (target - privacy))
        return KEY + SIGNATURE + (wire.cohort - 1) * (share + NONCE + TAG) + 4 * wire.size + share

    def __call__(self, wire: Wire) -> Gather:
        check(wire, "LightSum()")
        if self.counts(wire.cohort)[1] > wire.cohort:
            raise Mismatch(f"LightSum() of {wire.cohort} parties needs {self.counts(wire.cohort)[1]}: select more")
        if wire.span >= 2**30 - 1:
            raise Mismatch(
                "LightSum() adds in a field of 31 bits, which the sum does not fit: use Ring(bits=…) with fewer"
            )
        return gather_hidden(wire, lambda n: self.counts(n)[1], self._protocol if self.real else None)

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


def around_zero(total: Array, bits: int) -> Array:
    """Read a sum modulo 2^bits as a number around zero."""
    wide = total.astype(np.uint64) << np.uint64(64 - bits)
    return wide.view(np.int64) >> np.int64(64 - bits)
