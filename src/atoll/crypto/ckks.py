"""CKKS: sums of encrypted real vectors. All work on ciphertexts happens in a child process that may die; we may not.

Decrypted CKKS numbers carry an error that depends on the secret key, and enough of them reveal the key to whoever knows
what they should have been (Li and Micciancio, EUROCRYPT 2021). So values are put on a grid before they are encrypted,
and sums, whose error is far smaller than the grid, are put back on it after decryption: what leaves `decrypt` is exact
and a function of the plaintexts alone. The file also is the program of the child, so it imports nothing of Atoll.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import AtollError, NotInstalled

if TYPE_CHECKING:
    import tenseal as ts

GRID = 2.0**-24  # values are multiples of this
LIMIT = 2.0**20  # no value, and no sum, is larger: what float64 rounds away inside stays a sixtieth of the grid
SLOTS = 4096  # values in one ciphertext
BYTES = 235_000  # of one ciphertext, about: it is compressed
_DEGREE, _MODULI, _SCALE = 2 * SLOTS, [60, 40, 60], 2.0**56  # 160 bits: the standard allows 218 at 128-bit security
CONTEXT = 364_000  # of a public key, about
MOST_CIPHERTEXT = 1 << 18  # bytes at most
MOST_CONTEXT = 1 << 20  # bytes; one with the secret key takes about 545,000
_GROUP = 64  # ciphertexts of one question to the child
_SECONDS = 60.0  # for one question; it takes milliseconds
_MEMORY = 4 << 30  # bytes of address space a child may have


class ChildDied(AtollError, RuntimeError):
    """The child process crashed or hung on what it was given; the next call starts a new one."""

    code = "child_died"


class Ckks:
    """One holder's half of a CKKS key and the child process that uses it.

    The bytes of the key are kept here, unread, only to give them to the next child should one die.
    """

    def __init__(self, context: bytes) -> None:
        """Take bytes of `public()` or `secret()`, of whatever origin: the child checks them."""
        if len(context) > MOST_CONTEXT:
            raise ValueError(f"a CKKS key of {len(context)} bytes: it has at most {MOST_CONTEXT}")
        self._context = context
        self._child: _Child | None = None
        try:
            public, private = self._ask(b"key", context)
        except ValueError:
            self.close()
            raise
        self._public, self.private = public, private == b"1"

    @classmethod
    def new(cls) -> Ckks:
        """Make a key pair, in a child."""
        _needs_tenseal()
        child = _Child()
        try:
            return cls(child.ask(b"new")[0])
        finally:
            child.stop()

    def __repr__(self) -> str:
        return f"Ckks({'secret' if self.private else 'public'} key, N={_DEGREE})"

    def __enter__(self) -> Ckks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child; a later call starts another."""
        if self._child is not None:
            self._child.stop()
        self._child = None

    def public(self) -> bytes:
        """Return the half that encrypts and adds."""
        return self._public

    def secret(self) -> bytes:
        """Return both halves, for their owner to keep as he keeps a password."""
        if not self.private:
            raise ValueError("this is a public key: only the owner can save the secret half")
        return self._context

    def encrypt(self, vector: NDArray[np.floating]) -> list[bytes]:
        """Encrypt a vector, every value rounded to the grid."""
        x = np.asarray(vector, np.float64)
        if x.ndim != 1 or not (np.abs(x) <= LIMIT).all():  # also refuses what is not a number
            raise ValueError(f"a vector of finite values up to ±{LIMIT:.0f} can be encrypted: scale it first")
        rows = np.zeros((-(-x.size // SLOTS), SLOTS))
        rows.reshape(-1)[: x.size] = np.rint(x / GRID) * GRID
        return [self._ask(b"encrypt", row.astype("<f8").tobytes())[0] for row in rows]

    def add(self, many: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Add vectors that several parties encrypted; needs no secret."""
        if len({len(one) for one in many}) != 1:
            raise ValueError("encrypted vectors of different lengths, or none: there is nothing to add")
        return [self._add(list(map(_sized, column))) for column in zip(*many, strict=True)]

    def _add(self, column: list[bytes]) -> bytes:
        total = column[:1]
        for at in range(1, len(column), _GROUP):
            total = self._ask(b"add", *total, *column[at : at + _GROUP])
        return total[0]

    def decrypt(self, ciphertexts: Sequence[bytes], size: int) -> NDArray[np.float64]:
        """Return the vector of this size, exactly on the grid."""
        if not self.private:
            raise ValueError("this is a public key: only the owner of the secret half decrypts")
        if size < 0 or len(ciphertexts) != -(-size // SLOTS):
            raise ValueError(f"{len(ciphertexts)} ciphertexts for {size} values: one holds {SLOTS}")
        rows = [np.frombuffer(self._ask(b"decrypt", _sized(c))[0], "<f8") for c in ciphertexts]
        if any(row.size != SLOTS for row in rows):
            raise ChildDied(
                "the CKKS child gave a vector of the wrong length: take no further ciphertext from its sender"
            )
        return _on_grid(np.concatenate([np.zeros(0), *rows])[:size])

    def _ask(self, verb: bytes, *parts: bytes) -> list[bytes]:
        try:
            if self._child is None:
                _needs_tenseal()
                self._child = _Child()
                weakref.finalize(self, self._child.stop)
                self._child.ask(b"key", self._context)
            return self._child.ask(verb, *parts)
        except ChildDied:
            self.close()
            raise


def _needs_tenseal() -> None:
    if importlib.util.find_spec("tenseal") is None:
        raise NotInstalled("CKKS needs TenSEAL: pip install 'atoll[ckks]'")


def _sized(ciphertext: bytes) -> bytes:
    if not 0 < len(ciphertext) <= MOST_CIPHERTEXT:
        raise ValueError(f"a CKKS ciphertext of {len(ciphertext)} bytes: it has at most {MOST_CIPHERTEXT}")
    return ciphertext


def _on_grid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to the grid, or refuse: near the middle between two points the rounding itself would tell of the error."""
    if not (np.abs(x) <= LIMIT).all():
        raise ValueError(f"a decrypted value beyond ±{LIMIT:.0f}: no sum of such vectors, or parties must scale theirs")
    steps = x / GRID
    nearest = np.rint(steps)
    if (np.abs(steps - nearest) > 0.25).any():
        raise ValueError("a decrypted value off the grid: a party encrypted values that were not rounded to it")
    return nearest * GRID + 0.0  # −0 becomes 0


class _Child:
    """A process that answers questions over two pipes and ends when we do: its input then ends."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", __file__]
        self.process = subprocess.Popen(  # noqa: S603 - this very file, run by this very interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True
        )

    def ask(self, verb: bytes, *parts: bytes) -> list[bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        alarm = threading.Timer(_SECONDS, self.process.kill)
        alarm.start()
        try:
            _write(self.process.stdin, [verb, *parts])
            said, *answer = _read(self.process.stdout, MOST_CONTEXT, 3)
        except (OSError, EOFError, ValueError) as e:
            raise ChildDied(f"the CKKS child died at {verb.decode()}: refuse what it was given, and its sender") from e
        finally:
            alarm.cancel()
        if said != b"ok":
            raise ValueError(
                f"CKKS {verb.decode()} refused: the bytes are broken, or of another key or other parameters"
            )
        return answer

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what a dead child has not read cannot be flushed
                assert pipe is not None
                pipe.close()


def _write(pipe: IO[bytes], parts: list[bytes]) -> None:
    """Write how many parts there are, then the length of each and the part."""
    pipe.write(struct.pack("<I", len(parts)))
    for part in parts:
        pipe.write(struct.pack("<I", len(part)))
        pipe.write(part)
    pipe.flush()


def _read(pipe: IO[bytes], longest: int, most: int) -> list[bytes]:
    """Read what `_write` wrote: no more parts than `most`, none longer than `longest`."""

    def exactly(size: int) -> bytes:
        data = pipe.read(size)
        if len(data) != size:
            raise EOFError
        return data

    def number(limit: int) -> int:
        value = struct.unpack("<I", exactly(4))[0]
        if value > limit:
            raise ValueError("too long")
        return int(value)

    return [exactly(number(longest)) for _ in range(number(most))]


# From here on: the child.


def _answer(context: ts.Context, verb: bytes, *parts: bytes) -> list[bytes]:
    import tenseal as ts

    if verb == b"encrypt":
        return [ts.ckks_vector(context, np.frombuffer(parts[0], "<f8")).serialize()]
    total, *more = [_vector(context, part) for part in parts]
    for vector in more:
        total += vector
    return [total.serialize() if verb == b"add" else np.asarray(total.decrypt(), "<f8").tobytes()]


def _new() -> ts.Context:
    import tenseal as ts

    context = ts.context(ts.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=_MODULI)
    context.global_scale = _SCALE
    return context


def _serialise(context: ts.Context, secret: bool) -> bytes:
    return context.serialize(
        save_public_key=True, save_secret_key=secret, save_galois_keys=False, save_relin_keys=False
    )


def _context(raw: bytes, parameters: object) -> ts.Context:
    """Load a key; its parameters must be ours, for smaller ones protect nothing."""
    import tenseal as ts

    context = ts.context_from(raw)
    same = context.seal_context().data.key_parms_id() == parameters and context.global_scale == _SCALE
    if not same or not context.has_public_key():
        raise ValueError("another kind of key")
    return context


def _vector(context: ts.Context, raw: bytes) -> ts.CKKSVector:
    """Load a ciphertext that looks like a fresh one or a sum of such."""
    import tenseal as ts

    vector = ts.ckks_vector_from(context, raw)
    inside = vector.ciphertext()
    level = context.seal_context().data.first_parms_id()
    if vector.size() != SLOTS or len(inside) != 1 or inside[0].size() != 2 or inside[0].parms_id() != level:
        raise ValueError("another shape")
    if inside[0].scale != _SCALE or inside[0].is_transparent():
        raise ValueError("another scale, or no encryption at all")
    return vector


def _serve() -> None:
    """Answer questions until there are no more."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not become an answer
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold the secret key
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    parameters = _new().seal_context().data.key_parms_id()
    context = None
    while True:
        try:
            verb, *parts = _read(questions, MOST_CONTEXT, _GROUP + 2)
        except EOFError:
            return
        try:
            if verb == b"new":
                answer = [_serialise(_new(), secret=True)]
            elif verb == b"key":
                context = _context(parts[0], parameters)
                answer = [_serialise(context, secret=False), b"1" if context.is_private() else b"0"]
            else:
                answer = _answer(context, verb, *parts)
        except Exception:  # whatever TenSEAL raises; its text may quote what it was given
            _write(answers, [b"no"])
        else:
            _write(answers, [b"ok", *answer])


if __name__ == "__main__":
    _serve()
