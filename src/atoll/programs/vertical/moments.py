"""Joint mean and covariance of columns that two parties hold of the same rows, with a third that holds a key.

A and B know the means and variances of their own columns and tell them to each other: they are part of the result.
What is left is the correlation of each column of A with each of B. Both standardise their columns. Row by row, A
encrypts its numbers under C's key (Paillier; several columns in one plaintext). B multiplies the ciphertexts with its
own numbers, adds them up, adds a random mask to every sum, and passes the sums to C, who decrypts them for A. So A has
masked sums and B has the masks. Both add them up over the rounds, a block of rows each, and only at the end exchange
the two: nobody learns the sums of single blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from atoll.core.effects import Ask, Cohort, Replies, Running, checkpoint, note, together
from atoll.core.party import Handler
from atoll.core.program import Agreed, Me, Program, Role, Solo, one
from atoll.core.question import Layout, Leaf, Origin, Question
from atoll.core.tree import Array, Tree
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.crypto.keys import Refused, refuse_if
from atoll.crypto.paillier import SIZES, PublicKey, SecretKey, keypair
from atoll.crypto.products import weighted_sums
from atoll.programs.roles import check_aligned

HIDING = 40  # bits that a mask is longer than what it hides


@dataclass(frozen=True)
class JointMoments(Program):
    """Joint mean and covariance of columns that A and B hold of the same rows; C holds a Paillier key.

    A round is a block of rows. The result, which A and B are left with, has A's columns first: `mean` and `covariance`
    (divided by rows − 1). It agrees with that of the pooled columns to 2^−precision times both standard deviations.

    Needs: rows with the same ids at A and B; B and C do not collude; all follow the program.
    Reveals: to A and B the result; to C masked sums; to the server sizes, names of columns and a salted hash of the
    ids.

    Args:
        bits: length of the Paillier key, 2048 or 3072. Default 2048.
        precision: binary digits after the point of a standardised number, 16 to 44. Default 40.

    Example:
        >>> import atoll
        >>> sorted(atoll.JointMoments().roles)
        ['A', 'B', 'C']
    """

    bits: int = 2048
    precision: int = 40

    roles: ClassVar[Mapping[str, Role]] = MappingProxyType(
        {
            "A": Role("holds columns, and encrypts them", "features"),
            "B": Role("holds other columns of the same rows, and computes on A's ciphertexts", "features"),
            "C": Role("holds the key, and no data", "nothing"),
        }
    )

    def __post_init__(self) -> None:
        if self.bits not in SIZES:
            raise Mismatch(f"bits={self.bits}: a Paillier key has 2048 bits, or 3072")
        if not 16 <= self.precision <= 44:
            raise Mismatch(f"precision={self.precision}: from 16 to 44 binary digits")

    def check(self, agreed: Agreed) -> None:
        check_aligned(agreed, ("A", "B"))
        rows, columns = agreed.data["A"].samples, _width(agreed, "A") + _width(agreed, "B")
        if rows <= columns:
            raise Mismatch(f"{rows:,} rows have {columns} columns: a covariance that hides rows needs more of them")
        if agreed.rounds > rows:
            raise Mismatch(f"rounds = {agreed.rounds}, and there are {rows:,} rows: a round has at least one")
        if rows > 2**20 * agreed.rounds:
            raise Mismatch(f"{rows:,} rows in {agreed.rounds} rounds: take a round for each million of them")

    def questions(self, agreed: Agreed) -> tuple[Question, ...]:
        plan, key = _Plan.of(self, agreed), self.bits // 8
        p, q = plan.a, plan.b
        sealed = 2 * key  # bytes of a ciphertext
        masked = Leaf("uint8", (p * q, plan.total_bytes))
        done, public = Leaf("bool", ()), Leaf("uint8", (key,))
        rows, products = Leaf("uint8", (plan.block * plan.groups * sealed,)), Leaf("uint8", (q * plan.groups * sealed,))
        opened = Leaf("uint8", (q * plan.groups * key,))
        own = "its means, variances and covariances, which are part of the result"

        def moments(d: int) -> dict[str, Leaf]:
            return {"mean": Leaf("float64", (d,)), "covariance": Leaf("float64", (d, d))}

        def share(role: str, other: str, d: int, leaf: str, words: str) -> Question:
            answers = {**moments(d), leaf: masked}
            return Question(
                f"{role}.share", Layout({}), Layout(answers), (role,), {other: f"{own}; {words}"}, "sealed", True,
                seals=dict.fromkeys(answers, other),
            )  # fmt: skip

        def result(role: str, other: str, d: int, leaf: str) -> Question:
            asks = {**moments(d), leaf: masked}
            opens = {name: Origin(other, f"{other}.share", name) for name in asks}
            return Question(f"{role}.result", Layout(asks), Layout({"done": done}), (role,), {}, "nothing", opens=opens)

        return (
            Question("C.key", Layout({}), Layout({"a": public, "b": public}), ("C",), {"A and B": "the public key"},
                     "nothing", seals={"a": "A", "b": "B"}),
            Question("A.key", Layout({"key": public}), Layout({"done": done}), ("A",), {}, "nothing",
                     opens={"key": Origin("C", "C.key", "a")}),
            Question("B.key", Layout({"key": public}), Layout({"done": done}), ("B",), {}, "nothing",
                     opens={"key": Origin("C", "C.key", "b")}),
            Question("A.rows", Layout({}), Layout({"rows": rows}), ("A",),
                     {"B": "ciphertexts of its rows, under C's key"}, "sealed", True, seals={"rows": "B"}),
            Question("B.products", Layout({"rows": rows}), Layout({"products": products}), ("B",),
                     {"C": "sums of products with A's columns, each under a mask of B's"}, "sealed", True,
                     seals={"products": "C"}, opens={"rows": Origin("A", "A.rows", "rows")}),
            Question("C.open", Layout({"products": products}), Layout({"sums": opened}), ("C",),
                     {"A": "sums of products, each under a mask of B's"}, "sealed",
                     seals={"sums": "A"}, opens={"products": Origin("B", "B.products", "products")}),
            Question("A.sums", Layout({"sums": opened}), Layout({"done": done}), ("A",), {}, "nothing",
                     opens={"sums": Origin("C", "C.open", "sums")}),
            share("A", "B", p, "sums", "the sums of products over all rows, under B's masks"),
            share("B", "A", q, "masks", "its masks, added up over all rows"),
            result("A", "B", q, "masks"),
            result("B", "A", p, "sums"),
        )  # fmt: skip

    def handlers(self, role: str, agreed: Agreed) -> Mapping[str, Handler]:
        side = _Side(_Plan.of(self, agreed))
        found = {
            "A": {"A.key": side.key, "A.rows": side.rows, "A.sums": side.sums, "A.share": side.share_a,
                  "A.result": side.result_a},
            "B": {"B.key": side.key, "B.products": side.products, "B.share": side.share_b, "B.result": side.result_b},
            "C": {"C.key": side.new_key, "C.open": side.open},
        }[role]  # fmt: skip
        return {name: Solo(answer, role) for name, answer in found.items()}

    def seen(self) -> Mapping[str, str]:
        return {
            "A and B": "the result: means, variances and covariances of all columns, their own and the other's",
            "A": f"also sums of products under masks that only B knows, which hide them to 2^-{HIDING}",
            "B": "also ciphertexts of A's rows, which only C's key opens",
            "C": f"sums of products under masks that only B knows, which hide them to 2^-{HIDING}; no row of anybody",
            "hub": "how many rows and columns there are, their names, a salted hash of the ids, sizes and times; all "
            "else is sealed between roles",
            "assumed": "A, B and C follow the program (semi-honest); the decisional composite residuosity assumption, "
            "with short exponents",
            "must not work together": "B and C: with C's key B reads every row of A. A and C together learn the result "
            "and no more",
            "not promised": "a party that makes its columns up learns as many weighted sums of each of the other's "
            "columns as it has columns, in place of covariances, and as many again each time the hub starts the job "
            "anew; C or B can spoil the result without being noticed",
        }

    def run(self, who: Mapping[str, Cohort], agreed: Agreed, world: World, memory: Tree | None) -> Running[Tree]:
        return _run(who, agreed, int(memory["t"]) if memory else 0)


async def _run(who: Mapping[str, Cohort], agreed: Agreed, first: int) -> Tree:
    a, b, c = who["A"], who["B"], who["C"]
    last = agreed.rounds - 1
    if first <= last:
        key = await one(c, "C.key", t=first)
        await together(Ask(a, "A.key", {"t": first, "key": key["a"]}), Ask(b, "B.key", {"t": first, "key": key["b"]}))
    for t in range(first, agreed.rounds):
        rows = await one(a, "A.rows", t=t)
        products = await one(b, "B.products", t=t, rows=rows["rows"])
        opened = await one(c, "C.open", t=t, products=products["products"])
        await one(a, "A.sums", t=t, sums=opened["sums"])
        if t == last:
            shares = await together(Ask(a, "A.share", {"t": t}), Ask(b, "B.share", {"t": t}))
            of_a, of_b = (_only(replies) for replies in shares)
            await together(Ask(a, "A.result", {"t": t, **of_b}), Ask(b, "B.result", {"t": t, **of_a}))
        await note("round", round=t + 1)
        await checkpoint({"t": t + 1})
    return {}


def _only(replies: Replies) -> dict[str, Any]:
    return replies[int(replies.parties[0])]


def _width(agreed: Agreed, role: str) -> int:
    return (agreed.data[role].sample.leaves["x"].shape or (0,))[0]


@dataclass(frozen=True)
class _Plan:
    """All sizes of one job: how numbers are scaled, packed and masked."""

    program: JointMoments
    rows: int
    rounds: int
    a: int  # columns of A
    b: int

    @classmethod
    def of(cls, program: JointMoments, agreed: Agreed) -> _Plan:
        rows = max(agreed.data["A"].samples, agreed.data["B"].samples, 1)
        return cls(program, rows, agreed.rounds, _width(agreed, "A"), _width(agreed, "B"))

    @property
    def block(self) -> int:
        """Rows of a round; the last has fewer, and is filled up with zeros."""
        return -(-self.rows // self.rounds)

    @property
    def bound(self) -> int:
        """Bits of a sum of products over all rows, and so of any block. By Cauchy and Schwarz: a standardised column
        has a squared length of rows − 1, and rounding adds little.
        """
        length = ((isqrt(self.rows) + 1) << self.program.precision) + isqrt(self.rows) + 1
        return (length * length).bit_length()

    @property
    def mask(self) -> int:
        """Bits of a mask: it hides the sum, of either sign, with HIDING bits to spare."""
        return self.bound + 1 + HIDING

    @property
    def slot(self) -> int:
        """Bits of a masked sum: sum + 2^bound + mask."""
        return self.mask + 1

    @property
    def slots(self) -> int:
        """Sums in a plaintext."""
        return (self.program.bits - 1) // self.slot

    @property
    def groups(self) -> int:
        """Plaintexts of a row of A."""
        return -(-self.a // self.slots)

    @property
    def total_bytes(self) -> int:
        """Bytes of a masked sum over all rounds."""
        return -(-(self.slot + self.rounds.bit_length()) // 8)

    def rows_of(self, z: Array, t: int) -> Array:
        """Return the rows of a round."""
        found = z[t * self.block : (t + 1) * self.block]
        return np.concatenate([found, np.zeros((self.block - len(found), z.shape[1]), z.dtype)])

    def pack(self, numbers: list[int]) -> int:
        """Lay signed whole numbers, at most `slots`, side by side in one."""
        return sum(number << (self.slot * k) for k, number in enumerate(numbers))

    def unpack(self, whole: int, count: int) -> list[int]:
        """Cut numbers that are not negative out of one."""
        return [(whole >> (self.slot * k)) & ((1 << self.slot) - 1) for k in range(count)]

    def columns(self, group: int) -> range:
        """Which columns of A stand in a group."""
        return range(group * self.slots, min((group + 1) * self.slots, self.a))


def _moments(x: Array) -> tuple[Array, Array]:
    with np.errstate(over="ignore", invalid="ignore"):
        mean = x.mean(axis=0)
        centred = x - mean
        covariance = centred.T @ centred / (len(x) - 1)
    wide = np.flatnonzero(~np.isfinite(np.diag(covariance)))
    if len(wide):
        raise Mismatch(f"the variance of column {wide[0] + 1} of this role is beyond 64-bit reals: scale it down")
    return mean, covariance


def _standardised(x: Array, precision: int) -> Array:
    """Shift and scale columns to mean 0 and variance 1, as whole numbers; a column that never changes is 0."""
    mean, covariance = _moments(x)
    deviation = np.sqrt(np.diag(covariance))
    z = (x - mean) / np.where(deviation > 0, deviation, 1.0)
    return np.rint(np.where(deviation > 0, z, 0.0) * 2.0**precision).astype(np.int64)


def _to_array(numbers: list[int], width: int) -> Array:
    raw = b"".join(int(number).to_bytes(width, "big") for number in numbers)
    return np.frombuffer(raw, np.uint8).reshape(len(numbers), width)


def _to_numbers(array: Array) -> list[int]:
    return [int.from_bytes(row.tobytes(), "big") for row in np.asarray(array, np.uint8)]


def _added(memory: Mapping[str, Array], leaf: str, numbers: list[int], width: int) -> Array:
    """Add to what is remembered under a name."""
    before = _to_numbers(memory[leaf]) if leaf in memory else [0] * len(numbers)
    return _to_array([x + y for x, y in zip(before, numbers, strict=True)], width)


Changes = Mapping[str, Any]
_DONE = {"done": np.array(True)}


@dataclass(frozen=True)
class _Side:
    """How the roles answer."""

    plan: _Plan

    def new_key(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        """C: make a key for this session."""
        key = keypair(self.plan.program.bits)
        public = np.frombuffer(key.public.to_bytes(), np.uint8)
        return {"a": public, "b": public}, {"secret/key": np.frombuffer(key.to_bytes(), np.uint8)}

    def key(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        """A and B: take C's public key, if it is one that protects them."""
        raw = np.array(body["key"])
        try:
            _read_public(raw.tobytes())
        except ValueError as flaw:
            raise Refused(f"the key that C sent is not used: {flaw}") from None
        return _DONE, {"secret/key": raw}

    def rows(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        """A: encrypt the rows of this round."""
        plan, public = self.plan, _public(me)
        z = plan.rows_of(_standardised(me.x, plan.program.precision), me.t).tolist()
        n = int(public.n)
        packed = [plan.pack([row[j] for j in plan.columns(g)]) % n for row in z for g in range(plan.groups)]
        return {"rows": np.frombuffer(public.ciphertexts_to_bytes(public.encrypt_many(packed)), np.uint8)}, {}

    def products(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        """B: add up A's rows, weighted with its own numbers, and mask the sums."""
        plan, public = self.plan, _public(me)
        _check_blocks(me, me.t)
        rows = public.ciphertexts_from_bytes(np.asarray(body["rows"]).tobytes(), plan.block * plan.groups)
        columns = plan.rows_of(_standardised(me.x, plan.program.precision), me.t).T.tolist()
        width = -(-plan.mask // 8)
        drawn = me.world.private("moments.masks", me.t).raw(plan.a * plan.b * width)
        masks = [
            (int.from_bytes(drawn[i : i + width], "big") >> (8 * width - plan.mask)) + (1 << plan.bound)
            for i in range(0, len(drawn), width)
        ]
        found = []
        for g in range(plan.groups):
            sums = weighted_sums(public, rows[g :: plan.groups], columns)
            # What is added has noise of its own, so that nothing of B's numbers is left in the noise of a sum.
            hiding = [plan.pack([masks[k * plan.a + j] for j in plan.columns(g)]) for k in range(plan.b)]
            found += [public.add(*pair) for pair in zip(sums, public.encrypt_many(hiding), strict=True)]
        reply = {"products": np.frombuffer(public.ciphertexts_to_bytes(found), np.uint8)}
        return reply, {"masks": _added(me.memory, "masks", masks, plan.total_bytes), "blocks": np.array(me.t + 1)}

    def open(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        """C: decrypt masked sums."""
        plan, key = self.plan, _read_secret(me.memory["secret/key"].tobytes())
        count, width = plan.b * plan.groups, plan.program.bits // 8
        sums = key.decrypt_many(key.public.ciphertexts_from_bytes(np.asarray(body["products"]).tobytes(), count))
        return {"sums": _to_array([int(m) for m in sums], width).reshape(-1)}, {}

    def sums(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        """A: take the masked sums of this round and add them to those before."""
        plan = self.plan
        _check_blocks(me, me.t)
        whole = _to_numbers(np.asarray(body["sums"]).reshape(plan.b * plan.groups, -1))
        entries = [0] * (plan.a * plan.b)
        for g in range(plan.groups):
            for k in range(plan.b):
                cut = plan.unpack(whole[g * plan.b + k], len(plan.columns(g)))
                for j, number in zip(plan.columns(g), cut, strict=True):
                    entries[k * plan.a + j] = number
        return _DONE, {"sums": _added(me.memory, "sums", entries, plan.total_bytes), "blocks": np.array(me.t + 1)}

    def share_a(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        _check_blocks(me, self.plan.rounds)
        mean, covariance = _moments(me.x)
        return {"mean": mean, "covariance": covariance, "sums": me.memory["sums"]}, {}

    def share_b(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        _check_blocks(me, self.plan.rounds)
        mean, covariance = _moments(me.x)
        return {"mean": mean, "covariance": covariance, "masks": me.memory["masks"]}, {}

    def result_a(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        mine, theirs = _moments(me.x), (body["mean"], body["covariance"])
        return _DONE, self._joint(mine, theirs, me.memory["sums"], body["masks"])

    def result_b(self, body: Tree, me: Me) -> tuple[Tree, Changes]:
        mine, theirs = _moments(me.x), (body["mean"], body["covariance"])
        return _DONE, self._joint(theirs, mine, body["sums"], me.memory["masks"])

    def _joint(
        self, of_a: tuple[Array, Array], of_b: tuple[Array, Array], sums: Array, masks: Array
    ) -> dict[str, Array | None]:
        """Put the result together; what led to it is forgotten."""
        plan = self.plan
        products = [x - y for x, y in zip(_to_numbers(sums), _to_numbers(masks), strict=True)]
        unit = (plan.rows - 1) << (2 * plan.program.precision)
        correlation = np.array([product / unit for product in products]).reshape(plan.b, plan.a).T
        deviations = [np.sqrt(np.diag(covariance)) for _, covariance in (of_a, of_b)]
        cross = correlation * np.outer(*deviations)
        covariance = np.block([[of_a[1], cross], [cross.T, of_b[1]]])
        mean = np.concatenate([of_a[0], of_b[0]])
        forgotten = dict.fromkeys(("sums", "masks", "blocks"))
        return {"model/mean": mean, "model/covariance": covariance, **forgotten}


def _check_blocks(me: Me, expected: int) -> None:
    """Refuse a hub that asks for blocks out of turn, or for shares before all are in: it would learn their sums."""
    done = int(me.memory["blocks"]) if "blocks" in me.memory else 0
    refuse_if(done != expected, f"{done} blocks of rows are done where {expected} should be: the hub asks out of turn")


def _public(me: Me) -> PublicKey:
    return _read_public(me.memory["secret/key"].tobytes())


@lru_cache(maxsize=2)  # to check a key, and to make its table of powers, takes longer than a small round
def _read_public(raw: bytes) -> PublicKey:
    return PublicKey.from_bytes(raw)


@lru_cache(maxsize=2)
def _read_secret(raw: bytes) -> SecretKey:
    return SecretKey.from_bytes(raw)
