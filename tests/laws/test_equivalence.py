"""FedSGD by gradients ≡ by weights ≡ FedAvg(E=1, B=∞) ≡ gradient descent in one place; batches, padding, loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.party import Group
from atoll.core.world import World
from atoll.data.federated import Federated, Silos
from atoll.models import Fit
from atoll.models.batches import batches, round_up

LR, ROUNDS = 0.3, 20


def central(data: Federated, model: atoll.Model, rounds: int, who: list[np.ndarray] | None = None) -> np.ndarray:
    """Gradient descent on the pooled samples (of the parties of each round), written down directly."""
    w = model.init(0).astype(np.float64)
    shapes = [(name, a, b, shape) for name, a, b, shape in model.schema.slots()]
    for t in range(rounds):
        parties = range(len(data)) if who is None else who[t]
        x = np.concatenate([data.train[int(k)][0] for k in parties]).astype(np.float64)
        y = np.concatenate([data.train[int(k)][1] for k in parties])
        p = {name: w[a:b].reshape(shape) for name, a, b, shape in shapes}
        weight, bias = p.values()
        z = x @ weight + bias
        z = np.exp(z - z.max(1, keepdims=True))
        z /= z.sum(1, keepdims=True)
        z[np.arange(len(y)), y] -= 1
        w = w - LR * np.concatenate([(x.T @ z / len(y)).ravel(), z.mean(0)])
    return w


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
def test_four_ways_are_one(unequal: Federated, dtype: str, tolerance: float) -> None:
    model = atoll.models.softmax(dtype=dtype)  # type: ignore[arg-type]
    methods = [
        atoll.FedSGD(model, LR), atoll.FedSGD(model, LR, by="weights"), atoll.FedAvg(model, 1, None, LR),
        atoll.FedAvg(atoll.models.softmax(backend="torch", dtype=dtype), 1, None, LR),  # type: ignore[arg-type]
    ]  # fmt: skip
    expect = central(unequal, model.bind((5,), 2), ROUNDS)
    for method in methods:
        run = atoll.simulate(atoll.Job(method, atoll.All(), rounds=ROUNDS, eval_every=ROUNDS), unequal)
        assert np.abs(run.vector - expect).max() <= tolerance, method


def test_only_those_who_were_asked_count(unequal: Federated) -> None:
    """The sum runs over the selected parties, with weights n_k over the sum of n_k of these (the erratum)."""
    from atoll.core.method import History, Population

    model = atoll.models.softmax(dtype="float64")
    job = atoll.Job(atoll.FedAvg(model, 1, None, LR), atoll.Count(3), rounds=ROUNDS, eval_every=ROUNDS)
    population = Population(unequal.train.sizes)
    who = [atoll.Count(3).pick(t, population, History(), {}, World(0)).cohort for t in range(ROUNDS)]
    expect = central(unequal, model.bind((5,), 2), ROUNDS, who)
    assert np.abs(atoll.simulate(job, unequal).vector - expect).max() <= 1e-12


def test_unweighted_mean_is_the_plain_mean(unequal: Federated) -> None:
    model = atoll.models.softmax(dtype="float64").bind((5,), 2)
    job = atoll.Job(atoll.FedAvg(model, 1, None, LR), atoll.All(), atoll.Channel([atoll.Average()]), rounds=1)
    group = Group(np.arange(7), unequal.train, np.arange(7), World(0), 0)
    expect = -LR * model.grad(model.init(0), group).mean(0)
    assert np.allclose(atoll.simulate(job, unequal).vector, expect, atol=1e-14)


def test_median_channel_equals_numpy(unequal: Federated) -> None:
    model = atoll.models.softmax(dtype="float64").bind((5,), 2)
    channel = atoll.Channel([atoll.Average()], atoll.Each(atoll.Median()))
    job = atoll.Job(atoll.FedAvg(model, 1, None, LR), atoll.All(), channel, rounds=1)
    group = Group(np.arange(7), unequal.train, np.arange(7), World(0), 0)
    expect = -LR * np.median(model.grad(model.init(0), group), axis=0)
    assert np.allclose(atoll.simulate(job, unequal).vector, expect, atol=1e-14)


@pytest.mark.parametrize("hidden", [(16,), (150, 100)])
def test_loop_equals_vectorised(digits: Federated, hidden: tuple[int, ...]) -> None:
    method = atoll.FedAvg(atoll.models.mlp(hidden), epochs=2, batch=8, lr=0.05)
    job = atoll.Job(method, atoll.Count(8), rounds=3, eval_every=3)
    fast, loop = (atoll.simulate(job, digits, loop=loop).vector for loop in (False, True))
    assert np.abs(fast - loop).max() <= 1e-5


def test_clipping_bounds_the_step(digits: Federated) -> None:
    method = atoll.FedAvg(atoll.models.mlp((16,)), batch=8)
    channel = atoll.Channel([atoll.Clip(0.01), atoll.Average()])
    run = atoll.simulate(atoll.Job(method, atoll.All(), channel, rounds=3), digits)
    assert all(f["update_norm"] <= 0.01 for f in run.facts if f["what"] == "round")


@given(st.lists(st.integers(1, 23), min_size=1, max_size=6), st.integers(1, 3), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_an_epoch_shows_every_sample_once(sizes: list[int], epochs: int, batch: int, seed: int) -> None:
    total = sum(sizes)
    silos = Silos(np.arange(total)[:, None], np.zeros(total), np.cumsum([0, *sizes]))
    me = np.arange(len(sizes))
    plan = batches(Group(me, silos, me, World(seed), 4), epochs, batch)
    for k, n in enumerate(sizes):
        assert plan.steps[k] == epochs * -(-n // batch)
        assert (plan.real[k, plan.steps[k] :] == 0).all()
        seen = np.concatenate([plan.rows[k, s, : plan.real[k, s]] for s in range(plan.steps[k])])
        for e in range(epochs):
            assert sorted(seen[e * n : (e + 1) * n]) == list(range(*silos.offsets[k : k + 2]))
        alone = batches(Group(me[k : k + 1], silos, me[k : k + 1], World(seed), 4), epochs, batch)
        steps = int(plan.steps[k])
        for s in range(steps):
            n_real = int(plan.real[k, s])
            assert np.array_equal(plan.rows[k, s, :n_real], alone.rows[0, s, :n_real])


def test_shuffles_differ_by_round_epoch_party_and_seed() -> None:
    silos = Silos(np.arange(60)[:, None], np.zeros(60), np.array([0, 30, 60]))
    me = np.arange(2)
    orders = set()
    for seed in (0, 1):
        for t in (0, 1):
            rows = batches(Group(me, silos, me, World(seed), t), 2, 30).rows
            orders |= {tuple(rows[k, e] - 30 * k) for k in range(2) for e in range(2)}
    assert len(orders) == 16


@given(st.integers(1, 10_000))
def test_padding_sizes_waste_at_most_half(n: int) -> None:
    assert n <= round_up(n) <= max(1.5 * n, n + 1)


@pytest.mark.parametrize("model", [
    atoll.models.softmax(), atoll.models.mlp((150, 100)), atoll.models.lenet(),
], ids=lambda m: type(m.spec).__name__)  # fmt: skip
def test_padding_changes_nothing(model: atoll.Model) -> None:
    """A party trained beside a larger one has the same bits as beside its equal, and close to those alone."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 784)).astype(np.float32)
    y = generator.integers(0, 3, 200).astype(np.int32)
    model = model.bind((784,), 3)
    me = np.arange(2)
    how = Fit(2, 4, atoll.optimiser("sgd", momentum=0.9), prox=0.1)
    out = []
    for second in (23, 90):
        silos = Silos(x, y, np.array([0, 23, 23 + second]))
        out.append(model.fit(model.init(0), Group(me, silos, me, World(0), 0), how, 0.05)[0])
    alone = Group(me[:1], Silos(x, y, np.array([0, 23])), me[:1], World(0), 0)
    assert np.array_equal(out[0], out[1])
    assert np.abs(model.fit(model.init(0), alone, how, 0.05)[0] - out[0]).max() <= 1e-6


def test_tilted_objective(unequal: Federated) -> None:
    """One full-batch step goes along gradient + linear + prox·(w − w₀), in every path."""
    for model in (atoll.models.softmax(dtype="float64"), replace(atoll.models.mlp((120, 120)), dtype="float64")):
        bound = model.bind((5,), 2)
        w = bound.init(3) + 0.1
        group = Group(np.arange(7), unequal.train, np.arange(7), World(0), 0)
        g = bound.grad(w, group)
        linear = np.random.default_rng(1).normal(size=g.shape)
        one = bound.fit(w, group, Fit(1, None), 0.1, linear)
        assert np.allclose(one, w - 0.1 * (g + linear), atol=1e-12)
        one = bound.fit(w, group, Fit(1, None), 0.1, linear[0])
        assert np.allclose(one, w - 0.1 * (g + linear[0]), atol=1e-12)
        two = bound.fit(w, group, Fit(2, None, prox=5.0), 0.1)
        second = np.stack([bound.grad(one_step, group.only(k))[0] for k, one_step in enumerate(w - 0.1 * g)])
        assert np.allclose(two, w - 0.1 * g - 0.1 * (second - 0.5 * g), atol=1e-10)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any), st.booleans())
def test_rows_of_a_group_exist_also_where_a_party_has_none(sizes: list[int], pooled: bool) -> None:
    total = sum(sizes)
    index = np.arange(total)[::-1].copy() if pooled else None
    silos = Silos(np.arange(total)[:, None], np.zeros(total), np.cumsum([0, *sizes]), index)
    me = np.arange(len(sizes))
    group = Group(me, silos, me, World(0), 0)
    assert silos.x[group.rows].shape == (len(sizes), max(sizes), 1)
    for k, (x, _) in enumerate(group):
        assert np.array_equal(x, silos[k][0])
