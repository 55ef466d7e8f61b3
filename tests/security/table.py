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
    Attack("part of a batch of whole_batches", "opened", "refused before unmasking",
           ("crypto/test_crypto_malicious.py::test_a_policy_of_whole_batches_opens_no_part_of_one",)),
    Attack("survivors below the floor of distributed noise", "opened", "refused before unmasking",
           ("crypto/test_crypto_malicious.py::test_noise_in_shares_wants_enough_to_the_end",
            "crypto/test_crypto_bound.py::test_a_noise_floor_is_the_partys_own")),
    Attack("survivors below min_cohort of a policy", "opened", "refused before unmasking",
           ("crypto/test_crypto_malicious.py::test_a_policy_counts_survivors_and_not_who_was_asked",)),
    Attack("three renamed jobs for a party that allows 2 answers", "6 answers", "2 answers",
           ("network/test_network_budget.py::test_three_renamed_jobs_get_the_two_answers_that_a_party_allows",)),
    Attack("a delta from the job: 3 parties, 0.299", "epsilon 0 is booked", "the party's own delta",
           ("network/test_network_budget.py::test_delta_and_epsilon_are_those_of_the_party",)),
    Attack("cohorts recomputed from the job's seed", "200 of 200", "none, but by chance",
           ("privacy/test_privacy_sampling.py::test_a_curious_party_cannot_compute_cohorts_from_the_seed_of_the_job",)),
    Attack("a vector of weight 1e12 in a plain weighted sum", "sets the model", "refused by name",
           ("network/test_network_liars.py::test_who_sends_more_than_the_job_allows_is_refused_by_name",)),
    Attack("evaluations on own test data without end", "without limit", "those of the job, then none",
           ("network/test_network_evaluation.py::test_a_server_that_asks_evaluations_without_end_gets_those_of_the_job",)),
    Attack("control characters in a peer's text", "reach the terminal", "shown as codes, or refused",
           ("network/test_network_peer_text.py::test_a_lying_servers_text_reaches_no_terminal_and_no_log",
            "network/test_network_peer_text.py::test_a_peers_text_reaches_no_page_and_no_line_of_a_log")),
    Attack("a million classes or members, said by a server", "memory is spent", "refused by policy first",
           ("network/test_network_peer_text.py::test_sizes_that_a_server_says_are_held_against_the_policy_before_they_are_used",
            "network/test_network_peer_text.py::test_the_child_that_assesses_a_job_has_a_memory_limit")),
    Attack("8,192 vectors under the server's noise, in float32", "sensitivity above 1", "it moves by itself only",
           ("stages/test_stages_noise.py::test_one_vector_among_thousands_moves_a_sum_under_noise_by_itself_and_no_more",)),
    Attack("a Paillier modulus with small factors", "accepted", "refused",
           ("crypto/test_crypto_paillier.py::test_public_keys_that_protect_nothing_are_refused",)),
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
