"""Homomorphic sums: parties encrypt, the server adds ciphertexts, whoever holds the key opens the sum only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.combine.hidden import LEAST, bits_of, check, gather_hidden, server_sees
from atoll.core.effects import Cohort
from atoll.core.tree import Array
from atoll.core.wire import Gather, Mismatch, Question, Wire

SCHEMES = ("paillier", "ckks")


@dataclass(frozen=True)
class EncryptedSum:
    """Add vectors under encryption; a key holder that is not the server opens the sum. Needs: a ring.

    "paillier" (`bits` 2048 or 3072, packed) or "ckks" (extra `ckks`). With `holders` above 1 the Paillier key is
    shared, and all holders must take part in opening. A simulation adds the integers up, which gives the same bits,
    and says so; `real` encrypts, adds and decrypts in this process.
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
            "key holder": "the sum, never a vector",
            "against": "a semi-honest server and semi-honest key holders that do not work together",
            "assuming": "the key holder is not the server; " + _ASSUMING[self.scheme],
        }

    def bytes(self, wire: Wire) -> int:
        if self.scheme == "ckks":
            from atoll.crypto.ckks import BYTES, SLOTS

            return -(-wire.size // SLOTS) * BYTES
        return self._slots(wire).plaintexts(wire.size) * self.bits // 4

    def __call__(self, wire: Wire) -> Gather:
        check(wire, "EncryptedSum()")
        if self.scheme == "ckks" and bits_of(wire) > 44:
            raise Mismatch(
                "EncryptedSum(scheme='ckks') is exact up to 44 bits, which the sum does not fit: fewer Ring bits"
            )
        protocol = self._ckks if self.scheme == "ckks" else _Paillier(self, self._slots(wire))
        return gather_hidden(wire, lambda n: LEAST, protocol if self.real else None)

    def _slots(self, wire: Wire) -> Any:
        from atoll.crypto.packing import Slots

        return Slots(int(wire.peak).bit_length() + 1, wire.most, self.bits)

    def _ckks(self, rows: Array, sent: Cohort, asked: Cohort, question: Question) -> tuple[Array, dict[str, Any]]:
        from atoll.crypto.ckks import GRID, Ckks

        with Ckks.new() as holder, Ckks(holder.public()) as parties:
            sealed = [parties.encrypt(row * GRID) for row in rows]
            opened = holder.decrypt(parties.add(sealed), rows.shape[1])
            size = sum(len(c) for c in sealed[0])
        return np.rint(opened / GRID).astype(np.int64), {"protocol_bytes": float(size)}


_ASSUMING = {
    "paillier": "deciding residues modulo n² is hard, with short exponents (Damgård, Jurik, Nielsen)",
    "ckks": "learning with errors is hard; sums are rounded to a grid, so they tell nothing of the key",
}


class _Paillier:
    """The protocol of one run: the key is made, and dealt to its holders, once, when it is first needed."""

    def __init__(self, how: EncryptedSum, slots: Any) -> None:
        self.how, self.slots = how, slots
        self.public: Any = None
        self.holders: list[Any] = []

    def __call__(self, rows: Array, sent: Cohort, asked: Cohort, question: Question) -> tuple[Array, dict[str, Any]]:
        if self.public is None:
            self._deal()
        public = self.public
        sealed = [public.encrypt_many(self.slots.pack(row.astype(np.int64))) for row in rows]
        # New randomness: what is opened cannot be linked to what was sent.
        total = public.rerandomise([public.add_many(column) for column in zip(*sealed, strict=True)])
        opened = [holder.decrypt_many(total) for holder in self.holders]
        plain = opened[0] if self.how.holders == 1 else public.combine(opened)
        size = len(public.ciphertexts_to_bytes(sealed[0]))
        return self.slots.unpack_sum(plain, len(rows), rows.shape[1]), {"protocol_bytes": float(size)}

    def _deal(self) -> None:
        from atoll.crypto.paillier import keypair

        key = keypair(self.how.bits)
        self.public = key.public
        self.holders = [key] if self.how.holders == 1 else list(key.share(self.how.holders))
