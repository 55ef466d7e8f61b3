"""Twenty audits by canary: none finds more than is stated, and each finds a quarter of the noise."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import spawn

HERE = Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("security_canaries", HERE / "canaries.py")
assert spec
assert spec.loader
canaries = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = canaries  # its dataclasses look it up
spec.loader.exec_module(canaries)


def test_what_is_drawn_has_every_kind_and_every_way_to_run() -> None:
    jobs = canaries.drawn(canaries.SEED)
    assert Counter(job.kind for job in jobs) == dict.fromkeys(canaries.RANGES, 5)
    assert Counter(job.mode for job in jobs) == {"simulated": 8, "in process": 8, "sockets": 4}
    assert all(2 <= job.ledger() <= 4 for job in jobs)


def normal(one: canaries.Audited, sigma: float) -> canaries.Seen:
    generator = np.random.default_rng(0)
    return canaries.Seen(3.0, 1 + generator.normal(0, sigma, 4000), generator.normal(0, sigma, 9000))


def test_a_row_says_what_was_found() -> None:
    """Of noise for ε = 3, which is 1.49, and of what is refuted, or too much to be seen."""
    one = canaries.Audited("central", "simulated", 0, 1.49, 1.0, 1, 300, 1.0)
    assert canaries.audited(one, lambda job: normal(job, job.sigma)).text(1).endswith("as promised")
    assert canaries.audited(one, lambda job: normal(job, job.sigma / 4)).text(1).endswith("REFUTED")
    assert canaries.audited(one, lambda job: normal(job, 1.49)).text(1).endswith("NOT SEEN")


def test_single_vectors_of_a_simulation_are_as_promised() -> None:
    one = next(job for job in canaries.drawn(canaries.SEED) if (job.kind, job.mode) == ("local", "simulated"))
    assert canaries.audited(one).good


@pytest.mark.nightly
def test_twenty_audits_find_no_more_than_is_stated_and_a_quarter_of_the_noise() -> None:
    done = spawn.run([sys.executable, str(HERE / "canaries.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("as promised") == 20
