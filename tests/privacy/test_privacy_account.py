"""The accountant: laws, closed forms, numbers of papers, and other accountants."""

from __future__ import annotations

from math import exp, inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

import atoll
from atoll.privacy import Account, Spend, compose, delta_for, multiplier_for

# rate, multiplier, ε by RDP, ε by PLD: δ = 1e-5, 1,000 rounds
TABLE = [(0.01, 1.0, 2.101367, 1.828244), (0.1, 2.0, 8.946957, 8.279293), (1.0, 20.0, 8.079406, 7.511279),
         (0.001, 0.6, 2.545350, 1.425264)]  # fmt: skip


def account(rate: float, multiplier: float, delta: float = 1e-5) -> Account:
    return Account(Spend(multiplier, "poisson", rate), delta)


@pytest.mark.parametrize(("rate", "multiplier", "rdp", "pld"), TABLE)
def test_the_table(rate: float, multiplier: float, rdp: float, pld: float) -> None:
    found = account(rate, multiplier)
    assert found.epsilon(1000) == pytest.approx(rdp, abs=1e-3)
    assert found.tight(1000) == pytest.approx(pld, abs=1e-3)


@pytest.mark.parametrize(("multiplier", "epochs", "printed"), [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)])
def test_classic_numbers_of_central_training(multiplier: float, epochs: int, printed: float) -> None:
    steps = epochs * 60000 // 256
    spend = Spend(multiplier, "poisson", 256 / 60000, "example", population=60000)
    assert Account(spend, 1e-5).classic(steps) == pytest.approx(printed, rel=0.01)
    assert Account(spend, 1e-5).epsilon(steps) < printed


@pytest.mark.parametrize(
    ("rate", "rounds", "delta", "printed", "least"), [(0.1, 100, 1e-3, 6.63, 5.6), (0.01, 200, 1e-4, 1.49, 1.0)]
)
def test_classic_numbers_of_federated_training(
    rate: float, rounds: int, delta: float, printed: float, least: float
) -> None:
    found = account(rate, 1.0, delta)
    assert found.classic(rounds) == pytest.approx(printed, rel=0.01)
    assert least < found.epsilon(rounds) < 0.9 * printed


def test_the_loose_conversion_of_the_plain_gaussian_by_hand() -> None:
    """RDP is α/2σ²; at δ = e^-8 and σ = 1 the best order is 5: 5/2 + 8/4."""
    assert Account(Spend(1.0), exp(-8)).classic(1) == pytest.approx(4.5)


@given(st.floats(0.5, 50), st.integers(1, 400), st.floats(1e-9, 1e-3))
@settings(max_examples=8, deadline=None)
def test_tight_is_the_closed_form_of_the_gaussian(multiplier: float, rounds: int, delta: float) -> None:
    """Balle and Wang 2018, theorem 8, at sensitivity √rounds."""
    m = sqrt(rounds) / multiplier
    if not 0.1 < m < 5:
        return

    def gap(epsilon: float) -> float:
        return norm.cdf(m / 2 - epsilon / m) - exp(epsilon) * norm.cdf(-m / 2 - epsilon / m) - delta

    exact = brentq(gap, 0, 100, xtol=1e-12)
    tight = Account(Spend(multiplier), delta).tight(rounds)
    assert tight == pytest.approx(exact, abs=1e-4)
    assert tight >= exact - 1e-9
    assert Account(Spend(multiplier), delta).epsilon(rounds) >= exact


def test_the_closed_form_to_six_digits() -> None:
    epsilon = Account(Spend(1.0), 1e-5).tight(1)
    assert epsilon is not None
    delta = norm.cdf(0.5 - epsilon) - exp(epsilon) * norm.cdf(-0.5 - epsilon)
    assert delta == pytest.approx(1e-5, abs=1e-11)


@given(st.sampled_from([0.001, 0.02, 0.3, 1.0]), st.sampled_from([0.4, 1.0, 3.0, 30.0]), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_epsilon_never_falls_with_rounds(rate: float, multiplier: float, rounds: int) -> None:
    found = account(rate, multiplier)
    before, now, later = (found.epsilon(rounds + extra) for extra in (0, 1, 1000))
    assert 0 <= before <= now <= later < inf


def test_epsilon_falls_with_noise_and_grows_with_rate_and_certainty() -> None:
    by_noise = [account(0.1, m).epsilon(100) for m in (0.5, 0.7, 1.0, 2.0, 5.0, 20.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_rate = [account(q, 1.0).epsilon(100) for q in (0.001, 0.01, 0.1, 0.5, 1.0)]
    assert by_rate == sorted(by_rate)
    by_delta = [account(0.1, 1.0, d).epsilon(100) for d in (1e-2, 1e-4, 1e-6, 1e-9)]
    assert by_delta == sorted(by_delta)


def test_no_rounds_spend_nothing() -> None:
    found = account(0.1, 1.0)
    assert found.epsilon(0) == found.tight(0) == found.classic(0) == 0.0
    assert compose([], 1e-5) == (0.0, 0.0)


def test_tight_is_never_above_the_quick_one_even_where_epsilon_is_absurd() -> None:
    for spend in (Spend(0.5), Spend(0.3, "poisson", 0.1), Spend(10.0, "poisson", 0.001)):
        found = Account(spend, 1e-5)
        tight = found.tight(1000)
        assert tight is not None
        assert 0 <= tight <= found.epsilon(1000)


@given(st.floats(0.05, 30))
@settings(max_examples=30, deadline=None)
def test_rounds_within_is_the_last_that_fits(epsilon: float) -> None:
    for found in (account(0.01, 1.0), Account(Spend(8.0, mechanism="tree", epoch=7), 1e-5)):
        most = found.rounds_within(epsilon)
        assert most == 0 or found.epsilon(most) <= epsilon
        assert found.epsilon(most + 1) > epsilon


def test_ten_thousand_rounds_can_be_asked_one_by_one() -> None:
    found = account(0.01, 1.0)
    spent = [found.epsilon(t) for t in range(1, 10_001)]
    assert spent == sorted(spent)


def test_replacing_moves_a_sum_by_two_bounds() -> None:
    """Everybody in a sample of fixed size: the same as a plain Gaussian of half the multiplier."""
    everybody = Account(Spend(3.0, "fixed", 1.0, population=100), 1e-3)
    assert everybody.epsilon(10) == pytest.approx(Account(Spend(1.5), 1e-3).epsilon(10), rel=1e-2)


def test_a_local_report_protects_its_content_and_is_not_amplified() -> None:
    local = Account(Spend(3.0, mechanism="local"), 1e-5)
    assert "replace-one" in local.words()
    assert local.epsilon(10) == Account(Spend(1.5), 1e-5).epsilon(10)
    assert local.tight(10) == Account(Spend(1.5), 1e-5).tight(10)


def test_a_fixed_sample_is_amplified_less_than_a_poisson_one_and_counts_whole_units() -> None:
    fixed = Account(Spend(4.0, "fixed", 0.01, population=1000), 1e-5)
    assert account(0.01, 4.0).epsilon(500) < fixed.epsilon(500) < Account(Spend(2.0), 1e-5).epsilon(500)
    assert fixed.tight(500) is None
    assert Spend(1.0, "fixed", 0.1, population=30).sample == 3
    assert Spend(1.0, "fixed", 0.101, population=30).sample == 4
    assert Spend(1.0, "fixed", 1e-6, population=30).sample == 1


def test_the_relation_is_printed_with_every_epsilon() -> None:
    assert account(0.01, 1.0).words() == (
        "unit: party; neighbours: add-or-remove-one; sampling: Poisson, rate 0.01; delta: 1e-05; accountant: RDP"
    )
    assert Account(Spend(1.0, "fixed", 0.1, "example", population=50), 1e-3).words() == (
        "unit: example; neighbours: replace-one; sampling: 5 of 50 without replacement; delta: 0.001; accountant: RDP"
    )
    assert "zero-out-one" in Account(Spend(1.0, mechanism="tree", epoch=8), 1e-3).words()
    assert "once in each tree of 8" in Account(Spend(1.0, mechanism="tree", epoch=8), 1e-3).words()


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 7, 8, 15, 16, 20, 32, 100])
def test_tree_rounds_cost_their_levels(rounds: int) -> None:
    dpa = pytest.importorskip("dp_accounting")
    from dp_accounting import rdp

    epoch, noise = 16, 2.0
    other = rdp.RdpAccountant(neighboring_relation=dpa.NeighboringRelation.REPLACE_SPECIAL)
    for start in range(0, rounds, epoch):
        other.compose(dpa.SingleEpochTreeAggregationDpEvent(noise, min(epoch, rounds - start)))
    found = Account(Spend(noise, mechanism="tree", epoch=epoch), 1e-5)
    assert found.epsilon(rounds) == pytest.approx(other.get_epsilon(1e-5), rel=1e-9)
    assert found.tight(rounds) is None


def test_local_steps_are_rounds_of_their_own() -> None:
    steps = Account(Spend(1.0, "poisson", 0.01, "example", times=5), 1e-5)
    assert steps.epsilon(20) == account(0.01, 1.0).epsilon(100)
    assert steps.tight(20) == account(0.01, 1.0).tight(100)


def test_composing_a_history() -> None:
    early, late = Spend(1.0, "poisson", 0.01), Spend(2.0, "poisson", 0.02)
    rdp, pld = compose([(early, 100), (late, 100)], 1e-5)
    other_order = compose([(late, 50), (early, 100), (late, 50)], 1e-5)
    assert other_order == pytest.approx((rdp, pld), abs=1e-3)
    assert pld is not None
    assert Account(early, 1e-5).epsilon(100) < rdp < sum(Account(s, 1e-5).epsilon(100) for s in (early, late))
    assert pld < rdp
    assert compose([(Spend(1.0, mechanism="tree", epoch=4), 3)], 1e-5)[1] is None


@pytest.mark.parametrize(
    ("history", "word"),
    [
        ([Spend(1.0), Spend(1.0, unit="example")], "example and party"),
        ([Spend(1.0), Spend(1.0, "fixed", 0.5, population=10)], "add-or-remove-one and replace-one"),
    ],
)
def test_what_does_not_add_up_is_refused(history: list[Spend], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        compose([(spend, 1) for spend in history], 1e-5)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"multiplier": 0.0}, "needs noise"),
        ({"multiplier": -1.0}, "needs noise"),
        ({"multiplier": inf}, "needs noise"),
        ({"multiplier": float("nan")}, "needs noise"),
        ({"sampling": "shuffled"}, "choose one of poisson, fixed, none"),
        ({"unit": "row"}, "choose one of"),
        ({"mechanism": "laplace"}, "choose one of"),
        ({"rate": 0.5}, "nothing is amplified"),
        ({"sampling": "poisson", "rate": 0.0}, "above 0"),
        ({"sampling": "poisson", "rate": 1.5}, "at most 1"),
        ({"sampling": "fixed", "rate": 0.5}, "population"),
        ({"population": 0}, "1 or more"),
        ({"times": 0}, "at least once"),
        ({"epoch": 5}, "only mechanism='tree'"),
        ({"mechanism": "tree"}, "rounds in one tree"),
        ({"mechanism": "local", "sampling": "poisson", "rate": 0.1}, "knows whose it is"),
        ({"mechanism": "tree", "epoch": 4, "times": 2}, "once a round"),
        ({"mechanism": "tree", "epoch": 4, "sampling": "poisson", "rate": 0.1}, "no sampling"),
    ],
)
def test_spends_that_mean_nothing_are_refused(fields: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Spend(**{"multiplier": 1.0, **fields})  # type: ignore[arg-type]


def test_deltas_that_protect_nobody_are_refused() -> None:
    for delta in (0.0, 1.0, -1e-5, float("nan")):
        with pytest.raises(ValueError, match="above 0 and below 1"):
            Account(Spend(1.0), delta)
    with pytest.raises(ValueError, match="publish one unit of 1000"):
        Account(Spend(1.0, population=1000), 2e-3)
    with pytest.raises(ValueError, match="publish one unit"):
        compose([(Spend(1.0, population=1000), 1)], 2e-3)
    assert Account(Spend(1.0, population=1000), delta_for(1000)).epsilon(1) > 0
    with pytest.raises(ValueError, match="from 0"):
        account(0.1, 1.0).epsilon(-1)


@given(st.sampled_from([0.3, 1.0, 8.0]), st.sampled_from([1, 30, 1000]), st.sampled_from([0.01, 0.2, 1.0]))
@settings(max_examples=6, deadline=None)
def test_calibration_is_the_smallest_of_three_digits(epsilon: float, rounds: int, rate: float) -> None:
    found = multiplier_for(epsilon, 1e-5, rounds, rate)
    assert float(f"{found:.2e}") == found
    assert account(rate, found).epsilon(rounds) <= epsilon
    below = found - 10 ** (np.floor(np.log10(found) + 1e-12) - 2)
    assert account(rate, below).epsilon(rounds) > epsilon


def test_calibration_by_the_other_accountants() -> None:
    loose, tight = (multiplier_for(2.0, 1e-5, 100, sampling="none", accountant=kind) for kind in ("rdp", "pld"))
    assert tight < loose
    assert Account(Spend(tight), 1e-5).tight(100) <= 2.0 < Account(Spend(tight - 0.1), 1e-5).tight(100)
    fixed = multiplier_for(2.0, 1e-5, 100, 0.1, "fixed", population=100)
    assert Account(Spend(fixed, "fixed", 0.1, population=100), 1e-5).epsilon(100) <= 2.0
    tree = multiplier_for(2.0, 1e-5, 64, sampling="none", mechanism="tree", epoch=16)
    assert Account(Spend(tree, mechanism="tree", epoch=16), 1e-5).epsilon(64) <= 2.0
    assert tree == multiplier_for(2.0, 1e-5, 20, sampling="none")  # four trees of five levels


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        ({"epsilon": 0.0}, "above 0"),
        ({"rounds": 0}, "at least one round"),
        ({"accountant": "guess"}, "choose one of rdp, pld"),
        ({"epsilon": 1e-9, "delta": 1e-200, "rounds": 10**9}, "ask for less"),
        ({"accountant": "pld", "sampling": "fixed", "population": 10}, "use 'rdp'"),
    ],
)
def test_calibrations_that_have_no_answer_are_refused(wanted: dict[str, object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        multiplier_for(**{"epsilon": 1.0, "delta": 1e-5, "rounds": 10, **wanted})  # type: ignore[arg-type]


def test_the_customary_delta() -> None:
    assert delta_for(1000) == pytest.approx(10**-3.3)
    assert all(delta_for(n) < 1 / n for n in (2, 10, 10**6))
    with pytest.raises(ValueError, match="cannot hide"):
        delta_for(1)


@pytest.mark.parametrize(("rate", "multiplier", "rdp", "pld"), TABLE)
def test_a_second_rdp_accountant_agrees(rate: float, multiplier: float, rdp: float, pld: float) -> None:
    other = pytest.importorskip("opacus.accountants.analysis.rdp")
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64))
    found = other.compute_rdp(q=rate, noise_multiplier=multiplier, steps=1000, orders=orders)
    assert account(rate, multiplier).epsilon(1000) == pytest.approx(
        other.get_privacy_spent(orders=orders, rdp=found, delta=1e-5)[0], rel=1e-3
    )


@pytest.mark.parametrize(("rate", "multiplier", "rdp", "pld"), TABLE[:3])
def test_a_second_numerical_accountant_agrees(rate: float, multiplier: float, rdp: float, pld: float) -> None:
    prv = pytest.importorskip("prv_accountant")
    mechanism = prv.PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=multiplier)
    other = prv.PRVAccountant(prvs=[mechanism], max_self_compositions=[1000], eps_error=0.05, delta_error=1e-8)
    low, estimate, high = other.compute_epsilon(delta=1e-5, num_self_compositions=[1000])
    tight = account(rate, multiplier).tight(1000)
    assert tight is not None
    assert low <= tight <= high
    assert tight == pytest.approx(estimate, abs=1e-3)


@pytest.mark.parametrize("select", [atoll.RoundRobin(4), atoll.Batches(4, 2), atoll.Uniform(1.0), atoll.Poisson(1.0)])
def test_who_is_not_sampled_is_not_said_to_be(select: Any) -> None:
    """What is replaced, not removed, is accounted like a sample of all: the words must not say that one was drawn."""
    stages = [atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(1.0)]
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), select, atoll.Channel(stages), rounds=3)
    said = atoll.explain(job, atoll.data.load("digits").split(8, seed=0))
    assert "sampling: none claimed" in said
    assert "without replacement" not in said.partition("differential privacy")[2]
    assert "Poisson, rate" not in said
