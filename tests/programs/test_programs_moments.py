"""Joint moments: equal to NumPy's over the pooled columns, by the laws of programs, with nothing in the clear."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.program import Agreed
from atoll.core.wire import Mismatch
from atoll.crypto.paillier import SecretKey, keypair
from atoll.crypto.products import weighted_sums
from atoll.data.roles import RoleData, columns, nothing
from atoll.programs.vertical import JointMoments
from atoll.programs.vertical.moments import _Plan
from atoll.runtimes.roles.simulate import simulate_roles
from atoll.testing import check_part, check_program

ROLES = {"A": "bank", "B": "shop", "C": "notary"}


def table(n: int, p: int, q: int, seed: int = 0) -> tuple[np.ndarray, dict[str, RoleData]]:
    """Correlated columns of unlike scales, and the two parts of them, in different orders of rows."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, p + q)) @ generator.normal(size=(p + q, p + q))
    x = x * generator.choice([0.01, 1.0, 30.0], p + q) + generator.normal(size=p + q)
    ids, order = [f"row {k}" for k in range(n)], generator.permutation(n)
    a = columns(x[:, :p], ids=ids)
    b = columns(x[order, p:], ids=[ids[k] for k in order])
    return x, {"A": a, "B": b}


def moments(data: dict[str, RoleData], rounds: int = 1, program: JointMoments | None = None) -> Any:
    return simulate_roles(atoll.RoleJob(program or JointMoments(), ROLES, rounds), data)


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return keypair()


def test_joint_moments_obey_the_laws_of_programs_and_equal_those_of_pooled_columns() -> None:
    x, data = table(25, 2, 3)
    check_part(JointMoments())
    run = check_program(JointMoments(), data, rounds=2)
    for role in "AB":
        np.testing.assert_allclose(run.models[role]["mean"], x.mean(axis=0), rtol=0, atol=1e-9)
        np.testing.assert_allclose(run.models[role]["covariance"], np.cov(x.T), rtol=0, atol=1e-9)
        assert np.array_equal(run.models[role]["covariance"], run.models["A"]["covariance"])
    assert run.models["C"] == {}
    assert run.found == {}, "the hub finds out nothing"


@pytest.mark.parametrize(("n", "p", "q", "rounds"), [(4, 1, 1, 3), (40, 17, 2, 1), (7, 1, 4, 7)])
def test_shapes_of_all_kinds(n: int, p: int, q: int, rounds: int) -> None:
    """One row a round; a last block that is filled up; more columns than a plaintext has slots."""
    x, data = table(n, p, q, seed=n)
    run = moments(data, rounds)
    deviation = x.std(axis=0, ddof=1)
    for role in "AB":
        error = np.abs(run.models[role]["covariance"] - np.cov(x.T)) / np.outer(deviation, deviation)
        assert error.max() < 2.0**-39, "rounding costs no more than is promised"


def test_a_column_that_never_changes_has_no_covariance() -> None:
    _, data = table(12, 2, 2)
    still = data["A"].x.copy()
    still[:, 0] = 3.0
    run = moments({**data, "A": columns(still, ids=[f"row {k}" for k in range(12)])})
    covariance = run.models["B"]["covariance"]
    assert not covariance[0].any()
    assert not covariance[:, 0].any()
    assert covariance[1, 2] != 0


def test_one_number_by_hand() -> None:
    """x = 1, 2, 3, 6 and y = 2, 4, 6, 12: deviations −2, −1, 0, 3 and twice those, so 28 / 3."""
    x = np.array([1.0, 2.0, 3.0, 6.0])[:, None]
    run = moments({"A": columns(x, ids="abcd"), "B": columns(2 * x, ids="abcd")})
    np.testing.assert_allclose(run.models["A"]["covariance"], [[14 / 3, 28 / 3], [28 / 3, 56 / 3]], atol=1e-10)
    assert run.models["A"]["mean"].tolist() == [3.0, 6.0]


def test_what_c_and_a_see_of_a_sum_says_nothing_about_it() -> None:
    """Each is the sum behind a mask that is HIDING bits longer: masked sums of two worlds have nothing in common."""
    _, data = table(20, 1, 1)
    seen: list[int] = []
    for seed in range(2):
        job = atoll.RoleJob(JointMoments(), ROLES, 2, seed)
        roles = _observed(job, data)
        seen.append(roles["sums"])
    plan = _Plan.of(JointMoments(), Agreed({r: d.summary(b"") for r, d in {**data, "C": nothing()}.items()}, 2))
    assert all(value.bit_length() > plan.bound + 20 for value in seen)
    assert abs(seen[0] - seen[1]) > 1 << (plan.bound + 20)


def _observed(job: Any, data: Any) -> dict[str, int]:
    """What A remembers after the first of two rounds, of its only entry."""
    from atoll.journal import Journal
    from atoll.runtimes.roles.conversation import converse
    from atoll.runtimes.roles.simulate import SimulatedRoles

    found: dict[str, int] = {}

    class Looking(SimulatedRoles):
        def checkpoint(self, memory: Any) -> None:
            leaves = self.sides[0].memory.leaves
            if "sums" in leaves:
                found["sums"] = int.from_bytes(leaves["sums"][0].tobytes(), "big")
            super().checkpoint(memory)

    roles = Looking(job, {**data, "C": nothing()}, b"".ljust(32), Journal())
    converse(roles.setup, roles, None)
    return found


def _wide() -> dict[str, RoleData]:
    data = table(5, 1, 1)[1]
    ids = [f"row {k}" for k in range(5)]
    return {**data, "A": columns(np.array([1e200, -1e200, 0, 1, 2])[:, None], ids=ids)}


@pytest.mark.parametrize(
    ("program", "data", "rounds", "words"),
    [
        (JointMoments(), table(4, 2, 2)[1], 1, "4 rows have 4 columns"),
        (JointMoments(), table(5, 1, 1)[1], 6, "rounds = 6, and there are 5 rows"),
        (JointMoments(), {**table(5, 1, 1)[1], "B": table(6, 1, 1)[1]["B"]}, 1, "role A has 5 rows and role B 6"),
        (JointMoments(), {**table(5, 1, 1)[1], "B": columns(np.zeros((5, 1)), ids=range(5))}, 1, "different ids"),
        (JointMoments(), _wide(), 1, "the variance of column 1 of this role is beyond 64-bit reals: scale it down"),
    ],
)
def test_what_makes_no_sense_is_refused(program: Any, data: Any, rounds: int, words: str) -> None:
    with pytest.raises(Mismatch, match=words):
        moments(data, rounds, program)


@pytest.mark.parametrize(
    ("fields", "words"), [({"bits": 1024}, "2048 bits, or 3072"), ({"precision": 8}, "from 16 to")]
)
def test_weak_keys_and_odd_precisions_are_refused(fields: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JointMoments(**fields)


def test_a_hub_that_asks_for_shares_too_early_is_refused() -> None:
    """It would learn, together with A, the sums of single blocks of rows."""
    from roles_cast import Cast

    _, data = table(6, 1, 1)
    cast = Cast(atoll.RoleJob(JointMoments(), ROLES, 2), data).meet()
    keys = cast.ask("C", "C.key")
    cast.ask("A", "A.key", key=keys["a"])
    cast.ask("B", "B.key", key=keys["b"])
    products = cast.ask("B", "B.products", **cast.ask("A", "A.rows"))
    cast.ask("A", "A.sums", **cast.ask("C", "C.open", **products))
    for role in "AB":
        with pytest.raises(RuntimeError, match="1 blocks of rows are done where 2 should be"):
            cast.ask(role, f"{role}.share")
    with pytest.raises(RuntimeError, match="the hub asks out of turn"):
        cast.ask("B", "B.products", step=1, **cast.ask("A", "A.rows", step=1))


@pytest.mark.parametrize(
    ("weak", "words"),
    [(2**2047 + 1, "has a small factor"), ((2**1023 + 2**1022 + 1) ** 2, "is a power"), (2**2000 + 1, "of 2001 bits")],
    ids=["small factor", "power", "short"],
)
def test_a_key_that_protects_nothing_is_refused_before_anything_is_encrypted(
    monkeypatch: pytest.MonkeyPatch, weak: int, words: str
) -> None:
    """The liar is the key holder: whoever can factor its modulus reads A's rows off the hub."""
    from roles_cast import Cast

    from atoll.programs.vertical import moments

    class Weak:
        public = property(lambda self: self)

        def to_bytes(self) -> bytes:
            return weak.to_bytes(256, "big")

    monkeypatch.setattr(moments, "keypair", lambda bits: Weak())
    _, data = table(6, 1, 1)
    cast = Cast(atoll.RoleJob(JointMoments(), ROLES, 2), data).meet()
    keys = cast.ask("C", "C.key")
    for role in "AB":
        with pytest.raises(RuntimeError, match=f"the key that C sent is not used: a public key .*{words}"):
            cast.ask(role, f"{role}.key", key=keys[role.lower()])


def test_a_hub_cannot_have_the_key_holder_open_as_rows() -> None:
    """The attack that sealing between roles is for: A's ciphertexts handed to C as if they were masked sums."""
    from roles_cast import Cast

    from atoll.core.question import Fault
    from atoll.crypto.keys import Refused

    _, data = table(6, 1, 1)
    cast = Cast(atoll.RoleJob(JointMoments(), ROLES, 6), data).meet()
    keys = cast.ask("C", "C.key")
    cast.ask("A", "A.key", key=keys["a"])
    rows = cast.ask("A", "A.rows")["rows"]
    assert rows.size == 512 + 28, "one row a round: it has the size of what C opens"
    with pytest.raises(Refused, match="'products' is not what B sealed for C"):
        cast.ask("C", "C.open", products=rows)
    with pytest.raises(Fault):
        cast.ask("C", "C.open", products=rows[:-1])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**64), st.integers(-(2**45), 2**45)), min_size=1, max_size=30))
def test_weighted_sums_are_those_of_the_plaintexts(key: SecretKey, terms: list[tuple[int, int]]) -> None:
    public = key.public
    plain, weights = [m for m, _ in terms], [w for _, w in terms]
    columns = [weights, [0] * len(terms), [-w for w in weights]]
    found = key.decrypt_many(weighted_sums(public, public.encrypt_many(plain), columns))
    expected = sum(m * w for m, w in terms)
    assert [int(m) for m in found] == [value % int(public.n) for value in (expected, 0, -expected)]


def test_weighted_sums_of_other_lengths_are_refused(key: SecretKey) -> None:
    with pytest.raises(ValueError, match="1 numbers for 2 ciphertexts"):
        weighted_sums(key.public, key.public.encrypt_many([1, 2]), [[1]])
