"""Runs to report on: one that was run, and any number that are made up."""

import copy

import numpy as np
import pytest


def made_up(*, parties=20, classes=10, rounds=12, rooms=("test", "own"), kind="classes", ended=True, names=()):
    """Make (about, facts) as a run would note them."""
    rng = np.random.default_rng(parties + rounds)
    shape = (min(parties, 200), classes if kind == "classes" else 1)
    counts = rng.integers(0, 30, shape) + (np.arange(shape[1]) == 0)
    n = counts.sum(axis=1)
    job = {"name": "made up", "rounds": rounds, "seed": 0, "every": 1, "data": {"use": "digits"}}
    job |= {"method": {"use": "fedavg", "model": {"use": "softmax"}}, "stages": [{"use": "weigh"}], "stop": []}
    about = {
        "job": job, "parties": parties, "parameters": 650, "cohort": max(1, parties // 2), "bytes_per_vector": 2604,
        "kind": kind, "classes": classes if kind == "classes" else 0, "names": list(names),
        "sizes": {"least": int(n.min()), "mean": float(n.mean()), "most": int(n.max()), "all": int(n.sum())},
        "partition": counts.tolist(), "environment": {"python": "3.11.7", "machine": "x86_64", "cores": "2"},
    }  # fmt: skip
    facts = [{"what": "start", "round": 0, **about, "time": 0.01}]
    for t in range(rounds + 1):
        if t:
            asked = about["cohort"]
            facts.append({
                "what": "round", "round": t, "asked": asked, "answered": asked, "bytes_up": 2604 * asked,
                "bytes_down": 2600 * asked, "seconds": 0.05, "work": 0.03, "compile": 0.4 * (t == 1), "moved": 0.1,
                "time": t * 0.06,
            })  # fmt: skip
        facts += [look(room, t, rounds, kind, parties, rng) for room in rooms]
    if ended:
        facts.append(
            {"what": "end", "round": rounds, "reason": f"all {rounds} rounds done", "time": rounds * 0.06 + 0.2}
        )
    return about, facts


def look(room, t, rounds, kind, parties, rng):
    better = 1 - np.exp(-4 * t / max(rounds, 1))
    fact = {"what": "look", "round": t, "room": room, "loss": float(2.3 - 2 * better), "seconds": 0.002, "parties": 1}
    name = "accuracy" if kind == "classes" else "mse"
    each = np.sort(np.clip(rng.normal(0.1 + 0.8 * better, 0.1, min(parties, 500)), 0, 1))
    fact |= {"accuracy": float(each.mean())} if kind == "classes" else {"mse": float(each.mean()), "r2": float(better)}
    if room == "own" and parties > 1:
        worst = each[: max(1, len(each) // 10)] if kind == "classes" else each[-max(1, len(each) // 10) :]
        top = each.max() if kind == "classes" else each.min()
        fact |= {"parties": parties, f"{name}.mean": float(each.mean()), f"{name}.worst10": float(worst.mean())}
        fact |= {f"{name}.best": float(top), "each": [round(float(v), 4) for v in each]}
    return fact


@pytest.fixture
def tell():
    return made_up


@pytest.fixture(scope="session")
def _ran(tmp_path_factory):
    import atoll

    data = atoll.data.build({"use": "digits", "clients": 6, "by": "dirichlet", "alpha": 0.5, "test": 0.2}, 0)
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax(), epochs=1), select=atoll.Uniform(0.5), rounds=4, name="digits",
                    availability=atoll.Always(drop=0.2))  # fmt: skip
    return atoll.simulate(job, data, 0, out=tmp_path_factory.mktemp("runs"), workers=0)


@pytest.fixture
def run(_ran):
    """A real run on digits: 6 parties, 4 rounds, some answers lost."""
    return copy.deepcopy((dict(_ran.about), _ran.facts))


CASES = {
    "whole": {},
    "no end": {"ended": False},
    "no own room": {"rooms": ("test",)},
    "no central test": {"rooms": ("own",)},
    "no look at all": {"rooms": ()},
    "only a start": {"rounds": 0, "rooms": (), "ended": False},
    "no round yet": {"rounds": 0, "ended": False},
    "regression": {"kind": "real"},
    "regression of many": {"kind": "real", "parties": 300},
    "one party": {"parties": 1},
    "two parties": {"parties": 2},
    "two hundred": {"parties": 200},
    "ten thousand, a hundred classes": {"parties": 10_000, "classes": 100},
    "named": {"parties": 4, "names": ("Basel", "Genève", "Zürich", "St. Gallen im Osten")},
    "one round": {"rounds": 1},
}


@pytest.fixture(params=list(CASES))
def case(request):
    """Every kind of run that a report has to cope with."""
    return (request.param, *made_up(**CASES[request.param]))
