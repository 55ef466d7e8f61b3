"""Whole batches: the deck's matrix, sizes of families, laws of picks, refusals, and accuracy on MNIST."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.effects import Note
from atoll.core.method import History, Population, Select
from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.select.batches import Batches, LeastServed, Partition, family, family_size
from atoll.select.metrics import multi_round
from atoll.testing import check_part

SELECTS: list[Select] = [Batches(6, 2), Batches(6, 3, order="given"), Partition(4), LeastServed(5)]


def population(parties: int, online: object = None) -> Population:
    return Population(np.ones(parties), None if online is None else np.asarray(online, np.int64))


def batches_of(select: Batches, parties: int, seed: int) -> list[set[int]]:
    """Find the batches without looking inside: who is picked when only so many are wanted and nobody was served."""
    one = replace(select, number=select.size)
    served, found = np.zeros(parties, np.int64), []
    for t in range(parties // select.size):
        cohort = one.pick(t, population(parties), History(), {"served": served.copy()}, World(seed)).cohort
        served[cohort] += 1
        found.append(set(cohort.tolist()))
    return found


def test_the_matrix_of_the_deck() -> None:
    assert family(8, 4, 2).tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 1, 1],
        [0, 0, 1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 1, 1],
    ]


def test_sizes_of_families() -> None:
    found = {size: family_size(120, 12, size) for size in (12, 6, 4, 3, 2)}
    assert found == {12: 10, 6: 190, 4: 4_060, 3: 91_390, 2: 50_063_860}
    assert family_size(120, 12, 1) == comb(120, 12)
    assert family_size(120, 12, 1) == pytest.approx(1.054e16, rel=1e-3)
    assert len(family(120, 12, 6)) == 190
    with pytest.raises(ValueError, match="50063860 rows"):
        family(120, 12, 2)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4))
@settings(deadline=None)
def test_rows_of_a_family_are_all_unions_of_batches(size: int, wanted: int, more: int) -> None:
    rows = family((wanted + more) * size, wanted * size, size)
    assert len({tuple(row) for row in rows.tolist()}) == len(rows) == comb(wanted + more, wanted)
    assert (rows.sum(axis=1) == wanted * size).all()
    assert (rows.reshape(len(rows), -1, size).min(axis=2) == rows.reshape(len(rows), -1, size).max(axis=2)).all()


@st.composite
def situations(draw: st.DrawFn) -> tuple[Batches, int, list[int], int, int, list[int]]:
    size, wanted, more = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(0, 4))
    parties = size * (wanted + more)
    select = Batches(size * wanted, size, draw(st.sampled_from(["shuffled", "given"])))
    # Mostly online, or hardly any round would take place.
    online = [p for p in range(parties) if draw(st.integers(0, 9)) > 0]
    served = draw(st.lists(st.integers(0, 3), min_size=parties, max_size=parties))
    return select, parties, online, draw(st.integers(0, 1000)), draw(st.integers(0, 2**40)), served


@given(situations())
@settings(max_examples=200, deadline=None)
def test_a_cohort_is_a_union_of_whole_online_batches_or_nobody(
    situation: tuple[Batches, int, list[int], int, int, list[int]],
) -> None:
    select, parties, online, t, seed, served = situation
    batches = batches_of(select, parties, seed)
    assert sorted(p for batch in batches for p in batch) == list(range(parties))
    whole = [batch for batch in batches if batch <= set(online)]
    cohort = select.pick(t, population(parties, online), History(), {"served": np.array(served)}, World(seed)).cohort
    if len(whole) < select.number // select.size:
        assert len(cohort) == 0
        return
    chosen = [batch for batch in whole if batch <= set(cohort.tolist())]
    assert sorted(p for batch in chosen for p in batch) == cohort.tolist()
    assert len(cohort) == select.number
    left = [min(served[p] for p in batch) for batch in whole if batch not in chosen]
    assert not left or max(min(served[p] for p in batch) for batch in chosen) <= min(left)


@given(st.integers(1, 12), st.lists(st.integers(0, 3), min_size=12, max_size=12), st.sets(st.integers(0, 11)))
@settings(deadline=None)
def test_least_served_takes_the_least_served(number: int, served: list[int], online: set[int]) -> None:
    there = sorted(online)
    memory = {"served": np.array(served)}
    cohort = LeastServed(number).pick(3, population(12, there), History(), memory, World(0)).cohort.tolist()
    assert set(cohort) <= online
    assert len(set(cohort)) == len(cohort) == min(number, len(there))
    assert sorted(served[p] for p in cohort) == sorted(served[p] for p in there)[: len(cohort)]


def test_given_batches_are_neighbours_and_shuffled_ones_follow_the_seed() -> None:
    assert sorted(map(sorted, batches_of(Batches(6, 3, "given"), 12, 5))) == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7, 8],
        [9, 10, 11],
    ]
    assert batches_of(Batches(6, 3), 12, 0) != batches_of(Batches(6, 3), 12, 1)


def test_a_group_is_a_batch_as_large_as_the_cohort() -> None:
    flaky = atoll.Flaky(0.8)
    groups, batches = (multi_round(select, 24, 200, flaky, seed=2) for select in (Partition(4), Batches(4, 4)))
    assert groups.matrix.tolist() == batches.matrix.tolist()
    assert np.linalg.matrix_rank(groups.matrix.astype(float)) == 6


def test_ties_are_broken_at_random() -> None:
    first = {tuple(Batches(6, 2).pick(t, population(12), History(), {}, World(0)).cohort) for t in range(200)}
    assert len(first) == comb(6, 3)
    assert (
        len({tuple(LeastServed(1).pick(t, population(12), History(), {}, World(0)).cohort) for t in range(200)}) == 12
    )


@pytest.mark.parametrize("select", SELECTS, ids=str)
def test_picks_depend_on_round_roster_service_and_seed_only(select: Select) -> None:
    check_part(select)
    flaky = atoll.Flaky(0.9)
    whole = multi_round(select, 12, 60, flaky, seed=3).matrix
    assert (multi_round(select, 12, 60, flaky, seed=3).matrix == whole).all()
    assert (multi_round(select, 12, 60, flaky, seed=4).matrix != whole).any()
    for t in (1, 17, 59):  # a run that is taken up again knows no more than this
        served = whole[:t].sum(axis=0, dtype=np.int64)
        history, memory = History(t=t, elapsed=7.0, update_norm=1.0), {"served": served}
        cohort = select.pick(t, population(12, flaky.online(t, 12, 3)), history, memory, World(3)).cohort
        assert cohort.tolist() == np.nonzero(whole[t])[0].tolist()


@pytest.mark.parametrize("select", SELECTS, ids=str)
def test_without_a_count_nobody_was_served(select: Select) -> None:
    zeros = {"served": np.zeros(12, np.int64)}
    blank, counted = (select.pick(5, population(12), History(), said, World(1)).cohort for said in ({}, zeros))
    assert (blank == counted).all()
    assert select.start(population(12))["served"].tolist() == zeros["served"].tolist()
    assert len(select.pick(5, population(12, []), History(), {}, World(1)).cohort) == 0


@pytest.mark.parametrize("select", SELECTS, ids=str)
def test_picks_leave_their_arguments_alone(select: Select) -> None:
    served, online = np.arange(12), np.arange(12)
    select.pick(0, Population(np.ones(12), online), History(), {"served": served}, World(0))
    assert served.tolist() == online.tolist() == list(range(12))


def test_a_million_parties_and_no_family() -> None:
    cohort = Batches(1000, 2).pick(0, population(1_000_000), History(), {}, World(0)).cohort
    assert len(np.unique(cohort)) == 1000


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Batches(12, 5), "whole batches; take number 10 or 15"),
        (lambda: Batches(3, 5), "number is 5 or more"),
        (lambda: Batches(12, 1), "hides nobody"),
        (lambda: Batches(12, 4, order="sorted"), "'shuffled' or as 'given'"),
        (lambda: Partition(1), "hides nobody"),
        (lambda: LeastServed(0), "at least one"),
        (lambda: Batches(12, 4).expected(42), "use 40 or 44 parties, or size 2 or 3 or 6"),
        (lambda: Batches(12, 4).pick(0, population(42), History(), {}, World(0)), "42 parties cannot be cut"),
        (lambda: Batches(12, 4).expected(8), "only 8 parties"),
        (lambda: Partition(10).expected(25), "use 20 or 30 parties$"),
        (lambda: Partition(10).expected(15), "use 10 or 20 parties$"),
        (lambda: family_size(10, 4, 0), "at least one"),
        (lambda: family(9, 4, 2), "use 8 or 10 parties$"),
    ],
)
def test_what_cannot_be_cut_is_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


class Cut(Exception):
    """The end of the world, in a sink."""


def small() -> atoll.Job:
    method = atoll.FedAvg(atoll.models.softmax(), batch=None, lr=0.1)
    return atoll.Job(method, Batches(4, 2), rounds=20, eval_every=20, availability=atoll.Flaky(0.7))


def asked(run: atoll.Run) -> list[int]:
    return [fact.get("asked", 0) for fact in run.facts if fact["what"] in ("round", "empty")]


def test_training_asks_whom_the_metrics_say(digits: Federated) -> None:
    found = asked(atoll.simulate(small(), digits, 1, workers=0))
    assert found == multi_round(Batches(4, 2), 12, 20, atoll.Flaky(0.7), 1).matrix.sum(axis=1).tolist()
    assert set(found) == {0, 4}


def test_a_run_that_is_cut_and_resumed_is_a_run_that_was_not(digits: Federated, tmp_path: Path) -> None:
    def sink(note: Note) -> None:
        if note.what == "round" and note.facts["round"] >= 11:
            raise Cut

    with pytest.raises(Cut):
        atoll.simulate(small(), digits, 1, out=tmp_path, sinks=(sink,), workers=0)
    resumed = atoll.simulate(small(), digits, 1, resume=next(tmp_path.iterdir()), workers=0)
    whole = atoll.simulate(small(), digits, 1, workers=0)
    assert [fact["round"] > 5 for fact in resumed.facts if fact["what"] == "resume"] == [True]
    assert asked(resumed) == asked(whole)
    assert resumed.vector.tobytes() == whole.vector.tobytes()


def test_a_job_that_cannot_be_cut_is_refused_before_it_starts(digits: Federated) -> None:
    with pytest.raises(ValueError, match="12 parties cannot be cut"):
        atoll.assemble(atoll.Job(atoll.FedAvg(atoll.models.softmax()), Batches(10, 5)), digits)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.nightly
def test_batches_learn_as_random_cohorts_do_and_groups_slowly() -> None:
    """Target 7: softmax on MNIST, 120 parties, 12 in a round, each away with probability .3."""

    def measure(select: Select) -> tuple[float, int, int]:
        method = atoll.FedAvg(atoll.models.softmax(), epochs=1, batch=10, lr=0.05)
        job = atoll.Job(method, select, rounds=100, availability=atoll.Flaky(0.7))
        run = atoll.simulate(job, data)
        rounds, values = run.curve("test.accuracy")
        hit = next(r for r, v in zip(rounds, values, strict=True) if v >= 0.85)
        return float(np.mean(values[-10:])), hit, sum(fact["what"] == "empty" for fact in run.facts)

    data = atoll.data.load("mnist").split(120, by="dirichlet", alpha=0.5, seed=0)
    random, batches, groups = measure(atoll.Count(12)), measure(Batches(12, 4)), measure(Partition(12))
    assert batches[0] == pytest.approx(random[0], abs=0.01)
    assert groups[0] < random[0] - 0.01
    assert groups[1] >= 4 * random[1]
    assert (random[2], batches[2] <= 5, groups[2] >= 75) == (0, True, True)
