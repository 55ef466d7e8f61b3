"""What `explain` says a job costs is what a run of it moves."""

from dataclasses import replace

import pytest
from typer.testing import CliRunner

import atoll
from atoll.cli.app import app
from atoll.core.wire import Mismatch
from atoll.core.world import World
from atoll.report.units import in_bytes


def job(select, **more):
    return atoll.Job(atoll.FedAvg(atoll.models.softmax()), select, rounds=7, eval_every=3, **more)


def moved(run):
    """Return the rounds of a run and its evaluations on own data, as facts, and what a party moves in a round."""
    turns = [f for f in run.facts if f["what"] == "round"]
    evaluations = [f for f in run.facts if f["what"] == "evaluation" and f["split"] == "local"]
    both = turns[0]["bytes_down"] // turns[0]["asked"] + turns[0]["bytes_up"] // turns[0]["answered"]
    return turns, evaluations, both


def together(facts):
    return sum(f["bytes_up"] + f["bytes_down"] for f in facts)


@pytest.mark.parametrize("select", [atoll.Uniform(0.5), atoll.All(), atoll.RoundRobin(4)], ids=repr)
def test_the_whole_job_moves_what_was_said(select, digits):
    run = atoll.simulate(job(select), digits, workers=0)
    turns, evaluations, _ = moved(run)
    assert [f["round"] for f in evaluations] == [0, 3, 6, 7]
    evaluated, sums = together(evaluations), evaluations[0]["bytes_up"] // 12
    assert sums > 8 * len(atoll.assemble(job(select), digits).program.evaluation.sums)
    said = atoll.explain(job(select), digits)
    assert f"the whole job at most {in_bytes(together(turns) + evaluated)}\n" in said
    each = (
        f"all 12 parties receive the model 4 times to evaluate it on their own data, and send {in_bytes(sums)} of sums"
    )
    assert f"{each} each time: {in_bytes(evaluated / 12)} each, {in_bytes(evaluated)} together" in said


def test_sums_over_own_test_data_cost_what_their_hidden_sum_does(digits):
    channel = atoll.Channel([atoll.Clip(1.0), atoll.Average(), atoll.Ring()], atoll.SecureSum())
    hidden = job(atoll.All(), channel=channel)
    made = atoll.assemble(hidden, digits)
    told = made.program.evaluation_cost.each.up
    assert told > 8 * len(made.program.evaluation.sums)
    assert f"and send {in_bytes(told)} of sums each time" in atoll.explain(hidden, digits)
    assert "the parties' own test data (the sum over all parties only)" in atoll.explain(hidden, digits)
    assert "the parties' own test data (each party's sums)" in atoll.explain(job(atoll.All()), digits)


def test_who_is_asked_beyond_need_is_counted(digits):
    """A quarter of 12 parties is 3, of which 150 % are 5."""
    select = atoll.Oversample(atoll.Uniform(0.25), 1.5)
    turns, evaluations, both = moved(atoll.simulate(job(select), digits, workers=0))
    assert {(f["asked"], f["answered"]) for f in turns} == {(5, 3)}
    said = atoll.explain(job(select), digits)
    assert "about 3 of them in a round, for which 5 are asked" in said
    assert f"a round moves at most {in_bytes(5 * both)}" in said
    assert f"the whole job at most {in_bytes(7 * 5 * both + together(evaluations))}" in said
    assert "for which" not in atoll.explain(job(atoll.Uniform(0.25)), digits)
    twice = atoll.Oversample(select, 1.2)
    assert {f["asked"] for f in moved(atoll.simulate(job(twice), digits, workers=0))[0]} == {6}
    assert "for which 6 are asked" in atoll.explain(job(twice), digits)


@pytest.mark.parametrize("select", [atoll.Poisson(0.5), atoll.Oversample(atoll.Poisson(0.5))], ids=repr)
def test_what_is_an_average_is_said_to_be_one(select, digits):
    (cost,) = [line for line in atoll.explain(job(select), digits).splitlines() if "a round moves" in line]
    assert cost.count("about") == 2
    assert "at most" not in cost


def test_without_own_test_data_nobody_is_sent_a_model_to_evaluate():
    data = atoll.data.build({"use": "digits", "clients": 12}, 0)
    run = atoll.simulate(job(atoll.All()), data, workers=0)
    said = atoll.explain(job(atoll.All()), data)
    assert "to evaluate" not in said
    assert f"at most {in_bytes(together(moved(run)[0]))}\n" in said


def test_a_served_job_is_not_called_a_simulation(digits):
    noisy = atoll.Channel([atoll.Clip(1.0), atoll.Average(by="expected"), atoll.Gaussian(1.0)], atoll.Sum())
    private = job(atoll.Uniform(0.5), channel=noisy)
    assert "simulat" in atoll.explain(private, digits)
    served = atoll.explain(private, digits, world=World.real(0))
    assert "simulat" not in served
    assert "the noise comes from the operating system" in served


def test_a_party_does_not_know_what_the_server_evaluates(digits):
    alone = replace(digits, test=None, local=None)
    assert "never evaluated: no test data" in atoll.explain(job(atoll.All()), alone)
    assert "a server may have test data of its own" in atoll.explain(job(atoll.All()), alone, world=World.real(0))


def test_noise_that_only_a_simulation_may_draw_is_refused_before_anybody_is_asked(digits):
    stages = [atoll.Clip(1.0), atoll.Average(by="expected"), atoll.TreeNoise(1.0, every=2)]
    tree = job(atoll.RoundRobin(6), channel=atoll.Channel(stages, atoll.Sum()))
    assert "the noise is simulated" in atoll.explain(tree, digits)
    with pytest.raises(Mismatch, match="which only a simulation may"):
        atoll.explain(tree, digits, world=World.real(0))


@pytest.mark.parametrize(("deployed", "network"), [([], "all parties are on this machine"), (["--deployed"], "TLS")])
def test_the_command_explains_a_simulation_or_a_deployment(deployed, network, tmp_path):
    said = CliRunner().invoke(app, ["explain", "private", *deployed]).stdout
    assert ("simulat" in said) == (not deployed)
    assert network in said
    roles = tmp_path / "job.toml"
    roles.write_text('name = "m"\nprogram = "joint_moments"\n[roles]\nA = "bank"\nB = "shop"\nC = "notary"\n')
    assert network in CliRunner().invoke(app, ["explain", str(roles), *deployed]).stdout


def test_epsilon_is_written_as_the_report_writes_it_never_less(digits):
    """Three digits, rounded up: "3" where 3.01 was spent would promise too much."""
    from decimal import Decimal

    from atoll.privacy.account import in_epsilon

    for multiplier in (0.8, 1.0, 1.3, 2.0):
        stages = [atoll.Clip(1.0), atoll.Average(by="expected"), atoll.Gaussian(multiplier)]
        private = job(atoll.Poisson(0.5), channel=atoll.Channel(stages, atoll.Sum()))
        spent = atoll.assemble(private, digits).ledger.of().epsilon(7)
        assert f"epsilon {in_epsilon(spent)} after all 7 rounds" in atoll.explain(private, digits)
        assert Decimal(in_epsilon(spent)) >= Decimal(repr(spent))


def test_a_party_is_told_of_its_own_samples_only(digits):
    said = atoll.explain(job(atoll.All()), digits, world=World.real(0), own=True)
    assert f"this party, one of 12, holds {int(digits.train.sizes[0])} samples" in said
    assert "parties hold" not in said


CHANNELS = {
    "nothing bounds its vector; put Clip(norm) before Weigh(max_weight=…)": atoll.Channel(),
    "nothing bounds its vector; put Clip(norm) before Average()": atoll.Channel([atoll.Average()]),
    "or combine with Each(Median())": atoll.Channel([atoll.Average()], atoll.Each(atoll.TrimmedMean(0))),
    "the server sees the sum only": atoll.Channel([atoll.Clip(1.0), atoll.Average(), atoll.Ring()], atoll.SecureSum()),
    "integers of a ring are not checked": atoll.Channel([atoll.Clip(1.0), atoll.Average(), atoll.Ring()]),
    "put Clip(norm) before": atoll.Channel([atoll.Clip(1.0), atoll.Weigh()]),
    "": atoll.Channel([atoll.Clip(1.0), atoll.Weigh(max_weight=100)]),
    " ": atoll.Channel([atoll.Clip(1.0), atoll.Average()]),
    "  ": atoll.Channel([atoll.Average()], atoll.Each(atoll.Median())),
    "   ": atoll.Channel([atoll.Average()], atoll.Each(atoll.TrimmedMean(1))),
}


@pytest.mark.parametrize("why", CHANNELS, ids=lambda why: repr(CHANNELS[why]))
def test_one_line_says_when_one_party_can_set_the_model(why, digits):
    lines = atoll.explain(job(atoll.All(), channel=CHANNELS[why]), digits).splitlines()
    said = [line for line in lines if "can set the model at will" in line]
    assert len(said) == bool(why.strip())
    assert all(line.startswith("  one of 12 parties can set the model at will: ") and why in line for line in said)


@pytest.mark.parametrize(
    ("stages", "readable"),
    [
        ([atoll.Weigh()], True),
        ([atoll.Clip(1.0), atoll.Weigh(max_weight=9), atoll.TopK(0.1)], True),
        ([atoll.Average()], False),
        ([atoll.Clip(1.0), atoll.Weigh(max_weight=9), atoll.Gaussian(1.0, "local")], False),
    ],
)
def test_a_line_says_how_much_weight_a_server_accepts(stages, readable, digits):
    said = atoll.explain(job(atoll.All(), channel=atoll.Channel(stages)), digits)
    assert ("no more weight than a party's declared samples give, of an edge than its parties' do" in said) == readable
