"""What is promised of a method with two phases holds in both: in words, in ε, and in what a party agrees to."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from parts.drift import FedLin
from parts.trees import Boost

import atoll
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.data import build
from atoll.data.federated import Federated
from atoll.job.file import parse
from atoll.privacy.account import in_epsilon
from atoll.report.page import result
from atoll.runtimes.network.party.assess import assess
from atoll.runtimes.network.party.budget import JobBudget
from atoll.runtimes.network.party.policy import NotAllowed, Policy
from atoll.runtimes.network.party.session import Assessment, Session
from atoll.runtimes.network.party.spending import DataAccount, epsilon
from atoll.testing import check_method

METHOD = FedLin(atoll.models.softmax(), epochs=2, lr=0.05)
RING = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring())
HIDDEN = atoll.Channel(RING, atoll.SecureSum())
PLAIN = atoll.Channel([atoll.Average()])
NOISY = (atoll.Clip(1.0), atoll.Average("expected"), atoll.Gaussian(2.0))

HEAD = """
name = "two"
rounds = 3
data = { use = "digits", clients = 4 }
method = { use = "parts.drift:FedLin", model = "softmax", epochs = 2, lr = 0.05 }
select = "all"
stages = [{ use = "clip", norm = 1.0 }, { use = "average", by = "expected" }, "ring"]
combine = "secure_sum"
"""
MIXED = f'{HEAD}\n[phases.train]\nstages = ["average"]\ncombine = "sum"\n'
LIGHT = f"""{HEAD}
[phases.train]
stages = [{{ use = "clip", norm = 5.0 }}, {{ use = "average", by = "expected" }}, "ring"]
combine = "light_sum"
"""


@pytest.fixture(scope="module")
def digits() -> Federated:
    return atoll.data.load("digits").split(4, by="iid", seed=0)


def job(channel: atoll.Channel, method: Any = METHOD, **more: Any) -> atoll.Job:
    return atoll.Job(method, more.pop("select", atoll.All()), channel, **{"rounds": 3, **more})


def block(text: str, title: str) -> list[str]:
    """Return the lines below a title of an explanation."""
    return [line.strip() for line in text.partition(f"{title}\n")[2].partition("\n\n")[0].splitlines()]


# --- words ------------------------------------------------------------------------------------------------------------


def mixed_is_said(text: str) -> None:
    seen = block(text, "who sees what")
    assert any(line.startswith("server (phase gradient): the sum of at least") for line in seen)
    assert "server (phase train): each party's vector, one by one" in seen
    assert not any(line.startswith(("server:", "against:", "not promised:")) for line in seen)
    assert any(line.startswith("network:") for line in seen), "what is the same in both is said once"
    done = block(text, "what happens to a party's vector")
    assert any(line.startswith("phase gradient: ") and "secure_sum" in line for line in done)
    assert any(line.startswith("phase train: ") and "sum()" in line for line in done)
    assert any(line.startswith("phase train: so it travels as 65") for line in done)


@pytest.mark.parametrize("world", [World.simulated(0), World.real(0)])
def test_a_phase_that_hides_less_is_named(world: World, digits: Federated) -> None:
    mixed_is_said(atoll.explain(job(atoll.Channel(RING, atoll.SecureSum(), {"train": PLAIN})), digits, world=world))


def test_a_job_file_is_explained_by_phase_and_its_run_reported_so(digits: Federated, tmp_path: Path) -> None:
    said = parse(MIXED, "the test")
    data = build(said.data, said.seed)
    mixed_is_said(atoll.explain(said.job, data, said.seed))
    run = atoll.simulate(said.job, data, said.seed, workers=0)
    assert run.about["seen"]["server (phase train)"] == "each party's vector, one by one"
    assert "server" not in run.about["seen"]
    page = run.report(tmp_path / "report.html").read_text()
    assert "server (phase train)" in page
    assert "server (phase gradient)" in page


def test_what_is_the_same_in_all_phases_is_said_once(digits: Federated) -> None:
    both = atoll.explain(job(HIDDEN), digits)
    assert "phase" not in both
    assert both == atoll.explain(job(atoll.Channel(phases={"gradient": HIDDEN, "train": HIDDEN})), digits)
    one = atoll.explain(job(HIDDEN, atoll.FedAvg(atoll.models.softmax())), digits)
    assert block(one, "who sees what") == block(both, "who sees what")


def test_the_only_phase_is_explained_by_its_own_channel(digits: Federated) -> None:
    """A channel that nothing travels through promises nothing."""
    alone = job(atoll.Channel(RING, atoll.SecureSum(), {"train": PLAIN}), atoll.FedAvg(atoll.models.softmax()))
    text = atoll.explain(alone, digits)
    assert "server: each party's vector, one by one" in block(text, "who sees what")
    assert "secure" not in text


def test_vectors_of_other_sizes_are_told_by_phase(digits: Federated) -> None:
    data = build({"use": "breast_cancer", "clients": 4}, 0)
    boost = job(atoll.Channel([]), Boost(trees=3, depth=2))
    done = block(atoll.explain(boost, data), "what happens to a party's vector")
    assert done[0].startswith("1. sum()")
    phases = ["phase moments", "phase level0", "phase level1"]
    assert [line.split(":")[0] for line in done[1:]] == [*phases, "one of 4 parties can set the model at will"]
    assert any("decides how often a round asks" in line for line in block(atoll.explain(boost, data), "cost"))
    about = atoll.simulate(boost, data, workers=0).about
    level = [phase.schema.size for phase in atoll.assemble(boost, data).job.method.phases.values()]
    assert about["parameters"] == max(level)
    assert about["bytes_per_vector"] == 8 * max(level)


# --- ε ----------------------------------------------------------------------------------------------------------------


def test_a_run_notes_what_each_ask_spends(digits: Federated) -> None:
    noisy = job(atoll.Channel(NOISY), select=atoll.Poisson(0.5), stop=[atoll.Budget(1e9, 1e-3)])
    made = atoll.assemble(noisy, digits)
    assert made.ledger is not None
    account = made.ledger.of()
    run = atoll.simulate(noisy, digits, workers=0)
    asks = [fact for fact in run.facts if fact["what"] in ("round", "empty")]
    assert [fact["epsilon"] for fact in asks] == [account.epsilon(t + 1) for t in range(len(asks))]
    assert run.about["privacy"]["epsilon_planned"] == account.epsilon(2 * 3)
    assert run.facts[-1]["epsilon"] == account.epsilon(len(asks))
    planned = in_epsilon(account.epsilon(6))
    assert f"epsilon {planned} after all 3 rounds" in atoll.explain(noisy, digits)


def test_a_round_is_done_with_its_last_phase(digits: Federated) -> None:
    run = atoll.simulate(job(atoll.Channel()), digits, workers=0)
    noted = [fact for fact in run.facts if fact["what"] == "round"]
    assert [(fact["round"], fact["phase"], fact.get("complete", True)) for fact in noted] == [
        (t, phase, phase == "train") for t in (1, 2, 3) for phase in ("gradient", "train")
    ]
    assert "trained for 2 rounds" in result(run.about, noted[:5])


def test_a_budget_ends_between_rounds_and_calibration_is_enough(digits: Federated) -> None:
    noisy = job(atoll.Channel(NOISY), rounds=20)
    account = atoll.assemble(noisy, digits).ledger.of()  # type: ignore[union-attr]
    budget = (account.epsilon(5) + account.epsilon(6)) / 2
    run = atoll.simulate(job(atoll.Channel(NOISY), rounds=20, stop=[atoll.Budget(budget)]), digits, workers=0)
    assert run.facts[-1]["round"] == 2
    assert run.facts[-1]["epsilon"] == account.epsilon(4) <= budget
    louder = atoll.Channel((*NOISY[:2], atoll.Gaussian(6.0)))
    found = atoll.calibrate(job(atoll.Channel(NOISY, phases={"train": louder})), digits, 3.0, 1e-2)
    assert found.values == {
        "stages.2.multiplier": found.multiplier,
        "phases.train.stages.2.multiplier": pytest.approx(3 * found.multiplier),
    }
    assert found.epsilon <= 3.0
    after = atoll.assemble(found.job, digits).ledger
    assert after is not None
    assert after.of().epsilon(6) == found.epsilon


def test_a_phase_without_noise_makes_the_promise_void(digits: Federated) -> None:
    with pytest.raises(Mismatch, match="phase train adds no noise"):
        atoll.assemble(job(atoll.Channel(NOISY, phases={"train": PLAIN})), digits)
    with pytest.raises(Mismatch, match="phase gradient adds no noise"):
        atoll.assemble(job(atoll.Channel([atoll.Average()], phases={"train": atoll.Channel(NOISY)})), digits)


def test_a_method_that_decides_as_it_runs_has_no_planned_epsilon() -> None:
    data = build({"use": "breast_cancer", "clients": 4}, 0)
    stages = (atoll.Clip(1.0), atoll.Gaussian(5.0))
    boost = job(atoll.Channel(stages), Boost(trees=3, depth=2))
    run = atoll.simulate(boost, data, workers=0)
    assert "epsilon_planned" not in run.about["privacy"]
    assert run.facts[-1]["epsilon"] > 0
    text = atoll.explain(boost, data)
    assert "after one ask" in text
    assert "no epsilon of all rounds is known before" in text
    with pytest.raises(Mismatch, match="decides as it runs"):
        atoll.calibrate(boost, data, 3.0)


@dataclass(frozen=True)
class Backwards(FedLin):
    """FedLin that says its phases in the wrong order."""

    cycle = ("train", "gradient")


@dataclass(frozen=True)
class Half(FedLin):
    """FedLin that leaves a phase out of its rounds."""

    cycle = ("gradient",)


def test_rounds_are_as_the_method_says(digits: Federated) -> None:
    """The account and the count of asks rest on it."""
    check_method(METHOD, digits)
    with pytest.raises(AssertionError, match="a round asked gradient then train, and cycle says train then gradient"):
        check_method(Backwards(METHOD.model), digits)
    with pytest.raises(Mismatch, match="its cycle asks gradient: name all of them"):
        atoll.assemble(job(PLAIN, Half(METHOD.model)), digits)


# --- what a party agrees to -------------------------------------------------------------------------------------------


def assessed(text: str, policy: Policy | None = None, parties: int = 4) -> Assessment:
    """Assess a job as a party does, which holds the first quarter of the digits."""
    policy = policy or Policy(data={"use": "digits", "clients": 4, "party": 0})
    return assess(Session(policy, text, 0, parties, 10), "", "")


def objections(found: Assessment, **limits: Any) -> list[str]:
    return list(Policy(**limits).objections(found.manifest, now=datetime(2026, 5, 4, tzinfo=UTC)))


@pytest.fixture
def outside(installed: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return what a policy says of the installed parts, which are imported anew from where they are installed."""
    from atoll.job.parts import digest

    for name in [name for name in sys.modules if name.partition(".")[0] == "parts"]:
        monkeypatch.delitem(sys.modules, name)
    return {"outside": digest("outside")}


def outside_text(text: str) -> str:
    return text.replace("parts.drift:FedLin", "outside_fedlin")


def mine(outside: dict[str, str], **more: Any) -> Policy:
    return Policy(data={"use": "digits", "clients": 4, "party": 0}, parts=outside, **more)


def test_a_policy_judges_the_weakest_phase(outside: dict[str, str]) -> None:
    hidden = assessed(outside_text(HEAD), mine(outside))
    assert (hidden.manifest.combine, hidden.manifest.exposure) == ("secure_sum", "masked")
    assert objections(hidden, require=("secure_sum",)) == []
    assert hidden.manifest.length is not None
    mixed = assessed(outside_text(MIXED), mine(outside))
    assert (mixed.manifest.combine, mixed.manifest.exposure, mixed.manifest.length) == ("sum", "plain", None)
    allow, require = objections(mixed, require=("secure_sum",))
    assert allow.startswith("allow_plain: with sum the server reads this party's vector as it is")
    assert require.startswith("require: sum is not a real secure_sum")
    mixed_is_said(mixed.words)
    light = assessed(outside_text(LIGHT), mine(outside))
    assert light.manifest.combine == "light_sum"
    (semi,) = objections(light)
    assert semi.startswith("allow_semi_honest: light_sum protects from a semi-honest server only")
    (require,) = objections(light, allow_semi_honest=True, require=("secure_sum",))
    assert require.startswith("require: light_sum is not")


def book(folder: Path, found: Assessment, policy: Policy, *phases: str) -> None:
    """Give one answer of each phase, in this order."""
    budget = JobBudget(DataAccount(folder, "digits"), policy, found, "job")
    for phase in phases:
        budget.book(phase, evaluates=False)


def test_a_policy_counts_asks(outside: dict[str, str], tmp_path: Path) -> None:
    """Three rounds of two phases ask six times, at joining as later."""
    found = assessed(outside_text(HEAD), mine(outside))
    (said,) = objections(found, max_rounds=5)
    assert said.startswith("max_rounds: the job has 3 rounds, which ask a party 6 times, and 5 is the limit")
    assert objections(found, max_rounds=6) == []
    book(tmp_path, found, Policy(max_rounds=6), *["gradient", "train"] * 3)
    with pytest.raises(NotAllowed, match="max_rounds = 6"):
        book(tmp_path, found, Policy(max_rounds=6), "gradient")


def test_where_the_number_of_asks_is_not_known_the_sentence_says_so(outside: dict[str, str]) -> None:
    text = HEAD.replace('"digits"', '"breast_cancer"').split("stages")[0]
    text = text.replace(text.split("method = ")[1].split("\n")[0], '{ use = "outside_boost", trees = 3, depth = 2 }')
    policy = Policy(data={"use": "breast_cancer", "clients": 4, "party": 0}, parts=outside)
    found = assess(Session(policy, f"{text}stages = []\n", 0, 4, 2), "", "")
    assert (found.manifest.asks, found.manifest.fixed) == (found.answers, False)
    (said,) = objections(found, max_rounds=10, allow_plain=True)
    assert "the method decides as it runs how often they ask, here up to 18 times" in said


def test_a_party_counts_each_phase(outside: dict[str, str], tmp_path: Path) -> None:
    """A server that asks only the phase with less noise gets no more of it than one that asks both."""
    noisy = HEAD.replace('"ring"]', '{ use = "gaussian", multiplier = 2.0, where = "local" }]')
    noisy = noisy.replace('combine = "secure_sum"', 'combine = "sum"')
    found = assessed(outside_text(noisy), mine(outside))
    gradient, train = found.costs["gradient"], found.costs["train"]
    assert found.manifest.epsilon == epsilon(Counter({gradient: 3}) + Counter({train: 3}), 1e-5)
    limit = sum(epsilon({gradient: n}, 1e-5) for n in (4, 5)) / 2
    book(tmp_path / "limited", found, Policy(max_epsilon_job=limit), "gradient", "train", "gradient", "train")
    with pytest.raises(NotAllowed, match="max_epsilon_job"):
        book(tmp_path / "limited", found, Policy(max_epsilon_job=limit), "gradient")
    book(tmp_path / "job", found, Policy(), *["gradient"] * 3)
    with pytest.raises(NotAllowed, match="asked 4 times"):
        book(tmp_path / "job", found, Policy(), "gradient")
    book(tmp_path / "job", found, Policy(), *["train"] * 3)


def test_a_party_says_what_it_holds_and_no_more(outside: dict[str, str]) -> None:
    words = assessed(outside_text(HEAD), mine(outside)).words
    assert "this party, one of 4, holds 359 samples; it is not told what others hold" in words
    assert "parties hold" not in words


# --- between real parties ---------------------------------------------------------------------------------------------


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("grpc")
    from cast import Cast

    made = Cast(tmp_path, ("ada", "ben", "cleo", "dan"))
    yield made
    made.end()


def test_a_real_party_refuses_the_phase_that_its_policy_forbids(cast: Any, outside: dict[str, str]) -> None:
    recipe = '{ use = "digits", clients = 4 }'
    address = cast.open(outside_text(MIXED))
    words = cast.policy("ada", recipe).replace("allow_plain = true\n", "")
    process = cast.join(address, "ada", f'{words}parts = {{ outside = "{outside["outside"]}" }}\n')
    process.join(120)
    said = cast.log("ada")
    assert "allow_plain: with sum the server reads this party's vector as it is" in said
    assert "ended" not in said


def test_real_parties_that_allow_as_many_asks_as_there_are_stay_to_the_end(cast: Any, outside: dict[str, str]) -> None:
    """Secure sums in both phases, three rounds, six asks; one fewer is refused at joining, not in the middle."""
    recipe = '{ use = "digits", clients = 4 }'
    address = cast.open(outside_text(HEAD))
    digest = f'parts = {{ outside = "{outside["outside"]}" }}\n'

    def policy(party: str, most: int) -> str:
        words = cast.policy(party, recipe).replace("allow_plain = true\n", "")
        return f'max_rounds = {most}\nrequire = "secure_sum"\n{words}{digest}'

    refused = cast.join(address, "ada", policy("ada", 5))
    refused.join(120)
    assert "max_rounds: the job has 3 rounds, which ask a party 6 times, and 5 is the limit" in cast.log("ada")
    for party in cast.names:
        cast.join(address, party, policy(party, 6))
    run = cast.close(240)
    assert [fact["phase"] for fact in run.facts if fact["what"] == "round"] == ["gradient", "train"] * 3
    assert run.reason == "all 3 rounds done"
