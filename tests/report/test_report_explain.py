"""What `explain` says a job costs is what a run of it moves."""

import pytest

import atoll
from atoll.report.units import in_bytes


def job(select, **more):
    return atoll.Job(atoll.FedAvg(atoll.models.softmax()), select, rounds=7, every=3, **more)


def moved(run):
    """Return what the parties of a run receive and send: in a round, and to evaluate once."""
    turns = [f for f in run.facts if f["what"] == "round"]
    down = turns[0]["bytes_down"] // turns[0]["asked"]
    return turns, down, run.about["bytes_per_vector"] + down


@pytest.mark.parametrize("select", [atoll.Uniform(0.5), atoll.All(), atoll.InTurn(4)], ids=repr)
def test_the_whole_job_moves_what_was_said(select, digits):
    run = atoll.simulate(job(select), digits, workers=0)
    turns, down, _ = moved(run)
    looks = [f["round"] for f in run.facts if f["what"] == "look" and f["room"] == "own"]
    assert looks == [0, 3, 6, 7]
    evaluated = len(looks) * len(digits) * down
    whole = sum(f["bytes_up"] + f["bytes_down"] for f in turns) + evaluated
    said = atoll.explain(job(select), digits)
    assert f"the whole job at most {in_bytes(whole)}\n" in said
    each = f"all 12 parties receive the model 4 times to evaluate it on their own data: {in_bytes(4 * down)} each"
    assert f"{each}, {in_bytes(evaluated)} together" in said


def test_who_is_asked_beyond_need_is_counted(digits):
    """A quarter of 12 parties is 3, of which 150 % are 5."""
    select = atoll.Over(atoll.Uniform(0.25), 1.5)
    turns, down, both = moved(atoll.simulate(job(select), digits, workers=0))
    assert {(f["asked"], f["answered"]) for f in turns} == {(5, 3)}
    said = atoll.explain(job(select), digits)
    assert "about 3 of them in a round, for which 5 are asked" in said
    assert f"a round moves at most {in_bytes(5 * both)}" in said
    assert f"the whole job at most {in_bytes(7 * 5 * both + 4 * 12 * down)}" in said
    assert "for which" not in atoll.explain(job(atoll.Uniform(0.25)), digits)
    twice = atoll.Over(select, 1.2)
    assert {f["asked"] for f in moved(atoll.simulate(job(twice), digits, workers=0))[0]} == {6}
    assert "for which 6 are asked" in atoll.explain(job(twice), digits)


@pytest.mark.parametrize("select", [atoll.Poisson(0.5), atoll.Over(atoll.Poisson(0.5))], ids=repr)
def test_what_is_an_average_is_said_to_be_one(select, digits):
    (cost,) = [line for line in atoll.explain(job(select), digits).splitlines() if "a round moves" in line]
    assert cost.count("about") == 2
    assert "at most" not in cost


def test_without_own_test_data_nobody_is_sent_a_model_to_evaluate():
    data = atoll.data.build({"use": "digits", "clients": 12}, 0)
    run = atoll.simulate(job(atoll.All()), data, workers=0)
    said = atoll.explain(job(atoll.All()), data)
    assert "to evaluate" not in said
    assert f"at most {in_bytes(sum(f['bytes_up'] + f['bytes_down'] for f in moved(run)[0]))}\n" in said


def test_a_served_job_is_not_called_a_simulation(digits):
    noisy = atoll.Channel([atoll.Clip(1.0), atoll.Average(by="expected"), atoll.Gaussian(1.0)], atoll.Sum())
    private = job(atoll.Uniform(0.5), channel=noisy)
    assert "simulat" in atoll.explain(private, digits)
    served = atoll.explain(private, digits, served=True)
    assert "simulat" not in served
    assert "the noise comes from the operating system" in served
