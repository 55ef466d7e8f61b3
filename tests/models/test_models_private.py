"""Example-level privacy: one example moves a step by no more than the clip, the noise and the coins are as declared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from atoll.core.party import Group
from atoll.core.world import World
from atoll.data.federated import Silos
from atoll.methods.fedavg import FedAvg, FedProx
from atoll.methods.fedsgd import FedSGD
from atoll.models import ExampleDP, Fit, Model, char_lstm, cnn, linear, mlp, module, optimiser, softmax
from atoll.models.batches import poisson_batches
from atoll.models.example_dp import clipped
from atoll.testing import check_part

SIZES = (7, 23, 0, 1, 12)  # unequal parties, one of them empty
SILENT = ExampleDP(clip=1e6, multiplier=0.0)  # clips nothing, adds nothing
BACKENDS = ("jax", "torch")


def silos(shape: tuple[int, ...], outputs: int, sizes: tuple[int, ...] = SIZES, kind: str = "classes") -> Silos:
    rng = np.random.default_rng(3)
    n, offsets = sum(sizes), np.concatenate([[0], np.cumsum(sizes)])
    if "text" in kind:  # the label outputs − 2 is padding and does not count
        x = rng.integers(0, outputs - 2 if kind == "full text" else outputs, (n, *shape)).astype(np.uint16)
        return Silos(x, np.roll(x, -1, 1).astype(np.int32), offsets)
    x = rng.normal(size=(n, *shape)).astype(np.float32)
    y = rng.normal(size=n).astype(np.float32) if kind == "real" else rng.integers(0, outputs, n).astype(np.int32)
    return Silos(x, y, offsets)


def group(samples: Silos, t: int = 0, me: list[int] | None = None, seed: int = 0) -> Group:
    chosen = np.arange(len(samples)) if me is None else np.array(me)
    return Group(chosen, samples, chosen, World(seed), t)


def started(model: Model) -> np.ndarray:
    noise = np.random.default_rng(1).normal(size=model.size).astype(model.dtype)
    return model.init(0) + np.asarray(0.05 * noise, model.dtype)


def on(backend: str, model: Model, shape: tuple[int, ...], outputs: int) -> Model:
    return replace(model.bind(shape, outputs), backend=backend)


# --- the promise ------------------------------------------------------------------------------------------------------


def test_is_a_part_that_refuses_what_cannot_be() -> None:
    check_part(ExampleDP())
    for settings_ in ({"clip": 0.0}, {"clip": -1.0}, {"clip": np.inf}, {"clip": np.nan}):
        with pytest.raises(ValueError, match="clip"):
            ExampleDP(**settings_)
    for multiplier in (-0.1, np.inf, np.nan):
        with pytest.raises(ValueError, match="multiplier"):
            ExampleDP(multiplier=multiplier)


def test_what_the_ledger_is_told() -> None:
    example_dp = ExampleDP()
    assert example_dp.per_round(60_000, 1, 256) == (256 / 60_000, 235)
    assert example_dp.per_round(600, 5, 10) == (10 / 600, 300)
    assert example_dp.per_round(600, 5, None) == (1.0, 5)
    assert example_dp.per_round(7, 2, 10) == (1.0, 2)
    assert example_dp.per_round(0, 2, 10) == example_dp.per_round(0, 2, None) == (0.0, 0)


FRAMEWORKS: dict[str, tuple[Any, Any]] = {
    "numpy": (np, np.asarray),
    "jax": (jnp, jnp.asarray),
    "torch": (torch, torch.from_numpy),
}
ENTRIES = st.one_of(
    st.floats(width=32, allow_subnormal=False), st.sampled_from([0.0, 1.0, -1.0, 1e-20, 1e20, 3e38, -3e38])
)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(data=st.data(), exponent=st.integers(-30, 30))
@settings(max_examples=60, deadline=None)
def test_no_row_is_longer_than_the_clip(framework: str, data: st.DataObject, exponent: int) -> None:
    xp, made = FRAMEWORKS[framework]
    n, d = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 6))
    entries = data.draw(st.lists(st.lists(ENTRIES, min_size=d, max_size=d), min_size=n, max_size=n))
    rows, clip = np.array(entries, np.float32), 10.0**exponent
    with np.errstate(all="ignore"):
        out = [np.asarray(leaf, np.float64) for leaf in clipped(xp, [made(rows[:, :1]), made(rows[:, 1:])], clip)]
    out_rows = np.concatenate(out, 1)
    finite = np.isfinite(rows).all(1) & (np.abs(rows).max(1) < 1e37)
    before, after = np.linalg.norm(rows.astype(np.float64), axis=1), np.linalg.norm(out_rows, axis=1)
    assert (after <= clip).all()
    assert (out_rows[~finite] == 0).all()
    short = finite & (before < clip * 0.999)
    assert np.array_equal(out_rows[short], rows[short])
    cut = finite & (before > clip * 1.001) & (before > 1e-30)
    np.testing.assert_allclose(after[cut], clip, rtol=1e-4)
    direction = out_rows[cut] / clip - rows[cut].astype(np.float64) / before[cut][:, None]
    assert np.abs(direction).max(initial=0) < 1e-4


def test_a_long_row_of_a_large_model_is_not_longer_than_the_clip() -> None:
    for value in (0.3, 0.123, 1e30):  # equal entries are the worst for a sum in a row
        rows = np.full((2, 300_000), value, np.float32)
        for xp, made in (FRAMEWORKS["jax"], FRAMEWORKS["torch"]):
            length = np.linalg.norm(np.asarray(clipped(xp, [made(rows)], 1.0)[0], np.float64), axis=1)
            assert (length <= 1).all()
            assert (length > 0.999).all()


@pytest.mark.parametrize("backend", BACKENDS)
@given(
    seed=st.integers(0, 2**31),
    clip=st.sampled_from([0.02, 1.0, 50.0]),
    scale=st.sampled_from([1.0, 1e3, 1e18, np.nan, np.inf]),
)
@settings(max_examples=40, deadline=None)
def test_one_example_moves_the_sum_by_no_more_than_the_clip(backend: str, seed: int, clip: float, scale: float) -> None:
    """Full batch, no noise, a step of size 1: w − n·(change) is the sum of clipped gradients."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(8, 3)).astype(np.float32), rng.integers(0, 3, 8).astype(np.int32)
    other, label = x.copy(), y.copy()
    with np.errstate(all="ignore"):
        other[5] = rng.normal(size=3) * scale
    label[5] = rng.integers(0, 3)
    model = on(backend, softmax(), (3,), 3)
    w = rng.normal(size=model.size).astype(np.float32)

    def total(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        how = Fit(example_dp=ExampleDP(clip, 0.0))
        change = model.fit(w * 0, group(Silos(x, y, np.array([0, len(x)]))), how, 1.0)[0]
        return -len(x) * change.astype(np.float64)

    slack = 1e-5 * clip
    whole = total(x, y)
    assert np.isfinite(total(other, label)).all()
    assert np.linalg.norm(whole - total(other, label)) <= 2 * clip + slack
    assert np.linalg.norm(whole - total(np.delete(x, 5, 0), np.delete(y, 5))) <= clip + slack
    assert np.linalg.norm(total(other, label) - total(np.delete(x, 5, 0), np.delete(y, 5))) <= clip + slack


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_by_hand(backend: str) -> None:
    """Squared loss at w = 0: the gradient of (x, y) is (−y·x, −y); (3, 4) with y = 1 has length √26."""
    x, y = np.array([[3, 4], [0.1, 0]], np.float32), np.array([1, 1], np.float32)
    model = on(backend, linear(), (2,), 1)
    how = Fit(example_dp=ExampleDP(2.0, 0.0))
    found = model.fit(np.zeros(3, np.float32), group(Silos(x, y, np.array([0, 2]))), how, 1.0)[0]
    expect = (np.array([3, 4, 1]) * 2 / np.sqrt(26) + np.array([0.1, 0, 1])) / 2
    np.testing.assert_allclose(found, expect, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [None, 50])
def test_noise_of_a_step(backend: str, batch: int | None) -> None:
    """What is clipped to almost nothing leaves the noise alone: N(0, (multiplier·clip / expected batch)²)."""
    clip, n = 1e-6, 200
    model = on(backend, softmax(), (2000,), 10)
    samples = silos((2000,), 10, (n,))
    how = Fit(1, batch, example_dp=ExampleDP(clip, 1e6))
    w = np.zeros(model.size, np.float32)
    steps = how.example_dp.per_round(n, 1, batch)[1] if how.example_dp else 0
    change = model.fit(w, group(samples), how, 1.0)[0].astype(np.float64)
    spread = clip * 1e6 / (batch or n) * np.sqrt(steps)
    assert abs(change.std() / spread - 1) < 0.03
    assert abs(change.mean()) < 5 * spread / np.sqrt(model.size)
    assert stats.kstest(change / spread, "norm").pvalue > 1e-3
    other = model.fit(w, group(samples, t=1), how, 1.0)[0]
    assert abs(np.corrcoef(change, other)[0, 1]) < 0.05


# --- Poisson batches --------------------------------------------------------------------------------------------------


def test_batch_sizes_are_binomial() -> None:
    samples = silos((1,), 2, (40,) * 50)
    sizes = np.concatenate([poisson_batches(group(samples, t), 5, 8).real.ravel() for t in range(8)])
    assert len(sizes) == 50 * 25 * 8
    law, edges = stats.binom(40, 0.2), np.arange(3, 15)
    seen = np.histogram(sizes, [-1, *edges, 41])[0]
    chance = np.diff(law.cdf(np.array([-1, *edges, 41]) - 1))
    assert stats.chisquare(seen, chance * len(sizes)).pvalue > 1e-3


def test_every_sample_has_its_own_fair_coin() -> None:
    samples = silos((1,), 2, (20,))
    drawn = np.zeros((0, 20))
    for t in range(60):
        plan = poisson_batches(group(samples, t), 10, 4)
        there = np.zeros((50, 20))
        for s, (rows, n) in enumerate(zip(plan.rows[0], plan.real[0], strict=True)):
            assert len(set(rows[:n].tolist())) == n
            there[s, rows[:n]] = 1
        drawn = np.concatenate([drawn, there])
    n = len(drawn)
    counts = drawn.sum(0)
    assert stats.chi2.sf(((counts - 0.2 * n) ** 2 / (0.16 * n)).sum(), 20) > 1e-3
    pairs = np.corrcoef(drawn.T)[np.triu_indices(20, 1)]
    assert np.abs(pairs).max() < 5 / np.sqrt(n)
    ahead = [np.corrcoef(drawn[:-1, i], drawn[1:, i])[0, 1] for i in range(20)]
    assert np.abs(ahead).max() < 5 / np.sqrt(n)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5), epochs=st.integers(1, 3),
       batch=st.one_of(st.none(), st.integers(1, 12)), t=st.integers(0, 99))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_plan_keeps_to_what_is_declared(sizes: list[int], epochs: int, batch: int | None, t: int) -> None:
    samples = silos((1,), 2, (*sizes, 1))
    plan = poisson_batches(group(samples, t), epochs, batch)
    for k, n in enumerate((*sizes, 1)):
        q, steps = ExampleDP.per_round(n, epochs, batch)
        assert plan.steps[k] == steps
        assert (plan.real[k, steps:] == 0).all()
        assert (plan.real[k] <= min(n, plan.rows.shape[2])).all()
        if q == 1:
            assert (plan.real[k, :steps] == n).all()
        start = int(samples.offsets[k])
        for s in range(steps):
            mine = plan.rows[k, s, : plan.real[k, s]]
            assert ((start <= mine) & (mine < start + n)).all()
        alone = poisson_batches(group(samples, t, [k]), epochs, batch)
        assert np.array_equal(alone.real[0, :steps], plan.real[k, :steps])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_that_drew_nobody_takes_its_noise(backend: str) -> None:
    samples = silos((3,), 3, (9,))
    t = next(t for t in range(100) if poisson_batches(group(samples, t), 1, 1).real[0].tolist().count(0) > 3)
    model = on(backend, softmax(), (3,), 3)
    example_dp, w = ExampleDP(1e-6, 1e6), np.zeros(12, np.float32)
    found = model.fit(w, group(samples, t), Fit(1, 1, example_dp=example_dp), 0.5)[0]
    noise = sum(example_dp.noise(group(samples, t), 0, s, 12, "float32") for s in range(9))
    np.testing.assert_allclose(found, -0.5 * np.asarray(noise), atol=1e-4)


# --- the same as ever, otherwise --------------------------------------------------------------------------------------

CASES: dict[str, tuple[Model, tuple[int, ...], int, str]] = {
    "softmax": (softmax(), (6,), 4, "classes"),
    "linear": (linear(), (6,), 1, "real"),
    "mlp": (mlp((9, 8)), (6,), 4, "classes"),
    "cnn": (cnn((3, 4), 10), (81,), 4, "classes"),
    "lstm": (char_lstm(6, 4, peephole=False), (5,), 9, "text"),
    "peephole": (char_lstm(6, 4), (5,), 9, "text"),
}


@pytest.mark.parametrize("case", CASES)
def test_backends_agree_and_a_group_is_its_singles(case: str) -> None:
    model, shape, outputs, kind = CASES[case]
    samples = silos(shape, outputs, kind=kind)
    how = Fit(2, 5, example_dp=ExampleDP(0.5, 0.7))
    ours, theirs = (on(backend, model, shape, outputs) for backend in BACKENDS)
    w = started(ours)
    found = ours.fit(w, group(samples), how, 0.1)
    np.testing.assert_allclose(found, theirs.fit(w, group(samples), how, 0.1), rtol=0, atol=1e-4)
    assert np.array_equal(found[2], w)  # who has no samples takes no step
    for k in (1, 3):
        for twin in (ours, theirs):
            single = twin.fit(w, group(samples, me=[k]), how, 0.1)[0]
            np.testing.assert_allclose(single, found[k], rtol=0, atol=1e-4 if twin is theirs else 1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_without_clip_and_noise_it_is_plain_training(case: str, backend: str) -> None:
    model, shape, outputs, kind = CASES[case]
    samples = silos(shape, outputs, kind="full text" if kind == "text" else kind)
    model = on(backend, model, shape, outputs)
    w, g = started(model), group(samples, me=[0, 1])
    plain = model.fit(w, g, Fit(2), 0.1)
    np.testing.assert_allclose(model.fit(w, g, Fit(2, example_dp=SILENT), 0.1), plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_tilt_pull_and_optimiser_come_after_the_noise(backend: str, name: str) -> None:
    samples, example_dp = silos((6,), 4), ExampleDP(0.5, 0.7)
    model = replace(on(backend, softmax(), (6,), 4), dtype="float64")
    w, g = started(model), group(samples, me=[1, 4])
    tilt = np.random.default_rng(5).normal(size=(2, model.size))
    used = optimiser(name, **({"momentum": 0.9} if name == "sgd" else {}))
    first = w - model.fit(w, g, Fit(example_dp=example_dp), 1.0)  # the noised gradient
    if name == "sgd":
        moved = w - 0.1 * (first + tilt)
        np.testing.assert_allclose(model.fit(w, g, Fit(1, None, used, 0.3, example_dp), 0.1, tilt), moved, atol=1e-12)
    else:
        moved = model.fit(w, g, Fit(1, None, used, 0.3, example_dp), 0.1, tilt)
        np.testing.assert_allclose(moved, w - 0.1 * np.sign(first + tilt), atol=1e-5)
    silent = Fit(3, None, used, 0.3, SILENT)
    np.testing.assert_allclose(
        model.fit(w, g, silent, 0.1, tilt[0]),
        model.fit(w, g, replace(silent, example_dp=None), 0.1, tilt[0]),
        atol=1e-9,
    )


def test_modules_of_ones_own() -> None:
    made = module(lambda: torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 4)))
    model, samples = made.bind((6,), 4), silos((6,), 4)
    how = Fit(1, 5, example_dp=ExampleDP(0.5, 0.7))
    w = model.init(0)
    found = model.fit(w, group(samples), how, 0.1)
    assert np.isfinite(found).all()
    assert np.array_equal(found, model.fit(w, group(samples), how, 0.1))
    assert np.array_equal(found[[1]], model.fit(w, group(samples, me=[1]), how, 0.1))


def test_an_example_is_the_mean_of_its_labels() -> None:
    made = module(lambda: torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)))
    model, samples = made.bind((5,), 9), silos((5,), 9, kind="text")
    w, g = model.init(0), group(samples, me=[1])
    plain = model.fit(w, g, Fit(2), 0.1)
    np.testing.assert_allclose(model.fit(w, g, Fit(2, example_dp=SILENT), 0.1), plain, rtol=0, atol=1e-6)


# --- methods ----------------------------------------------------------------------------------------------------------


def test_methods_pass_it_on() -> None:
    samples, example_dp = silos((6,), 4), ExampleDP(0.5, 0.7)
    model = softmax().bind((6,), 4)
    w, g = started(model), group(samples)
    broadcast = {"params": w, "lr": 0.1}
    for method in (FedAvg(model, example_dp=example_dp), FedProx(model, 0.3, example_dp=example_dp)):
        expect = model.fit(w, g, Fit(1, 10, prox=method.prox, example_dp=example_dp), 0.1) - w
        assert np.array_equal(method.client_update(broadcast, g).vector["delta"], expect)
    by_gradients = FedSGD(model, example_dp=example_dp).client_update(broadcast, g).vector["gradients"]
    by_weights = FedSGD(model, by="weights", example_dp=example_dp).client_update(broadcast, g).vector["weights"]
    np.testing.assert_allclose(w - 0.1 * by_gradients, by_weights, atol=1e-6)
    plain = FedSGD(model).client_update(broadcast, g).vector["gradients"]
    np.testing.assert_allclose(
        FedSGD(model, example_dp=SILENT).client_update(broadcast, g).vector["gradients"], plain, atol=1e-6
    )


def test_it_learns_with_noise() -> None:
    """Two far clouds: with the multiplier that hides each example the model still tells them apart."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    x = (rng.normal(size=(400, 4)) + 3 * (2 * y[:, None] - 1)).astype(np.float32)
    model = softmax().bind((4,), 2)
    samples = Silos(x, y.astype(np.int32), np.array([0, 400]))
    w = model.fit(model.init(0), group(samples), Fit(2, 40, example_dp=ExampleDP(1.0, 1.1)), 0.5)[0]
    assert (model.scores(w, x).argmax(1) == y).mean() > 0.98
