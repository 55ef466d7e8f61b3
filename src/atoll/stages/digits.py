"""Real numbers as digits of fixed-point numbers, so that any hidden sum adds them exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.core.tree import Array
from atoll.core.wire import Codec, Coded, DecodeContext, EncodeContext, Mismatch, RingBounds, Stage, StageMemory, Wire
from atoll.stages.ring import signed

WHOLE, FRACTION = 64, 20  # bits of a number before and after its point
BITS = 12  # of a digit, where the cohort leaves room for them
ROOM = 30  # bits of the sum of a digit: what the smallest field of a hidden sum has


@dataclass(frozen=True)
class Digits(Stage):
    """Write each number as a fixed-point number and send its digits, for sums over samples that a hidden sum adds up.

    The sum is that of the fixed-point numbers, exactly: whole numbers as they are, others rounded to 2^-20. The digits
    of a negative number are negative. A number of 2^64 or more is refused.

    Proves: integers of a ring, of 12 bits each for up to 200,000 parties.
    Needs: real numbers.
    """

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        wire.need_real("Digits()")
        wire.need_unwritten("Digits()", "not know its numbers")
        most = wire.total.max_cohort
        bits = min(BITS, ROOM - most.bit_length())
        count, top = -(-(WHOLE + FRACTION) // bits), 2**bits - 1

        def encode(x: Array, memory: StageMemory, about: EncodeContext) -> Coded:
            wide = x.astype(np.float64)
            size = np.abs(wide)
            if not (size < 2.0**WHOLE).all():  # what is not a number is not, either
                far = float(wide[~(size < 2.0**WHOLE)][0])
                raise Mismatch(f"a sum over samples is {far:g}, and a hidden sum adds numbers below 2^{WHOLE}")
            # Every step is exact: it scales by a power of two, or takes the leading bits of a number away.
            left = np.rint(size * 2.0**FRACTION)
            digits = np.empty((*x.shape, count), np.int32)
            for k in reversed(range(count)):
                unit = 2.0 ** (bits * k)
                digit = np.floor(left / unit)
                left -= digit * unit
                digits[..., k] = np.copysign(digit, wide)
            return Coded(digits.reshape(len(x), -1).view(np.uint32), memory)

        def decode(x: Array, memory: StageMemory, context: DecodeContext) -> Coded:
            sums = [
                sum(digit << bits * k for k, digit in enumerate(row)) for row in signed(x).reshape(-1, count).tolist()
            ]
            return Coded(np.array([one / 2**FRACTION for one in sums]).astype(wire.row.dtype), memory)

        row = replace(wire.row, size=wire.row.size * count, dtype="uint32", shapes=())
        ring = RingBounds(2**32, float(top), float(most * top))
        return replace(wire, row=row, l2=None, ring=ring), Codec(encode, decode)
