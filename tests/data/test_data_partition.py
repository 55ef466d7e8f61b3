"""Laws of the partitioners: every sample in exactly one client, by the seed alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.keys import generator
from atoll.data import BadData
from atoll.data.partition import SCHEMES, equal, natural, partition


def deal(by, labels, clients, seed=0, **options):
    order, offsets = partition(by, np.asarray(labels), clients, generator(seed, "t"), **options)
    return [order[a:b] for a, b in pairwise(offsets)]


@st.composite
def jobs(draw):
    kinds = draw(st.integers(2, 6))
    n = draw(st.integers(80, 300))
    labels = np.concatenate([np.repeat(np.arange(kinds), 12), generator(n, "l").integers(0, kinds, n)])
    return labels, draw(st.integers(kinds, 12)), draw(st.integers(0, 2**40))


@pytest.mark.parametrize("by", SCHEMES)
@settings(max_examples=25, deadline=None)
@given(job=jobs())
def test_every_sample_is_in_exactly_one_client_and_nobody_is_empty(by, job):
    labels, clients, seed = job
    parts = deal(by, labels, clients, seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("by", SCHEMES)
@settings(max_examples=10, deadline=None)
@given(job=jobs())
def test_the_seed_decides(by, job):
    labels, clients, seed = job
    once, again = deal(by, labels, clients, seed), deal(by, labels, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    # Two clients of one class each have only two ways to be dealt, so that two seeds may well agree; twenty do not.
    others = (deal(by, labels, clients, seed + i) for i in range(1, 21))
    assert any(not np.array_equal(a, b) for other in others for a, b in zip(once, other, strict=True))


def test_global_state_is_neither_used_nor_changed():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    first = deal("dirichlet", np.arange(100) % 5, 4)
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(4)
    assert all(np.array_equal(a, b) for a, b in zip(first, deal("dirichlet", np.arange(100) % 5, 4), strict=True))


@given(st.integers(0, 1000), st.integers(1, 50))
def test_equal_cuts_differ_by_at_most_one(n, parts):
    sizes = np.diff(equal(n, parts))
    assert sizes.sum() == n
    assert sizes.max() - sizes.min() <= 1


def test_shards_by_hand():
    labels = np.array([1, 0, 1, 0, 2, 2, 3, 3])  # by label: rows 1 3 | 0 2 | 4 5 | 6 7
    parts = deal("shards", labels, 2, per_client=2)
    shards = {(1, 3), (0, 2), (4, 5), (6, 7)}
    assert {tuple(p[i : i + 2].tolist()) for p in parts for i in (0, 2)} == shards


@given(n=st.integers(24, 200), clients=st.integers(1, 8), per_client=st.integers(1, 3), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_shards_are_as_equal_as_can_be_and_hold_few_classes(n, clients, per_client, seed):
    labels = np.sort(np.arange(n) % 4)
    parts = deal("shards", labels, clients, seed, per_client=per_client)
    sizes = [len(p) for p in parts]
    assert max(sizes) - min(sizes) <= 1
    runs = [np.count_nonzero(np.diff(np.sort(p)) > 1) + 1 for p in parts]
    assert max(runs) <= per_client  # each client holds at most that many stretches of the sorted rows


def test_dirichlet_with_large_alpha_is_even_and_with_small_alpha_is_not():
    labels = np.arange(5000) % 10
    even = np.stack([np.bincount(labels[p], minlength=10) for p in deal("dirichlet", labels, 10, alpha=1e4)])
    skew = np.stack([np.bincount(labels[p], minlength=10) for p in deal("dirichlet", labels, 10, alpha=0.01)])
    assert abs(even - 50).max() < 12
    assert (skew.max(axis=0) > 400).mean() > 0.6  # most classes have one main holder


@given(min_samples=st.integers(0, 5), seed=st.integers(0, 200))
@settings(max_examples=30, deadline=None)
def test_dirichlet_keeps_the_least(min_samples, seed):
    labels = np.arange(120) % 3
    assert min(len(p) for p in deal("dirichlet", labels, 20, seed, alpha=0.05, min_samples=min_samples)) >= min_samples


@given(n=st.integers(50, 500), clients=st.integers(1, 20), exponent=st.floats(0, 3), min_samples=st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_power_sums_and_decays(n, clients, exponent, min_samples):
    sizes = sorted(
        len(p) for p in deal("power", np.zeros(n, int), clients, exponent=exponent, min_samples=min_samples)
    )[::-1]
    assert sum(sizes) == n
    assert min(sizes) >= min_samples
    if exponent == 0:
        assert sizes[0] - sizes[-1] <= 1


def test_power_sizes_by_hand():
    sizes = [len(p) for p in deal("power", np.zeros(14), 3, exponent=1.0, min_samples=1)]  # 1 + 11 · (6, 3, 2)/11
    assert sorted(sizes) == [3, 4, 7]


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_classes_gives_each_client_exactly_so_many(per_client):
    labels = np.arange(600) % 5
    parts = deal("classes", labels, 11, per_client=per_client)
    assert {len(np.unique(labels[p])) for p in parts} == {per_client}
    holders = [sum(c in labels[p] for p in parts) for c in range(5)]
    assert max(holders) - min(holders) <= 1


def test_natural_keys():
    keys = np.array(["b", "a", "b", "c", "a"])
    order, offsets, names = natural(keys, None, generator(0))
    assert names.tolist() == ["a", "b", "c"]
    assert order.tolist() == [1, 4, 0, 2, 3]
    assert offsets.tolist() == [0, 2, 4, 5]
    order, offsets, names = natural(keys, 2, generator(0))
    assert sorted(order) == sorted(i for i, key in enumerate(keys) if key in names)
    chosen = {tuple(natural(np.arange(50), 5, generator(s))[2]) for s in range(5)}
    assert len(chosen) > 1  # by lot, not the first ones


@pytest.mark.parametrize(
    ("by", "clients", "options", "sentence"),
    [
        ("iid", 11, {}, "10 samples are too few for 11 clients: ask for at most 10 clients"),
        ("iid", 0, {}, "clients = 0 cannot be: give a whole number, 1 or more"),
        ("iid", 2.5, {}, "clients = 2.5 cannot be"),
        ("dirichlt", 2, {}, "did you mean 'dirichlet'"),
        ("dirichlet", 2, {"alfa": 1}, r"did you mean 'alpha'\? \(known: alpha, min_samples\)"),
        ("iid", 2, {"alpha": 1}, "known: none"),
        ("dirichlet", 2, {"alpha": 0}, "alpha = 0 cannot be: give a number"),
        ("dirichlet", 4, {"min_samples": 3}, "too few for 4 clients with at least 3 each: ask for at most 3"),
        ("power", 4, {"min_samples": 3}, "ask for at most 3"),
        ("power", 4, {"exponent": -1}, "0 or more"),
        ("power", 4, {"exponent": "x"}, "exponent = 'x' cannot be"),
        ("iid", "3", {}, "clients = '3' cannot be"),
        ("shards", 6, {}, "12 shards"),
        ("shards", 2, {"per_client": 0}, "per_client = 0"),
        ("classes", 2, {"per_client": 6}, "there are 5 classes"),
        ("classes", 2, {}, "leave a class to nobody"),
        ("classes", 10, {"per_client": 2}, "class . has 2 samples for 4 clients"),
    ],
)
def test_refusals(by, clients, options, sentence):
    with pytest.raises(BadData, match=sentence):
        deal(by, np.arange(10) % 5, clients, **options)


def test_labels_that_do_not_fit_are_refused():
    for by in ("shards", "dirichlet", "classes"):
        with pytest.raises(BadData, match="one label a sample"):
            deal(by, np.zeros((10, 3), int), 2)
    for by in ("dirichlet", "classes"):
        with pytest.raises(BadData, match="real numbers"):
            deal(by, np.linspace(0, 1, 10), 2)
    assert sum(map(len, deal("shards", np.linspace(0, 1, 10), 2))) == 10
