"""Masks: an AES-256-CTR key stream added to a vector of integers, with native wrap-around as the modulus."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from atoll.crypto.keys import KEY, refuse_if

Integers = NDArray[Any]  # uint32 or uint64

CHUNK = 1 << 16  # bytes: text, key stream and vector stay in the second-level cache together
ZEROS = bytes(CHUNK)
LITTLE: dict[int, np.dtype[Any]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def add_mask(out: Integers, key: bytes, *, sign: Literal[1, -1] = 1) -> None:
    """Add (or take away) the key's stream in place. A key is for one vector only: the counter starts at zero."""
    refuse_if(
        out.dtype not in (np.uint32, np.uint64) or out.ndim != 1, f"a {out.dtype} array: masks add to unsigned rows"
    )
    refuse_if(len(key) != KEY, f"a mask key of {len(key)} bytes: it has {KEY}")
    fold = np.add if sign == 1 else np.subtract
    stream = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    buffer = np.empty(CHUNK + 15, np.uint8)  # the cipher asks for one block less a byte of room
    numbers = buffer[:CHUNK].view(LITTLE[out.itemsize])
    step = len(numbers)
    for start in range(0, len(out), step):
        part = out[start : start + step]
        stream.update_into(ZEROS if len(part) == step else ZEROS[: part.nbytes], buffer.data)
        fold(part, numbers[: len(part)], out=part)


def pack(x: Integers, bits: int) -> bytes:
    """The lowest bits of every number, without gaps, little end first."""
    width = 8 * x.itemsize
    little = x.astype(LITTLE[x.itemsize], copy=False)
    if bits == width:
        return little.tobytes()
    out = []
    for start in range(0, len(x), CHUNK):  # a multiple of eight numbers fills whole bytes
        part = little[start : start + CHUNK]
        spread = np.unpackbits(part.view(np.uint8).reshape(len(part), -1), axis=1, count=bits, bitorder="little")
        out.append(np.packbits(spread.ravel(), bitorder="little").tobytes())
    return b"".join(out)


def unpack(data: bytes, size: int, bits: int, width: int) -> Integers:
    """The numbers that `pack` packed, as integers of this width."""
    dtype = LITTLE[width // 8]
    if bits == width:
        return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False)
    # Eight numbers fill `bits` whole bytes, so every eighth number begins at the same bit of a byte.
    groups = size // 8 + 1
    raw = data + bytes(groups * bits + 8 - len(data))
    out = np.empty((groups, 8), np.uint64)
    for k in range(8):
        byte, bit = divmod(k * bits, 8)
        out[:, k] = np.ndarray(groups, "<u8", raw, byte, (bits,)) >> np.uint64(bit)
        if bit + bits > 64:
            last = np.ndarray(groups, np.uint8, raw, byte + 8, (bits,)).astype(np.uint64)
            out[:, k] |= last << np.uint64(64 - bit)
    out &= np.uint64((1 << bits) - 1)
    return out.ravel()[:size].astype(dtype.newbyteorder("="))


def packed_bytes(size: int, bits: int) -> int:
    """Bytes of that many numbers of that many bits."""
    return (size * bits + 7) // 8
