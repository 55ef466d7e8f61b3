"""Splitting a table: nothing lost, nothing twice, the test sets apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.data import BadData, Federated, Table, build, check


def table(n=60, **more):
    x = np.arange(n, dtype=np.float32)[:, None]  # a row is its own name
    return Table(x, (np.arange(n) % 3).astype(np.int32), classes=3, name="toy", **more)


@given(
    clients=st.integers(1, 20),
    test=st.sampled_from([0.0, 0.1, 0.3, 0.9]),
    by=st.sampled_from(["iid", "shards", "dirichlet", "power"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_train_and_own_are_disjoint_and_complete(clients, test, by, seed):
    made = table().split(clients, by, seed=seed, test=test)
    rows = made.train.x[:, 0].tolist() + ([] if made.local is None else made.local.x[:, 0].tolist())
    assert sorted(rows) == list(range(60))
    assert (made.train.sizes >= 1).all()
    assert made.train.index is None
    whole = made.train.sizes if made.local is None else made.train.sizes + made.local.sizes
    assert whole.sum() == 60
    if made.local is not None:
        assert (made.local.sizes[whole > 1] >= 1).all()
        assert (made.local.sizes[whole == 1] == 0).all()
    for x, y in made.train:
        assert (x[:, 0] % 3 == y).all()


def test_own_test_is_the_fraction_of_each_party():
    made = table(100).split(5, test=0.25)
    assert made.local.sizes.tolist() == [5] * 5
    assert made.train.sizes.tolist() == [15] * 5


@pytest.mark.parametrize(("rows", "parts"), [(1, 1), (2500, 1), (2501, 2), (10_000, 4), (16_281, 7)])
def test_central_test_is_cut_into_equal_parts(rows, parts):
    test_x = np.zeros((rows, 1), np.float32)
    made = table(test_x=test_x, test_y=np.zeros(rows, np.int32)).split(2)
    assert len(made.test) == parts
    assert made.test.sizes.sum() == rows
    assert made.test.sizes.max() <= 2500
    assert np.ptp(made.test.sizes) <= 1


def test_keys_name_the_parties_and_take_their_own_test_rows():
    keys = {"ward": np.array(list("bca") * 20)}
    made = table(keys=keys).holdout(0.2, 1).split()
    assert made.parties == ("a", "b", "c")
    assert made.train.sizes.sum() == 48
    assert made.local.sizes.sum() == 12
    for k, name in enumerate("bca"):  # row i carries key "bca"[i % 3]
        party = made.parties.index(name)
        assert (made.train[party][0] % 3 == k).all()
        assert (made.local[party][0] % 3 == k).all()
    assert made.recipe == {"use": "toy"}
    some = table(keys=keys).split(2, "ward", seed=4)
    assert len(some) == 2
    assert some.recipe == {"use": "toy", "clients": 2, "by": "ward", "seed": 4}


def test_the_recipe_holds_what_was_said():
    made = table(recipe={"length": 3}).split(4, "dirichlet", alpha=0.1, test=0.5)
    assert made.recipe == {"use": "toy", "length": 3, "clients": 4, "by": "dirichlet", "test": 0.5, "alpha": 0.1}


def test_holdout_is_seeded_and_complete():
    a, b, c = table().holdout(0.25, 1), table().holdout(0.25, 1), table().holdout(0.25, 2)
    assert np.array_equal(a.test_x, b.test_x)
    assert not np.array_equal(a.test_x, c.test_x)
    assert sorted(np.concatenate([a.x, a.test_x])[:, 0]) == list(range(60))
    assert len(a.test_x) == 15


def test_standardised_uses_the_training_rows_only():
    held = table().holdout(0.5, 0)
    done = held.standardised()
    assert abs(done.x.mean()) < 1e-6
    assert abs(done.x.std() - 1) < 1e-5
    assert np.allclose(done.test_x, (held.test_x - held.x.mean()) / held.x.std(), atol=1e-5)
    flat = Table(np.ones((4, 2), np.float32), np.arange(4), classes=4).standardised()
    assert (flat.x == 0).all()  # a constant feature is not divided by zero


def test_save_and_open(tmp_path):
    made = build({"use": "digits", "clients": 5, "by": "dirichlet", "test": 0.2}, seed=3)
    back = Federated.open(made.save(tmp_path))
    assert back.recipe == made.recipe
    for split in ("train", "local", "test"):
        for part in ("x", "y", "offsets"):
            assert np.array_equal(getattr(getattr(made, split), part), getattr(getattr(back, split), part))
    check(back)


def test_own_test_data_that_release_0_1_saved_is_not_lost_in_silence(tmp_path):
    build({"use": "digits", "clients": 5, "test": 0.2}).save(tmp_path)
    for path in tmp_path.glob("local.*"):
        path.rename(tmp_path / path.name.replace("local", "own"))
    with pytest.raises(BadData, match=r"saved by release 0\.1, .* rename its files own\.\*\.npy to local\.\*\.npy"):
        Federated.open(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "toy does not say who holds what: add clients = N"),
        ({"by": "iid"}, "needs a number of clients"),
        ({"clients": 3, "by": "writr"}, "there is no partition 'writr'"),
        ({"clients": 3, "test": 1.0}, "below 1"),
        ({"clients": 61}, "60 samples are too few for 61 clients"),
    ],
)
def test_refusals(arguments, sentence):
    with pytest.raises(BadData, match=sentence):
        table().split(**arguments)


def test_more_refusals():
    two = {"ward": np.zeros(60, int), "sex": np.arange(60) % 2}
    with pytest.raises(BadData, match="or by = one of sex, ward"):
        table(keys=two).split()
    with pytest.raises(BadData, match="did you mean 'ward'"):
        table(keys=two).split(by="wards")
    with pytest.raises(BadData, match="clients of a split by key = 3 cannot be: give a whole number, 1 to 2"):
        table(keys=two).split(3, "sex")
    with pytest.raises(BadData, match="there is no option"):
        table(keys=two).split(by="sex", alpha=1)
    with pytest.raises(BadData, match=r"the test fraction = 1\.0 cannot be"):
        table().holdout(1.0)
    with pytest.raises(BadData, match="one row"):
        table(1).holdout(0.5)
