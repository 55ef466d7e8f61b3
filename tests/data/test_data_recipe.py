"""Job-file recipes and the check before a run."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest

from atoll import data
from atoll.data import BadData, Federated, Silos, build, check, load


def test_every_exported_name_exists():
    assert all(hasattr(data, name) for name in data.__all__)
    assert data.__all__ == sorted(data.__all__, key=lambda n: (not n.isupper(), n[0].islower(), n))


def test_import_stays_cheap():
    import subprocess
    import sys

    code = "import sys, atoll.data; print([m for m in ('sklearn', 'pyarrow', 'jax', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_job_file_says_it_all():
    job = tomllib.loads(
        'data = { use = "digits", holdout = 0.1, clients = 7, by = "dirichlet", alpha = 0.3, test = 0.2 }'
    )
    made = build(job["data"], seed=5)
    straight = load("digits", holdout=0.1).split(7, "dirichlet", alpha=0.3, test=0.2, seed=5)
    assert len(made) == 7
    assert made.recipe == job["data"]
    assert np.array_equal(made.train.x, straight.train.x)
    assert np.array_equal(made.local.y, straight.local.y)
    assert np.array_equal(build(straight.recipe, seed=99).train.x, straight.train.x)  # its seed is pinned


def test_other_uses(tmp_path):
    made = build({"use": "synthetic", "clients": 4, "samples": 6, "test": 5})
    made.save(tmp_path)
    assert len(build({"use": "saved", "folder": str(tmp_path)})) == 4
    crowd = build({"use": "digits", "pooled": {"clients": 1000, "samples": 4}})
    assert len(crowd) == 1000


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({}, "add use = one of digits"),
        ({"use": ["mnist"]}, "add use = one of digits"),
        ({"use": "digits", "clients": 3, "test": "x"}, "test = 'x' cannot be"),
        ({"use": "digts", "clients": 2}, "did you mean 'digits'"),
        ({"use": "digits"}, "digits does not say who holds what: add clients = N"),
        ({"use": "digits", "client": 3}, "did you mean 'clients'"),
        ({"use": "digits", "clients": 3, "alpha": 1}, "no option of digits split by iid 'alpha'"),
        ({"use": "digits", "clients": 3, "by": "dirichlet", "alfa": 1}, "did you mean 'alpha'"),
        ({"use": "digits", "clients": 3, "by": "dirichle"}, "did you mean 'dirichlet'"),
        ({"use": "synthetic", "client": 3}, "did you mean 'clients'"),
        ({"use": "synthetic"}, "synthetic needs clients"),
        ({"use": "arrays", "clients": 3}, "cannot be loaded by name"),
        ({"use": "digits", "pooled": {"clients": 3}}, "pooled needs clients and samples"),
    ],
)
def test_refusals(recipe, sentence):
    with pytest.raises(BadData, match=sentence):
        build(recipe)


def federation(x=None, y=None, offsets=(0, 2, 4), **more):
    x = np.ones((4, 2), np.float32) if x is None else x
    y = np.array([0, 1, 2, 0], np.int32) if y is None else np.array(y)
    return Federated(Silos(x, y, np.array(offsets)), **({"classes": 3, "parties": ("north", "south")} | more))


def test_check_passes_what_is_sound():
    check(federation())
    check(federation(y=[0.5, -0.5, 1.0, 2.0], kind="real"))


def test_check_names_the_party():
    spoilt = np.ones((4, 2), np.float32)
    spoilt[2, 1] = np.nan
    for made, sentence in [
        (federation(offsets=(0, 4, 4)), "party south has no samples"),
        (federation(x=spoilt), "party south has nan for a feature"),
        (federation(y=[0, 1, 2, 3]), "party south has label 3, beyond 0 to 2"),
        (federation(y=[0, -1, 2, 0]), "party north has label -1"),
        (federation(y=[1, 1, 1, 1]), "all parties together hold only class 1"),
        (replace(federation(), test=Silos(spoilt, np.zeros(4, int), np.array([0, 2, 4]))), "test part 1 has nan"),
        (replace(federation(), local=Silos(spoilt, np.zeros(4, int), np.array([0, 2, 4]))), "party south has nan"),
    ]:
        with pytest.raises(BadData, match=sentence):
            check(made)


def test_check_through_an_index():
    spoilt = np.ones((4, 2), np.float32)
    spoilt[2, 1] = np.inf
    y = np.array([0, 1, 2, 0])
    used, unused = np.array([0, 1, 2, 3]), np.array([0, 1, 3, 3])
    made = Federated(Silos(spoilt, y, np.array([0, 2, 4]), used), classes=3)
    with pytest.raises(BadData, match="party 1 has inf"):
        check(made)
    check(replace(made, train=replace(made.train, index=unused)))  # a row that nobody holds harms nobody


def test_check_reads_only_some_parties_of_a_large_map(tmp_path, monkeypatch):
    from atoll.data import checks

    monkeypatch.setattr(checks, "LARGE", 10)
    monkeypatch.setattr(checks, "SOME", 2)
    x = np.ones((6, 2), np.float32)
    x[2] = np.nan  # of the middle party
    made = Federated(Silos(x, np.array([0, 1, 0, 1, 0, 1]), np.array([0, 2, 4, 6])), classes=2)
    check(Federated.open(made.save(tmp_path)))
    with pytest.raises(BadData, match="party 1 has nan"):
        check(made)
