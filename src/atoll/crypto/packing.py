"""Slots: many small signed integers in one big plaintext, so that adding plaintexts adds every one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Slots:
    """Signed values of `bits` bits, exact under the addition of up to `parties` vectors, in plaintexts of `key_bits`.

    A slot is a whole number of bytes. Values are stored with an offset that makes them positive, so that no borrow ever
    crosses into the next slot; `unpack_sum` takes as many offsets away as vectors were added.
    """

    bits: int = 16
    parties: int = 256
    key_bits: int = 2048

    def __post_init__(self) -> None:
        if self.bits < 1 or self.parties < 1:
            raise ValueError(f"bits={self.bits}, parties={self.parties}: both are at least 1")
        if self.slot_bits > 63:
            raise ValueError(f"bits={self.bits}, parties={self.parties}: a sum has 63 bits at most, take fewer bits")
        if self.per_plaintext < 1:
            raise ValueError(f"key_bits={self.key_bits}: a plaintext of such a key has no room for a slot")

    @property
    def slot_bits(self) -> int:
        """Bits that the largest sum needs."""
        return self.bits + (self.parties - 1).bit_length()

    @property
    def slot_bytes(self) -> int:
        return -(-self.slot_bits // 8)

    @property
    def per_plaintext(self) -> int:
        """Values in one plaintext: its whole bytes are below any n of `key_bits` bits."""
        return (self.key_bits - 1) // 8 // self.slot_bytes

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest value that can be packed."""
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def plaintexts(self, count: int) -> int:
        """Say how many plaintexts this many values take."""
        return -(-count // self.per_plaintext)

    def pack(self, values: NDArray[np.integer]) -> list[int]:
        """Pack a vector of integers, or refuse it: a value out of range would spoil its neighbours."""
        values = np.asarray(values)
        if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
            raise ValueError(f"a {values.ndim}-d array of {values.dtype}: only a vector of integers can be packed")
        low, high = self.range
        if values.size and not (low <= int(values.min()) and int(values.max()) <= high):
            raise ValueError(f"values from {values.min()} to {values.max()}: {self.bits} bits hold {low} to {high}")
        padded = np.zeros(self.plaintexts(values.size) * self.per_plaintext, "<i8")
        padded[: values.size] = values
        padded[: values.size] -= low
        rows = padded.view(np.uint8).reshape(-1, 8)[:, : self.slot_bytes].reshape(-1, self._row)
        return [int.from_bytes(row.tobytes(), "little") for row in rows]

    def unpack_sum(self, plaintexts: Sequence[int], n_added: int, count: int) -> NDArray[np.int64]:
        """Return the sum of the `n_added` vectors of `count` values whose plaintexts were added up to these."""
        if not 1 <= n_added <= self.parties:
            raise ValueError(f"n_added={n_added}: these slots hold sums of 1 to {self.parties} vectors")
        if len(plaintexts) != self.plaintexts(count):
            raise ValueError(f"{len(plaintexts)} plaintexts for {count} values: {self.plaintexts(count)} are needed")
        if any(not 0 <= m < 1 << (8 * self._row) for m in plaintexts):
            raise ValueError("a plaintext that is longer than its slots: it is no sum of packed vectors")
        raw = b"".join(int(m).to_bytes(self._row, "little") for m in plaintexts)
        wide = np.zeros((len(plaintexts) * self.per_plaintext, 8), np.uint8)
        wide[:, : self.slot_bytes] = np.frombuffer(raw, np.uint8).reshape(-1, self.slot_bytes)
        sums = wide.reshape(-1).view("<u8")
        low, high = self.range
        if (sums[:count] > n_added * (high - low)).any() or sums[count:].any():
            raise ValueError(f"a slot above any sum of {n_added} vectors: some party did not pack with these slots")
        total = sums[:count].astype(np.int64)
        total += n_added * low
        return total

    @property
    def _row(self) -> int:
        return self.per_plaintext * self.slot_bytes
