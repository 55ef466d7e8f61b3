"""Cures of client drift written from outside reach the optimum of two quadratics, where FedAvg does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parts.diary import ASKED, Diary
from parts.drift import FedDyn, FedLin, FedNova, Scaffold

import atoll
from atoll.data import Federated
from atoll.testing import check_method, check_select

H, C = np.array([1.0, 10.0]), np.array([-1.0, 1.0])
BEST = float((H * C).sum() / H.sum())  # 0.818182


def start(seed: int) -> Any:
    return np.full(1, 5.0)


def losses(w: Any, x: Any, y: Any) -> Any:
    return 0.5 * x[:, 0] * (w[0] - x[:, 1]) ** 2


MODEL = atoll.models.functions(start, losses=losses, dtype="float64")
AVERAGE = atoll.Channel([atoll.Average()])


def quadratics(h: np.ndarray, c: np.ndarray) -> Federated:
    return atoll.data.federate([(np.array([[a, b]]), np.zeros(1)) for a, b in zip(h, c, strict=True)], kind="real")


def trained(method: Any, rounds: int, data: Federated | None = None, drop: float = 0.0, **more: Any) -> atoll.Run:
    job = atoll.Job(
        method,
        more.pop("select", atoll.All()),
        AVERAGE,
        rounds,
        eval_every=rounds,
        availability=atoll.Always(drop=drop),
    )
    return atoll.simulate(job, data or quadratics(H, C), workers=0, **more)


@pytest.mark.parametrize("drop", [0.0, 0.3])
@pytest.mark.parametrize(
    "method",
    [Scaffold(MODEL, 10, None, 0.05), FedDyn(MODEL, 200, None, 0.05, alpha=1.0)],
    ids=["scaffold", "feddyn"],
)
def test_remembering_parties_reach_the_optimum(method: Any, drop: float) -> None:
    assert trained(method, 400, drop=drop).vector[0] == pytest.approx(BEST, abs=1e-6)


def test_without_a_cure_they_do_not() -> None:
    assert trained(atoll.FedAvg(MODEL, 10, None, 0.05), 400).vector[0] == pytest.approx(0.42688, abs=1e-5)


def test_what_a_lost_party_would_have_remembered_is_forgotten() -> None:
    """Ten parties, a third of them lost each round: the sum of control variates stays the server's."""
    g = np.random.default_rng(0)
    h, c = g.uniform(1, 10, 10), g.normal(size=10)
    run = trained(Scaffold(MODEL, 10, None, 0.02), 400, quadratics(h, c), drop=0.3)
    assert run.vector[0] == pytest.approx((h * c).sum() / h.sum(), abs=1e-9)
    gradients = h * (run.vector[0] - c)
    assert run.state["c"][0] == pytest.approx(gradients.mean(), abs=1e-8)


def test_fednova_has_its_closed_fixed_point() -> None:
    tau, lr = np.array([2, 20]), 0.05
    g = (1 - (1 - lr) ** tau) / tau
    found = trained(FedNova(MODEL, (2, 20), None, lr), 400, quadratics(np.ones(2), C)).vector[0]
    assert found == pytest.approx((g * C).sum() / g.sum(), abs=1e-9)
    assert found == pytest.approx(-0.206299, abs=1e-6)


# --- FedLin: two phases of one cohort ---------------------------------------------------------------------------------


def test_fedlin_converges_linearly() -> None:
    run = [trained(FedLin(MODEL, 10, None, 0.005), rounds).vector[0] for rounds in (10, 20, 30, 60)]
    assert np.abs(np.array(run) - BEST) == pytest.approx([2.5e-1, 1.5e-2, 9.2e-4, 2.0e-7], rel=0.05)
    assert trained(FedLin(MODEL, 10, None, 0.005), 100).vector[0] == pytest.approx(BEST, abs=1e-6)


@pytest.mark.parametrize("whole", [False, True])
def test_both_phases_of_a_round_have_the_same_cohort(whole: bool) -> None:
    g = np.random.default_rng(1)
    ASKED.clear()
    data = quadratics(g.uniform(1, 10, 8), g.normal(size=8))
    run = trained(FedLin(MODEL, 5, None, 0.01), 60, data, drop=0.3, select=Diary(atoll.Count(4), whole))
    rounds = [f for f in run.facts if f["what"] == "round"]
    assert len(rounds) == len(ASKED)
    assert len({tuple(asked) for asked, _ in ASKED}) > 10  # cohorts differ from round to round
    begun_again = 0
    for k, fact in enumerate(rounds[1:], 1):
        before, enough = rounds[k - 1], 4 if whole else 1
        assert fact["phase"] == (
            "train" if before["phase"] == "gradient" and before["answered"] >= enough else "gradient"
        )
        # A round that could not be finished begins again, and does not count.
        finished = before["phase"] == "train" and before["answered"] >= enough
        assert fact["round"] == before["round"] + finished
        if fact["phase"] == "train":
            assert fact["asked"] == before["answered"]
            assert ASKED[k][0] == ASKED[k - 1][1]
            begun_again += fact["answered"] < enough
            assert (fact["update_norm"] == 0) == (fact["answered"] < enough)
    assert rounds[-1]["round"] == 60
    assert begun_again > 5 * whole


# --- laws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [Scaffold, FedDyn, FedLin, FedNova])
def test_laws(method: Any, unequal: Federated) -> None:
    check_method(method(atoll.models.logistic()), unequal)


def test_laws_of_the_select() -> None:
    check_select(Diary(atoll.Count(4), whole=True))
