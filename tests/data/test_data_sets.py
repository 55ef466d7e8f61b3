"""The named data sets against the facts published about them."""

import os
from pathlib import Path

import numpy as np
import pytest

from atoll.data import BadData, check, load, names

FOLDER = os.environ.get("ATOLL_DATA", "")
present = pytest.mark.skipif(not FOLDER or not Path(FOLDER).is_dir(), reason="ATOLL_DATA names no folder")


def data(test):
    return pytest.mark.data(present(test))


def test_names_have_a_purpose_in_one_line():
    assert {"digits", "mnist", "csv", "synthetic"} <= set(names())
    assert all(20 < len(purpose) < 130 for purpose in names().values())


@pytest.mark.parametrize(
    ("name", "rows", "test", "width", "classes"),
    [("digits", 1438, 359, 64, 10), ("breast_cancer", 455, 114, 30, 2), ("wine", 142, 36, 13, 3)],
)
def test_embedded_classes(name, rows, test, width, classes):
    table = load(name)
    assert (table.x.shape, table.test_x.shape, table.classes) == ((rows, width), (test, width), classes)
    assert (table.x.dtype, table.y.dtype, table.name) == (np.float32, np.int32, name)
    assert set(np.unique(table.y)) == set(range(classes))
    if name == "digits":
        assert (table.x.min(), table.x.max()) == (0, 1)
    else:
        assert np.allclose(table.x.mean(axis=0), 0, atol=1e-5)
        assert np.allclose(table.x.std(axis=0), 1, atol=1e-4)
        assert len(table.features) == width
    assert np.array_equal(load(name).test_x, table.test_x)
    assert load(name, holdout=0.0).test_x is None


def test_diabetes_is_real():
    table = load("diabetes")
    assert (table.kind, table.classes, table.y.dtype, table.x.shape) == ("real", 0, np.float32, (354, 10))
    assert abs(table.y.mean()) < 1e-5
    assert abs(table.y.std() - 1) < 1e-4
    check(table.split(3))


def test_the_test_set_does_not_depend_on_the_seed_of_the_job():
    a, b = (load("digits").split(5, seed=s) for s in (1, 2))
    assert np.array_equal(a.test.x, b.test.x)
    assert not np.array_equal(a.train.x, b.train.x)


def test_refusals():
    with pytest.raises(BadData, match="no data set 'mnits': did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(BadData, match=r"no option of mnist 'normalize': did you mean 'normalise'.*known: normalise"):
        load("mnist", normalize=True)
    with pytest.raises(BadData, match="federation already"):
        load("synthetic", clients=3)
    with pytest.raises(BadData, match="cannot be loaded by name"):
        load("arrays")
    with pytest.raises(BadData, match="length = 1 cannot be"):
        load("shakespeare", length=1)


@data
def test_mnist():
    table = load("mnist")
    assert (table.x.shape, table.test_x.shape) == ((60_000, 784), (10_000, 784))
    assert np.bincount(table.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(table.test_y).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert abs(table.x.mean(dtype=float) - 0.1307) < 5e-5
    assert abs(table.x.std(dtype=float) - 0.3081) < 5e-5
    assert (table.x.min(), table.x.max(), table.x.dtype) == (0, 1, np.float32)


@data
def test_mnist_writers():
    made = load("mnist_writers").split()
    assert len(made) == 539
    assert (made.train.sizes.min(), made.train.sizes.max(), np.median(made.train.sizes)) == (19, 131, 116)
    assert made.local is None  # the writers of the test images are others
    assert len(load("mnist_writers").split(50, "writer")) == 50


@data
def test_mnist_t10k_normalised():
    table = load("mnist_t10k", normalise=True)
    assert (table.x.shape, table.test_x.shape) == ((8000, 784), (2000, 784))
    assert abs(table.x.mean(dtype=float)) < 1e-4
    assert abs(table.x.std(dtype=float) - 1) < 1e-4
    assert table.split(10).recipe == {"use": "mnist_t10k", "normalise": True, "clients": 10}


@data
def test_fashion_mnist():
    table = load("fashion_mnist")
    assert np.bincount(table.y).tolist() == [6000] * 10
    assert np.bincount(table.test_y).tolist() == [1000] * 10
    assert abs(table.x.mean(dtype=float) - 0.286) < 5e-4
    assert abs(table.x.std(dtype=float) - 0.353) < 5e-4


@data
def test_shakespeare():
    table = load("shakespeare")
    made = table.split()
    assert len(made) == 1340
    assert table.x.dtype == table.y.dtype == np.uint16
    assert table.x.shape[1] == 80
    characters = sum(int((y < 256).sum()) for y in (table.y, table.test_y))
    assert 4.0e6 < characters < 4.4e6
    assert (table.y == 257).sum() + (table.test_y == 257).sum() == 1340
    k = max(range(1340), key=lambda k: len(made.train[k][1]))
    (x, y), (later, _) = made.train[k], made.local[k]
    assert x[0, 0] == 256
    assert np.array_equal(x.ravel()[1:], y.ravel()[:-1])  # the windows of a speaker follow each other
    assert later[0, 0] == y[-1, -1]
    assert abs(len(x) / (len(x) + len(later)) - 0.8) < 0.01
    check(made)


@data
def test_a9a_and_adult_have_the_same_rows():
    a9a, adult = load("a9a"), load("adult")
    for table in (a9a, adult):
        assert (len(table.y), len(table.test_y)) == (32_561, 16_281)
        assert (table.y.sum(), table.test_y.sum()) == (7841, 3846)
    assert a9a.x.shape[1] == 123
    assert set(np.unique(a9a.x)) == {0, 1}
    assert np.array_equal(a9a.y, adult.y)
    missing = np.zeros(len(adult.y), bool)
    for column in ("workclass", "occupation", "native_country"):
        missing |= adult.x[:, adult.features.index(f"{column}=?")] == 1
    assert missing.sum() == 2399
    assert abs(adult.x[:, adult.features.index("age")].std() - 1) < 1e-4
    assert len(adult.split(by="occupation")) == 15


@data
def test_credit_default():
    table = load("credit_default")
    y = np.concatenate([table.y, table.test_y])
    assert (len(y), table.x.shape[1]) == (30_000, 23)
    assert abs(y.mean() - 0.2212) < 5e-5
    assert np.allclose(table.x.mean(axis=0), 0, atol=1e-5)


@data
def test_heart_disease():
    whole = load("heart_disease", holdout=0.0).split()
    assert dict(zip(whole.parties, whole.train.sizes.tolist(), strict=True)) == {
        "cleveland": 303,
        "hungarian": 294,
        "switzerland": 123,
        "va": 200,
    }
    healthy = [int((y == 0).sum()) for _, y in whole.train]
    assert healthy == [164, 188, 8, 51]
    made = load("heart_disease").split()
    assert made.train.sizes.sum() == 736
    assert made.local.sizes.sum() == made.test.sizes.sum() == 184
    check(made)


@data
def test_california_housing():
    table = load("california_housing")
    assert (table.x.shape[1], len(table.y) + len(table.test_y), table.kind) == (8, 20_640, "real")
    raw = np.array([float(line.rsplit(",", 1)[1]) for line in _housing().splitlines()])
    assert abs(raw.mean() - 206_855.8) < 0.05
    assert abs(table.y.std() - 1) < 1e-4


def _housing():
    from atoll.data.files import read
    from atoll.data.tabular import HOUSING

    return read(HOUSING).decode()
