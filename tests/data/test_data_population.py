"""Synthetic and virtual populations: their statistics, their seeds, and what is written equals what is drawn."""

import json

import numpy as np
import pytest

from atoll.data import BadData, Federated, build, check, load, pooled, synthetic


def test_shapes_sizes_and_seeds():
    a, b, c = synthetic(30), synthetic(30), synthetic(30, seed=1)
    assert len(a) == 30
    assert a.train.x.shape[1] == 60
    assert a.train.sizes.min() >= 50
    assert a.test.sizes.tolist() == [2500] * 4
    assert np.array_equal(a.train.x, b.train.x)
    assert not np.array_equal(a.train.sizes, c.train.sizes)
    assert set(np.unique(a.train.y)) <= set(range(10))
    check(a)


def test_clouds_have_the_stated_variances():
    made = synthetic(300, alpha=0.0, beta=2.0, samples=200, test=0)
    assert made.test is None
    means = np.stack([x.mean(axis=0) for x, _ in made.train])
    inside = np.stack([x.var(axis=0) for x, _ in made.train]).mean(axis=0)
    assert np.allclose(inside, np.arange(1, 61) ** -1.2, rtol=0.05)  # Σ_jj = j^-1.2
    level = means.mean(axis=1)  # B_k + the mean of 60 standard normals
    assert abs(level.var() - (4 + 1 / 60)) < 1.0
    assert abs((means - level[:, None])[:, 30:].var() - 1) < 0.1  # v_k ~ N(B_k, 1)


def test_iid_shares_one_model():
    made = synthetic(20, 0, 0, iid=True, samples=300)
    counts = made.label_counts()[1]
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert abs(shares - shares.mean(axis=0)).max() < 0.15
    skew = synthetic(20, 0, 0, samples=300).label_counts()[1] / 300
    assert abs(skew - skew.mean(axis=0)).max() > 0.5
    assert abs(made.train.x.mean(axis=0)).max() < 0.1


def test_sizes():
    assert set(synthetic(50, samples=7, test=0).train.sizes) == {7}
    sizes = synthetic(5000, samples=20, spread=1.0, features=1, classes=2, test=0).train.sizes
    assert sizes.min() >= 1
    assert abs(sizes.mean() - 20) < 2
    assert sizes.max() > 100


@pytest.mark.parametrize("test", [0, 777])
def test_a_folder_holds_what_memory_would(tmp_path, test):
    made = synthetic(600, samples=5, spread=0.5, seed=9, test=test, folder=tmp_path / "s")
    held = synthetic(600, samples=5, spread=0.5, seed=9, test=test)
    assert isinstance(made.train.x, np.memmap)
    assert np.array_equal(made.train.x, held.train.x)
    assert np.array_equal(made.train.y, held.train.y)
    assert np.array_equal(made.train.offsets, held.train.offsets)
    if test:
        assert np.array_equal(made.test.x, held.test.x)
        assert made.test.sizes.sum() == test
    else:
        assert made.test is None
    check(made)
    opened = Federated.open(tmp_path / "s")
    assert opened.recipe["use"] == "synthetic"


def test_a_folder_is_reused_only_for_the_same_recipe(tmp_path):
    synthetic(10, samples=5, folder=tmp_path, test=10)
    before = (tmp_path / "train.x.npy").stat().st_mtime_ns
    synthetic(10, samples=5, folder=tmp_path, test=10)
    assert (tmp_path / "train.x.npy").stat().st_mtime_ns == before
    assert len(synthetic(11, samples=5, folder=tmp_path, test=0)) == 11
    assert not (tmp_path / "test.x.npy").exists()
    assert json.loads((tmp_path / "made.json").read_text())["clients"] == 11


def test_the_recipe_rebuilds_it():
    made = synthetic(12, 0.5, 0.5, samples=9, test=100)
    assert made.recipe == {"use": "synthetic", "clients": 12, "alpha": 0.5, "beta": 0.5, "samples": 9, "test": 100}
    again = build(made.recipe)
    assert np.array_equal(again.train.x, made.train.x)
    assert again.recipe == made.recipe
    assert not np.array_equal(build(made.recipe, seed=5).train.x, made.train.x)


def test_pooled_refers_and_does_not_copy():
    pool = load("digits").split(1)
    made = pooled(pool, 10_000, 20, seed=1)
    assert len(made) == 10_000
    assert made.train.x is pool.train.x
    assert made.train.index.dtype == np.int32
    assert set(made.train.sizes) == {20}
    assert np.array_equal(made.train.index, pooled(pool, 10_000, 20, seed=1).train.index)
    assert not np.array_equal(made.train.index, pooled(pool, 10_000, 20, seed=2).train.index)
    twice = pooled(made, 5, 3)
    assert twice.train[4][0].shape == (3, 64)
    check(made)
    again = build(made.recipe, seed=1)
    assert np.array_equal(again.train.index, made.train.index)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"clients": 0}, "1 or more"),
        ({"clients": 3, "samples": -1}, "samples = -1 cannot be"),
        ({"clients": 3, "beta": "x"}, "beta = 'x' cannot be"),
        ({"clients": 3, "alpha": -1.0}, "alpha = -1.0 cannot be"),
        ({"clients": 3, "iid": True}, "say alpha = 0 and beta = 0"),
    ],
)
def test_refusals(arguments, sentence):
    with pytest.raises(BadData, match=sentence):
        synthetic(**arguments)
    with pytest.raises(BadData, match="1 or more"):
        pooled(load("wine").split(1), 0, 3)
