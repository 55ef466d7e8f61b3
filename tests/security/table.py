"""The attack table: what each attack got before, and the tests that hold it off now: `python tests/security/table.py`.

"Before" is what the attack recovered of the code that had no defence, as it was recorded then: the error relative to
what it was after, or what it got. Each attack now is played against real party code by the tests in its row; they run,
and the row says whether all of them passed. `--daily` leaves out those that take minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]


class Attack(NamedTuple):
    """Who does what, what came of it before, what comes of it now, and which tests show that."""

    what: str
    before: str
    now: str
    tests: tuple[str, ...]


ATTACKS = (
    Attack("equivocation: a server tells parties of one sum different models", "error 0.006", "refused",
           ("crypto/test_crypto_malicious.py::test_case_12_two_models_are_refused",
            "crypto/test_crypto_bound.py::test_told_each_its_own_story_nobody_completes_a_sum")),
    Attack("differencing: a round again with other survivors", "exact", "refused: one list a round",
           ("crypto/test_crypto_lists.py::test_no_second_sum_of_a_model_has_other_survivors",)),
    Attack("noise of examples computed again from the job's seed", "error 4e-6", "drawn from the system",
           ("privacy/test_privacy_world.py::test_the_seed_repeats_private_draws_in_a_simulation_only",)),
    Attack("another job, or swapped numbers, for one party", "its vector", "it gives nothing",
           ("network/test_network_liars.py::test_who_was_told_another_job_or_cohort_gives_nothing",)),
    Attack("another round in the head of a question", "sums of two rounds", "trains for the bound round",
           ("network/test_network_liars.py::test_a_party_trains_for_the_round_that_its_sum_is_bound_to",)),
    Attack("sums of many rounds, random cohorts against batches of T", "exact after 40 rounds", "error √(1 − 1/T)",
           ("attacks/test_attacks_multiround.py::test_of_batches_the_server_learns_the_mean_for_ever",)),
    Attack("a second process with a party's key", "the run ends", "turned away, the run goes on",
           ("network/test_network_roles.py::test_a_second_process_of_a_party_is_turned_away_and_the_run_goes_on",)),
)  # fmt: skip


class Outcomes:
    """Collects how each test ended."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found.setdefault(report.nodeid.partition("[")[0], set()).add(report.outcome)

    def of(self, attack: Attack) -> str:
        """Say how an attack went: what is not shown is not called held."""
        ends = set().union(*(self.found.get(f"tests/{test}", {"not run"}) for test in attack.tests))
        return attack.now if ends == {"passed"} else "NOT SHOWN: " + ", ".join(sorted(ends - {"passed"}))


def main(options: list[str]) -> int:
    outcomes = Outcomes()
    tests = [str(TESTS / test) for attack in ATTACKS for test in attack.tests]
    marks = [] if "--daily" in options else ["-m", "nightly or not nightly"]
    code = pytest.main(["-q", "-p", "no:cacheprovider", f"--rootdir={TESTS.parent}", *marks, *tests], [outcomes])
    width = max(len(attack.what) for attack in ATTACKS)
    rows = [("attack", "before", "now"), *((one.what, one.before, outcomes.of(one)) for one in ATTACKS)]
    sys.stdout.write("\n" + "".join(f"{what:<{width}}   {before:<22} {now}\n" for what, before, now in rows))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
