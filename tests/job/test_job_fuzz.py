"""Any job file runs, or is refused in one sentence: drawn at random over the whole catalogue."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from job_fuzz import job_of

from atoll.cli.app import known
from atoll.data import build
from atoll.job.catalogue import PARTS
from atoll.job.file import dumps, parse
from atoll.report.explain import explain
from atoll.runtimes.run import simulate

TRAINING = set(PARTS) - {"program"}


def fate(seed: int) -> str:
    """Explain and run a job file as the command line does; return "ran", or the sentence that refuses it."""
    text = dumps(job_of(seed))
    try:
        said = parse(text, "job.toml")
        data = build(said.data, said.seed)
        explain(said.job, data, said.seed)
        simulate(said.job, data, said.seed, workers=0)
    except Exception as error:
        sentence = known(error) or ""
        if "\n" in sentence or len(sentence.split()) < 4:
            pytest.fail(f"seed {seed}: {error!r} is no sentence to whoever runs\n{text}")
        return sentence
    return "ran"


def fates(seeds: Iterable[int]) -> Counter[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of models that do not train: numbers grow too large
        return Counter(fate(seed) for seed in seeds)


def used(said: Any) -> set[str]:
    """Return the names of all parts in a job file."""
    if isinstance(said, dict):
        return {str(said.get("use"))} | {name for value in said.values() for name in used(value)}
    return {name for value in said for name in used(value)} if isinstance(said, list) else set()


def test_two_hundred_job_files_run_or_are_refused_in_a_sentence() -> None:
    found = fates(range(200))
    assert found["ran"] >= 20, found
    assert len(found) > 60, "many different sentences"


@pytest.mark.nightly
def test_two_thousand_job_files_run_or_are_refused_in_a_sentence() -> None:
    found = fates(range(1000, 3000))
    assert found["ran"] >= 200


def test_they_are_over_the_whole_catalogue() -> None:
    drawn = {name for seed in range(1000, 1600) for name in used(job_of(seed))}
    assert {name for kind in TRAINING for name in PARTS[kind]} <= drawn
