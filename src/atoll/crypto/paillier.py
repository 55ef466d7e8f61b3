"""Paillier: encryption under which sums can be formed without the key, and a key that several must use together.

Fast encryption is Damgård, Jurik and Nielsen's (Int. J. Inf. Secur. 9, 2010): the noise of a ciphertext is a power of
one fixed base with an exponent of half the key's length. Beyond Paillier's own assumption it is therefore assumed that
such powers cannot be told from powers with exponents of full length.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import gmpy2
from gmpy2 import mpz

SIZES = (2048, 3072)  # bits of n that are accepted; 3072 for secrets that must outlive 2030
_SMALL = 1 << 16  # a public key has no factor below this
_ROUNDS = 40  # of the prime test: 24 of them stand for Baillie–PSW


def keypair(bits: int = 2048) -> SecretKey:
    """Make a key from the randomness of the operating system; `.public` is the half to give away."""
    if bits not in SIZES:
        raise ValueError(f"bits={bits}: a Paillier key has 2048 bits, or 3072 for secrets that must outlive 2030")
    return SecretKey(*_primes(bits))


def _primes(bits: int) -> tuple[mpz, mpz]:
    """Draw p ≡ q ≡ 3 (mod 4) with gcd(p−1, q−1) = 2, far apart, whose product has exactly this many bits."""
    while True:
        p, q = _prime(bits // 2), _prime(bits // 2)
        # FIPS 186-5, A.1.3: primes closer together than this are within reach of Fermat's method.
        far = abs(p - q) > mpz(1) << (bits // 2 - 100)
        if far and gmpy2.gcd(p - 1, q - 1) == 2 and gmpy2.gcd(p * q, (p - 1) * (q - 1)) == 1:
            return p, q


def _prime(bits: int) -> mpz:
    while True:
        # Two leading ones make the product of two primes exactly twice as long; two trailing ones are 3 modulo 4.
        candidate = mpz(secrets.randbits(bits)) | (3 << (bits - 2)) | 3
        if gmpy2.is_prime(candidate, _ROUNDS):
            return candidate


@lru_cache(maxsize=1)
def _small_primes() -> mpz:
    return gmpy2.primorial(_SMALL)


@dataclass(frozen=True, repr=False)
class PublicKey:
    """The half of a key that encrypts, adds and multiplies by known numbers. It is its modulus n and nothing else.

    Every holder draws a base of his own: a base taken from a peer would have to be trusted. Encryption looks up powers
    by the digits of its secret exponent, so it hides them from peers, not from another program on the same processor.
    """

    n: mpz

    def __post_init__(self) -> None:
        n = mpz(self.n)
        object.__setattr__(self, "n", n)
        if n.bit_length() not in SIZES:
            raise ValueError(f"a public key of {n.bit_length()} bits: ask its owner for one of 2048 or 3072")
        flaws = {
            "is even": n.is_even(),
            "is a power": gmpy2.is_power(n),
            "has a small factor": gmpy2.gcd(_small_primes(), n) != 1,
            "is prime": gmpy2.is_prime(n),
        }
        for flaw, found in flaws.items():
            if found:
                raise ValueError(f"a public key whose modulus {flaw} protects nothing: ask its owner for another")

    def __repr__(self) -> str:
        return f"PublicKey({self.bits} bits, {self.fingerprint})"

    @property
    def bits(self) -> int:
        return int(self.n.bit_length())

    @property
    def width(self) -> int:
        """Bytes of one ciphertext."""
        return self.bits // 4

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits to compare by eye, or by telephone."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]

    @cached_property
    def _square(self) -> mpz:
        return self.n * self.n

    @cached_property
    def _powers(self) -> list[list[mpz]]:
        """Row i holds base^(d · 256^i) for every byte d: a power is then one product per byte of its exponent."""
        n, square = self.n, self._square
        while gmpy2.gcd(y := mpz(secrets.randbelow(n)), n) != 1:
            pass  # zero, or a factor of n: never seen
        base = gmpy2.powmod(-y * y % n, n, square)
        rows = []
        for _ in range(self.bits // 16):
            row = [mpz(1)]
            for _ in range(255):
                row.append(row[-1] * base % square)
            rows.append(row)
            base = row[-1] * base % square
        return rows

    def _noises(self, count: int) -> Iterable[mpz]:
        """Fresh encryptions of zero."""
        square, powers = self._square, self._powers
        for _ in range(count):
            noise = mpz(1)
            for row, digit in zip(powers, secrets.token_bytes(len(powers)), strict=True):
                noise = noise * row[digit] % square
            yield noise

    def encrypt_many(self, plaintexts: Sequence[int]) -> list[mpz]:
        """Encrypt whole numbers from 0 to n − 1, each with noise of its own."""
        n, square = self.n, self._square
        if not all(0 <= m < n for m in plaintexts):
            raise ValueError("a plaintext below 0 or not below n: pack values with Slots, which checks their range")
        noises = self._noises(len(plaintexts))
        return [(1 + mpz(m) * n) * noise % square for m, noise in zip(plaintexts, noises, strict=True)]

    def rerandomise(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Give every ciphertext fresh noise: the same plaintexts in ciphertexts that cannot be linked to the old."""
        self.check(ciphertexts)
        return [c * noise % self._square for c, noise in zip(ciphertexts, self._noises(len(ciphertexts)), strict=True)]

    def add(self, a: mpz, b: mpz) -> mpz:
        """Encrypt the sum of two plaintexts, modulo n."""
        return self.add_many([a, b])

    def add_many(self, ciphertexts: Sequence[mpz]) -> mpz:
        """Encrypt the sum of all these plaintexts, modulo n. Nothing random is added: see `rerandomise`."""
        if not ciphertexts:
            raise ValueError("no ciphertexts: a sum has at least one term")
        self._check_range(ciphertexts)
        total = mpz(1)
        for c in ciphertexts:
            total = total * c % self._square
        self._check_coprime(total)  # a product shares a factor with n exactly if one of its terms does
        return total

    def multiply(self, ciphertext: mpz, scalar: int) -> mpz:
        """Encrypt scalar × plaintext, modulo n.

        Who made the ciphertext could recover the scalar from the result: `rerandomise` it before it goes back to him.
        The time taken depends on the scalar.
        """
        self.check([ciphertext])
        return gmpy2.powmod(ciphertext, scalar, self._square)

    def check(self, ciphertexts: Sequence[mpz]) -> None:
        """Refuse what no encryption could have made: 0, n² or more, or anything that shares a factor with n."""
        self._check_range(ciphertexts)
        product = mpz(1)
        for c in ciphertexts:
            product = product * (c % self.n) % self.n
        self._check_coprime(product)

    def _check_range(self, ciphertexts: Sequence[mpz]) -> None:
        if not all(0 < c < self._square for c in ciphertexts):
            raise ValueError("a ciphertext that is not between 0 and n²: it is broken, or made for another key")

    def _check_coprime(self, product: mpz) -> None:
        if gmpy2.gcd(product, self.n) != 1:
            raise ValueError("a ciphertext that shares a factor with n: no encryption makes one, refuse its sender")

    def combine(self, partials: Sequence[Sequence[mpz]]) -> list[mpz]:
        """Make plaintexts of the partial decryptions of all holders: one sequence per holder, in any order."""
        if len({len(part) for part in partials}) != 1:
            raise ValueError("partial decryptions of different lengths, or none: each holder decrypts every ciphertext")
        plaintexts = []
        for column in zip(*partials, strict=True):
            lifted = self.add_many(column)
            m, rest = divmod(lifted - 1, self.n)
            if rest:
                raise ValueError("these partial decryptions do not fit together: one holder is missing or wrong")
            plaintexts.append(m)
        return plaintexts

    def to_bytes(self) -> bytes:
        return self.n.to_bytes(self.bits // 8, "big")

    @staticmethod
    def from_bytes(raw: bytes) -> PublicKey:
        if len(raw) * 8 not in SIZES:
            raise ValueError(f"a public key of {len(raw)} bytes: it has 256 or 384")
        return PublicKey(mpz.from_bytes(raw, "big"))

    def ciphertexts_to_bytes(self, ciphertexts: Sequence[mpz]) -> bytes:
        """Write ciphertexts, or partial decryptions, one after the other, `width` bytes each."""
        self.check(ciphertexts)
        return b"".join(c.to_bytes(self.width, "big") for c in ciphertexts)

    def ciphertexts_from_bytes(self, raw: bytes, count: int) -> list[mpz]:
        """Read and check exactly this many ciphertexts."""
        if len(raw) != count * self.width:
            raise ValueError(f"{len(raw)} bytes for {count} ciphertexts: they take {count * self.width}")
        ciphertexts = [mpz.from_bytes(raw[i : i + self.width], "big") for i in range(0, len(raw), self.width)]
        self.check(ciphertexts)
        return ciphertexts


@dataclass(frozen=True, repr=False)
class SecretKey:
    """The two primes. Never decrypt for a peer what the peer chose and tell him the result: he could ask anything."""

    p: mpz
    q: mpz

    def __post_init__(self) -> None:
        p, q = mpz(self.p), mpz(self.q)
        object.__setattr__(self, "p", p)
        object.__setattr__(self, "q", q)
        prime = gmpy2.is_prime(p, _ROUNDS) and gmpy2.is_prime(q, _ROUNDS)
        if not prime or p.bit_length() != q.bit_length() or gmpy2.gcd(p - 1, q - 1) != 2:
            raise ValueError("these are not the primes of a Paillier key: make one with keypair()")
        _ = self.public  # refuses other sizes

    def __repr__(self) -> str:
        return f"SecretKey({self.public.bits} bits, {self.public.fingerprint})"

    @cached_property
    def public(self) -> PublicKey:
        return PublicKey(self.p * self.q)

    @cached_property
    def _halves(self) -> list[tuple[mpz, mpz, mpz]]:
        """For each prime: itself, its square, and 1 / L((1+n)^(prime−1)) = 1 / ((prime−1) · n/prime) modulo it."""
        n = self.public.n
        return [(p, p * p, gmpy2.invert((p - 1) * (n // p), p)) for p in (self.p, self.q)]

    @cached_property
    def _p_inverse(self) -> mpz:
        return gmpy2.invert(self.p, self.q)

    def decrypt_many(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Return the plaintexts, from 0 to n − 1."""
        self.public.check(ciphertexts)
        plaintexts = []
        for c in ciphertexts:
            # The exponents are secret: powmod_sec takes the same time for all of them.
            x, y = ((gmpy2.powmod_sec(c % pp, p - 1, pp) - 1) // p * scale % p for p, pp, scale in self._halves)
            plaintexts.append(x + self.p * ((y - x) * self._p_inverse % self.q))
        return plaintexts

    def share(self, holders: int) -> list[KeyShare]:
        """Split the key so that all holders together decrypt and any fewer learn nothing, about it or a plaintext.

        Who calls this is the dealer: he hands each share to its holder and then forgets the shares and this key.
        """
        if holders < 2:
            raise ValueError(f"holders={holders}: a key is shared among two or more")
        n, order = self.public.n, (self.p - 1) * (self.q - 1) // 2
        # d ≡ 0 removes the noise, whose order divides λ; d ≡ 1 leaves the plaintext. Shares are uniform modulo nλ.
        d = order * gmpy2.invert(order, n)
        shares = [mpz(secrets.randbelow(n * order)) for _ in range(holders - 1)]
        return [KeyShare(self.public, x) for x in [*shares, (d - sum(shares)) % (n * order)]]

    def to_bytes(self) -> bytes:
        """Keep this as you keep a password."""
        size = self.public.bits // 16
        return self.p.to_bytes(size, "big") + self.q.to_bytes(size, "big")

    @staticmethod
    def from_bytes(raw: bytes) -> SecretKey:
        half = len(raw) // 2
        if len(raw) * 8 not in SIZES:
            raise ValueError(f"a secret key of {len(raw)} bytes: it has 256 or 384")
        return SecretKey(mpz.from_bytes(raw[:half], "big"), mpz.from_bytes(raw[half:], "big"))


@dataclass(frozen=True, repr=False)
class KeyShare:
    """One holder's share of a key: worth nothing without all the others."""

    public: PublicKey
    exponent: mpz

    def __post_init__(self) -> None:
        if not 0 < self.exponent < self.public._square:
            raise ValueError("a key share that does not fit its public key: ask the dealer for it again")

    def __repr__(self) -> str:
        return f"KeyShare({self.public.bits} bits, {self.public.fingerprint})"

    def decrypt_many(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        """Return this holder's partial decryptions; `PublicKey.combine` needs those of all holders."""
        self.public.check(ciphertexts)
        return [gmpy2.powmod_sec(c, self.exponent, self.public._square) for c in ciphertexts]

    def to_bytes(self) -> bytes:
        """Write the public key and the secret exponent: keep this as you keep a password."""
        return self.public.to_bytes() + self.exponent.to_bytes(self.public.width, "big")

    @staticmethod
    def from_bytes(raw: bytes) -> KeyShare:
        third = len(raw) // 3
        if len(raw) * 8 not in [3 * bits for bits in SIZES]:
            raise ValueError(f"a key share of {len(raw)} bytes: it has 768 or 1152")
        return KeyShare(PublicKey.from_bytes(raw[:third]), mpz.from_bytes(raw[third:], "big"))
