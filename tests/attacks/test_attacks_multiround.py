"""Least squares on sums of many rounds: everything of random cohorts, the mean of a batch and no more of batches."""

from __future__ import annotations

import os
import subprocess
import sys
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.attacks.multiround import leak, recover
from atoll.core.tree import Array
from atoll.select.batches import Batches, LeastServed, Partition, family
from atoll.select.metrics import multi_round

MODELS = np.random.default_rng(0).normal(size=(40, 1000))


def test_two_parties_by_hand() -> None:
    matrix = np.array([[1, 1], [1, 0]])
    assert recover(matrix, np.array([[5.0, 1.0], [2.0, 1.0]])) == pytest.approx(np.array([[2.0, 1.0], [3.0, 0.0]]))
    once = matrix[:1]  # of one sum of two, the best guess is a half each
    assert recover(once, np.array([[4.0, 2.0]])) == pytest.approx(np.array([[2.0, 1.0], [2.0, 1.0]]))
    assert leak(once, np.array([[4.0], [2.0]])) == pytest.approx([0.25, 0.5])


def test_who_never_takes_part_is_guessed_as_zero() -> None:
    assert leak(np.array([[1, 0]]), np.array([[3.0], [4.0]])) == pytest.approx([0.0, 1.0])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_the_estimate_explains_every_sum_and_is_no_longer_than_the_truth(seed: int) -> None:
    generator = np.random.default_rng(seed)
    matrix, models = generator.integers(0, 2, (6, 9)), generator.normal(size=(9, 4))
    guess = recover(matrix, matrix @ models)
    assert matrix @ guess == pytest.approx(matrix @ models, abs=1e-9)
    assert np.linalg.norm(guess) <= np.linalg.norm(models) + 1e-9


def test_random_cohorts_give_every_model_away_after_as_many_rounds_as_parties() -> None:
    """Target 7: at most 1e-9 after 40 rounds of 8 among 40; before, nearly nobody."""
    matrix = multi_round(atoll.Count(8), 40, 40).matrix
    assert leak(matrix, MODELS).max() <= 1e-9
    assert leak(matrix[:20], MODELS).min() > 0.3
    assert leak(multi_round(LeastServed(8), 40, 60).matrix, MODELS).max() <= 1e-9


@pytest.mark.parametrize("size", [2, 4, 8])
def test_of_batches_the_server_learns_the_mean_for_ever(size: int) -> None:
    matrix = multi_round(Batches(8, size), 40, 1000).matrix
    batches = np.unique(matrix, axis=1, return_inverse=True)[1]
    means = np.array([MODELS[batches == batch].mean(axis=0) for batch in batches])
    assert recover(matrix, matrix @ MODELS) == pytest.approx(means, abs=1e-9)
    error = leak(matrix, MODELS)
    assert error.min() >= 0.65
    assert error.mean() == pytest.approx(sqrt(1 - 1 / size), abs=0.01)


def test_the_whole_family_tells_no_more_than_the_batches() -> None:
    everything = leak(family(40, 8, 4), MODELS)
    groups = np.arange(40).reshape(-1, 4)
    means = MODELS[groups].mean(axis=1).repeat(4, axis=0)
    expected = np.linalg.norm(MODELS - means, axis=1) / np.linalg.norm(MODELS, axis=1)
    assert everything == pytest.approx(expected, abs=1e-9)


def test_parties_that_are_alike_are_not_protected_by_a_batch() -> None:
    """The mean of a batch is close to each of its members when members are close to each other."""
    alike = MODELS[:1] + 0.1 * MODELS
    assert leak(multi_round(Partition(8), 40, 10).matrix, alike).max() < 0.15


@pytest.mark.parametrize(("matrix", "sums"), [(np.ones((2, 3)), np.ones((3, 4)))])
def test_sums_and_rounds_must_agree(matrix: Array, sums: Array) -> None:
    with pytest.raises(ValueError, match="one sum for each round"):
        recover(matrix, sums)
    with pytest.raises(ValueError, match="one for each"):
        leak(matrix, np.ones((2, 4)))
    with pytest.raises(ValueError, match="party 1 is zero"):
        leak(matrix, np.array([[1.0], [0.0], [2.0]]))


@pytest.mark.slow
def test_the_example_prints_its_tables_and_draws(tmp_path: Path) -> None:
    """Without MNIST: it says so and trains on fewer digits."""
    example = Path(__file__).resolve().parents[2] / "examples" / "so_2023_multiround.py"
    command = [sys.executable, str(example), "--out", str(tmp_path / "new")]
    one = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # many small solutions: threads would only wait for each other
    one |= {"ATOLL_OFFLINE": "1", "XDG_CACHE_HOME": str(tmp_path), "ATOLL_DATA": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=one)
    assert done.returncode == 0, done.stderr
    assert "MNIST is skipped: mnist/" in done.stdout
    first, rest = done.stdout.split("picture:")
    second, third = rest.split("120 parties,")
    rows, trained, costs = (
        {line[:14].strip(): line[14:].split() for line in text.splitlines() if line[:14].strip()}
        for text in (first, second, third)
    )
    assert costs["random"][0] == "1"
    assert costs["batches of 4"][0] == "4"
    assert rows["batches, T=2"][:2] == ["20", "20"]
    assert rows["groups, T=8"][:2] == ["5", "5"]
    *stay, error, recognised = (float(cell) for cell in trained["random"][:6])
    assert max(stay) < 1e-3  # all are found
    assert error < 0.5
    assert recognised >= 38  # also while they are trained on
    for name, theory, whose in (("batches, T=2", 0.707, 20), ("batches, T=4", 0.866, 10), ("groups, T=8", 0.935, 5)):
        before, after, *models, error, recognised = (float(cell) for cell in trained[name][:6])
        assert [before, after, error] == pytest.approx([theory] * 3, abs=0.04)
        assert max(models) < 0.1, "models are alike: the mean of a batch tells them nearly"
        assert recognised <= 1.5 * whose, "of a batch of T at best one in T, but for chance"
    assert (tmp_path / "new" / "multiround.png").read_bytes().startswith(b"\x89PNG")
