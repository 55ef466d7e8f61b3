"""Sums that hide their vectors: exact, equal to the simulated sum bit for bit, closed when too few answer."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.effects import drive
from atoll.core.wire import Combine, Setting, Wire, chain
from atoll.core.world import World
from atoll.data.federated import Federated, Silos
from atoll.testing import Echo, Loopback, check_combine, check_refusal

WIRE = chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring())(Wire.of(40, 5))[0]
SHARED = chain(
    atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(0.3, "distributed", honest=0.5)
)(Wire.of(40, 5))[0]
HIDDEN = [atoll.SecureSum(), atoll.LightSum(), atoll.EncryptedSum(), atoll.EncryptedSum(key_holders=3)]
SETTING = Setting("model", World.simulated(0))


@pytest.mark.parametrize("combine", HIDDEN, ids=str)
@pytest.mark.parametrize("wire", [WIRE, SHARED], ids=["plain", "with noise"])
def test_combines(combine: Combine, wire: Wire) -> None:
    check_combine(combine, wire, absent=((), (2,)))


@pytest.mark.parametrize("combine", HIDDEN, ids=str)
def test_random_rows_add_up_exactly_with_and_without_dropouts(combine: Combine) -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(-(2**15) + 1, 2**15, (8, 40)).astype(np.uint32)
    cohort = np.array([0, 1, 2, 4, 7])
    for absent in ((), (4,)):
        samples = Silos(np.zeros((8, 1), np.float32), np.zeros(8, np.int32), np.arange(9))
        runtime = Loopback({"model/contribute": Echo()}, samples, absent=absent)
        vector, replies = drive(combine.gather(WIRE, SETTING)(cohort, {"rows": rows, "t": 3}, None), runtime)
        there = [p for p in cohort.tolist() if p not in absent]
        assert np.array_equal(vector, np.add.reduce(rows[there], 0, dtype=np.uint32))
        assert replies.parties.tolist() == there


@pytest.mark.parametrize("combine", [atoll.SecureSum(), atoll.LightSum()], ids=str)
def test_too_few_answers_open_nothing(combine: Combine) -> None:
    samples = Silos(np.zeros((8, 1), np.float32), np.zeros(8, np.int32), np.arange(9))
    runtime = Loopback({"model/contribute": Echo()}, samples, absent=(0, 1, 2))
    rows = np.ones((8, 40), np.uint32)
    vector, replies = drive(
        combine.gather(WIRE, SETTING)(np.array([0, 1, 2, 4, 7]), {"rows": rows, "t": 0}, None), runtime
    )
    assert not vector.any()
    assert not len(replies)
    assert "nothing was opened" in replies.facts["aborted"]


def job(combine: Combine, *stages: object, drop: float = 0.0, **more: object) -> atoll.Job:
    method = atoll.FedAvg(atoll.models.softmax(), batch=5, lr=0.1)
    channel = atoll.Channel(stages or (atoll.Clip(2.0), atoll.Weigh(max_weight=40), atoll.Ring()), combine)  # type: ignore[arg-type]
    return atoll.Job(method, atoll.All(), channel, rounds=3, availability=atoll.Always(drop), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("combine", HIDDEN, ids=str)
def test_a_run_with_its_protocol_has_the_bits_of_one_without(combine: Combine, unequal: Federated) -> None:
    a = atoll.simulate(job(combine, drop=0.1), unequal, seed=1)
    b = atoll.simulate(job(combine, drop=0.1), unequal, seed=1, protocols=True)
    assert np.array_equal(a.vector, b.vector)
    assert any("protocol_bytes" in f for f in b.facts)
    assert "simulated" in a.about["seen"]["server"]
    assert "simulated" not in b.about["seen"]["server"]


def test_a_secure_sum_is_near_the_plain_mean(unequal: Federated) -> None:
    plain = atoll.simulate(job(atoll.Sum(), atoll.Weigh()), unequal, seed=1)
    secure = atoll.simulate(
        job(atoll.SecureSum(), atoll.Clip(50.0), atoll.Weigh(max_weight=1000), atoll.Ring(24, width=64)),
        unequal,
        seed=1,
    )
    assert np.abs(plain.vector - secure.vector).max() < 1e-3


def test_a_round_that_stays_closed_leaves_the_model(unequal: Federated) -> None:
    """Half of the parties drop out, two thirds are needed."""
    run = atoll.simulate(job(atoll.SecureSum(), drop=0.9), unequal, seed=1)
    closed = [f for f in run.facts if f["what"] == "round" and "aborted" in f]
    assert len(closed) == 3
    assert all(f["update_norm"] == 0 and f["answered"] < f["needed"] for f in closed)


def test_noise_in_shares_is_never_opened_below_its_floor(unequal: Federated) -> None:
    stages = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(1.0, "distributed", honest=1.0))
    run = atoll.simulate(job(atoll.SecureSum(), *stages, drop=0.15), unequal, seed=3)
    rounds = [f for f in run.facts if f["what"] == "round"]
    opened = [f for f in rounds if "aborted" not in f]
    assert all(f["answered"] == len(unequal) for f in opened)
    assert len(opened) < len(rounds)


def test_bytes_are_those_of_the_protocol() -> None:
    """Bonawitz et al.: the 2NN with 100 parties of 16 bits takes 1.493 of the plain vector."""
    wire = chain(atoll.Clip(1.0), atoll.Average(), atoll.Ring())(Wire.of(199_210, 100))[0]
    from atoll.crypto.secagg import bytes_sent

    assert bytes_sent(100, 199_210, 23) / (199_210 * 2) == pytest.approx(1.493, abs=1e-3)
    sizes = atoll.SecureSum().message_bytes(wire)
    masked = 199_210 * 3  # of 24 bits: there is room for 210 parties
    assert masked < sizes["secure.masked"][1] < masked + 20
    both = sum(map(sum, sizes.values()))
    assert bytes_sent(100, 199_210, 24) < both < 1.05 * bytes_sent(100, 199_210, 24)  # signatures and names
    assert atoll.EncryptedSum().message_bytes(wire)["encrypted.seal"][1] / 199_210 <= 10


def test_what_cannot_be_added_in_secret_is_refused() -> None:
    wire = Wire.of(10, 20)
    check_refusal(lambda: atoll.SecureSum().check(wire), "put Ring() after Clip()")
    local = chain(atoll.Clip(1.0), atoll.Average(), atoll.Gaussian(1.0, "local"))(wire)[0]
    check_refusal(lambda: atoll.SecureSum().check(local), "put Ring() before the noise")
    few = chain(atoll.Clip(1.0), atoll.Average(), atoll.Ring())(Wire.of(10, 2))[0]
    for combine in (atoll.SecureSum(), atoll.LightSum(), atoll.EncryptedSum()):
        check_refusal(lambda combine=combine: combine.check(few), "at least 3 parties", "select more")
    check_refusal(
        lambda: atoll.SecureSum(min_parties=30).check(chain(atoll.Clip(1.0), atoll.Ring())(wire)[0]), "at least 30"
    )
    check_refusal(lambda: atoll.SecureSum(sparse=True).check(WIRE), "no sparse graph", "complete graph")
    wide = chain(atoll.Clip(1.0), atoll.Average(), atoll.Ring(26))(Wire.of(10, 5))[0]
    check_refusal(lambda: atoll.LightSum().check(wide), "31 bits")
    shared = chain(atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(1.0, "distributed"))(wire)[
        0
    ]
    check_refusal(lambda: atoll.Sum().check(shared), "SecureSum()")
    check_refusal(lambda: atoll.Each(atoll.Median()).check(WIRE), "needs real vectors")
    for make, words in [
        (lambda: atoll.SecureSum(threshold=0.5), "2/3"), (lambda: atoll.SecureSum(min_parties=2), "hides none"),
        (lambda: atoll.LightSum(0.8, 0.7), "privacy below target"),
        (lambda: atoll.LightSum(0.5, 0.75), "two sums; take a target above 0.75"),
        (lambda: atoll.EncryptedSum("rsa"), "paillier"),
        (lambda: atoll.EncryptedSum(bits=1024), "2048 or 3072"),
        (lambda: atoll.EncryptedSum(key_holders=0), "somebody"),
        (lambda: atoll.EncryptedSum("ckks", key_holders=2), "one holder"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=words):
            make()
