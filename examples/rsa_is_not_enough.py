"""Why sums need Paillier: RSA multiplies under encryption and does not add, and it shows which plaintexts are equal.

Textbook RSA is E(m) = mᵉ mod n, so E(a)·E(b) = E(a·b): a product, where federated learning needs a sum. It has no
randomness either: equal plaintexts have equal ciphertexts, and whoever can guess a plaintext can check the guess. The
padding that makes RSA safe takes the product away as well. Paillier's E(m) = (1 + mn)·rⁿ mod n² is random, and
E(a)·E(b) = E(a + b).

    python examples/rsa_is_not_enough.py
"""

from __future__ import annotations

import secrets
from typing import NamedTuple

import gmpy2
import numpy as np
from cryptography.hazmat.primitives.asymmetric import rsa

from atoll.crypto.packing import Slots
from atoll.crypto.paillier import keypair

CLAIMED: list[str] = []


class Rsa(NamedTuple):
    """Textbook RSA, without the padding: for showing what is wrong with it, and for nothing else."""

    n: int
    e: int
    d: int

    def encrypt(self, m: int) -> int:
        return int(gmpy2.powmod(m, self.e, self.n))

    def decrypt(self, c: int) -> int:
        return int(gmpy2.powmod(c, self.d, self.n))


def claim(scheme: str, question: str, answer: bool, expected: bool) -> None:
    """Note one row of the table; a row that is not as the text above says ends the program."""
    if answer != expected:
        raise SystemExit(f"{scheme}: {question} {answer}, which is not what this example says")
    CLAIMED.append(f"{scheme:10} {question:52} {'yes' if answer else 'no'}")


def with_rsa(a: int, b: int) -> None:
    numbers = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_numbers()
    key = Rsa(numbers.public_numbers.n, numbers.public_numbers.e, numbers.d)
    x, y = key.encrypt(a), key.encrypt(b)
    claim("RSA", "E(a)·E(b) decrypts to a·b", key.decrypt(x * y % key.n) == a * b, True)
    claim("RSA", "E(a)·E(b) decrypts to a+b", key.decrypt(x * y % key.n) == a + b, False)
    claim("RSA", "E(a)+E(b) decrypts to a+b", key.decrypt((x + y) % key.n) == a + b, False)
    claim("RSA", "equal plaintexts look equal", key.encrypt(a) == x, True)
    guessed = next(m for m in range(1000) if key.encrypt(m) == x)
    claim("RSA", "a stranger finds a by trying", guessed == a, True)


def with_paillier(a: int, b: int) -> None:
    key = keypair()
    x, y, again = key.public.encrypt_many([a, b, a])
    total, product = key.decrypt_many([key.public.add(x, y), key.public.multiply(x, b)])
    claim("Paillier", "E(a)·E(b) decrypts to a+b", total == a + b, True)
    claim("Paillier", "E(a)^b decrypts to a·b, for a known b", product == a * b, True)
    claim("Paillier", "equal plaintexts look equal", x == again, False)
    claim("Paillier", "a stranger finds a by trying", x in key.public.encrypt_many(range(100)), False)


def vectors(parties: int = 3, size: int = 1000) -> None:
    """Add whole vectors: many values in one ciphertext, negative ones too."""
    key, slots = keypair(), Slots(bits=16, parties=parties)
    rows = np.array([[secrets.randbelow(2**16) - 2**15 for _ in range(size)] for _ in range(parties)])
    encrypted = [key.public.encrypt_many(slots.pack(row)) for row in rows]
    total = [key.public.add_many(column) for column in zip(*encrypted, strict=True)]
    found = slots.unpack_sum(key.decrypt_many(total), parties, size)
    question = f"{parties} vectors of {size} add up, {len(total)} ciphertexts each"
    claim("Paillier", question, bool((found == rows.sum(0)).all()), True)


def main() -> None:
    with_rsa(17, 25)
    with_paillier(17, 25)
    vectors()
    print("a = 17, b = 25, keys of 2048 bits\n")
    print("\n".join(CLAIMED))


if __name__ == "__main__":
    main()
