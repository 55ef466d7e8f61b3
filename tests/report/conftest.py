"""Runs to report on: one that was run, and any number that are made up."""

import copy

import numpy as np
import pytest


def means(unit, delta):
    """What an ε means, as an account notes it."""
    terms = {"unit": unit, "neighbours": "add-or-remove-one", "sampling": "poisson", "rate": 0.5}
    return {**terms, "delta": delta, "accountant": "RDP"}


def made_up(*, parties=20, classes=10, rounds=12, splits=("test", "local"), kind="classes", ended=True, names=(),
            private=()):  # fmt: skip
    """Make (about, facts) as a run would note them; `private` names the units that noise protects."""
    rng = np.random.default_rng(parties + rounds)
    shape = (min(parties, 200), classes if kind == "classes" else 1)
    counts = rng.integers(0, 30, shape) + (np.arange(shape[1]) == 0)
    n = counts.sum(axis=1)
    job = {"name": "made up", "rounds": rounds, "seed": 0, "eval_every": 1, "data": {"use": "digits"}}
    job |= {"method": {"use": "fedavg", "model": {"use": "softmax"}}, "stages": [{"use": "weigh"}], "stop": []}
    better = {"accuracy": "high", "loss": "low"} if kind == "classes" else {"mse": "low", "loss": "low", "r2": "high"}
    about = {
        "job": job, "parties": parties, "parameters": 650, "cohort": max(1, parties // 2), "bytes_per_vector": 2604,
        "better": better,
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
                "bytes_down": 2600 * asked, "seconds": 0.05, "work": 0.03, "compile": 0.4 * (t == 1),
                "update_norm": 0.1,
                "time": t * 0.06,
            })  # fmt: skip
        facts += [evaluation(split, t, rounds, kind, parties, rng) for split in splits]
    if ended:
        facts.append(
            {
                "what": "end",
                "round": rounds,
                "reason": f"all {rounds} rounds done",
                "complete": True,
                "time": rounds * 0.06 + 0.2,
            }
        )
    return protected(about, facts, private) if private else (about, facts)


def protected(about, facts, units):
    """Add what clipping, noise, a sum that hides its vectors and an accountant note; round 2 opens nothing."""
    about["seen"] = {
        "server": "the noisy sum of at least 7 vectors (simulated: the same integers are added up in the clear)",
        "other parties": "the shared model only",
        "network": "nothing: this is a simulation in one machine",
        "not promised": "that the sum is right",
    }
    about["pipeline"] = ["1. clip(norm=1.0): Scale a vector down.", "so it travels as 652 numbers"]
    about["job"]["stages"] = [{"use": "clip", "norm": 1.0, "quantile": 0.75}, {"use": "gaussian", "multiplier": 0.8}]
    about["job"]["stop"] = [{"use": "budget", "epsilon": 8.5, "delta": 1e-3}]
    about["privacy"] = {"epsilon_means": means(units[0], 1e-3), "epsilon_planned": 7.654321}
    about["simulated"] = True
    for fact in facts:
        t = fact.get("round", 0)
        if fact["what"] == "start":
            fact.update(about)
        elif fact["what"] == "round":
            fact |= {"clipped": 0.5 / t, "clip_norm": 1.5 / t, "noise_share": 1 - 0.5 / t}
        if fact["what"] in ("round", "end"):
            names = ["epsilon", *(f"epsilon_{unit}" for unit in units[1:])]
            for k, name in enumerate(names):
                fact[name] = (k + 1) * (0.5 + t / 3)
                if fact["what"] == "end":
                    fact |= {
                        f"{name}_tight": (k + 1) * t / 3,
                        f"{name}_means": means(units[k], 10.0 ** (-3 - k)),
                    }
        if fact["what"] == "round" and t == 2:
            why = f"4 of {fact['asked']} answered, 7 are needed: nothing was opened"
            fact |= {"answered": 0, "bytes_up": 0, "lost": fact["asked"] - 4, "needed": 7, "aborted": why}
    return about, facts


def evaluation(split, t, rounds, kind, parties, rng):
    better = 1 - np.exp(-4 * t / max(rounds, 1))
    fact = {
        "what": "evaluation",
        "round": t,
        "split": split,
        "loss": float(2.3 - 2 * better),
        "seconds": 0.002,
        "parties": 1,
    }
    name = "accuracy" if kind == "classes" else "mse"
    each = np.sort(np.clip(rng.normal(0.1 + 0.8 * better, 0.1, min(parties, 500)), 0, 1))
    fact |= {"accuracy": float(each.mean())} if kind == "classes" else {"mse": float(each.mean()), "r2": float(better)}
    if split == "local" and parties > 1:
        worst = each[: max(1, len(each) // 10)] if kind == "classes" else each[-max(1, len(each) // 10) :]
        top = each.max() if kind == "classes" else each.min()
        fact |= {"parties": parties, f"{name}.mean": float(each.mean()), f"{name}.worst10": float(worst.mean())}
        fact |= {f"{name}.best": float(top), "each": [round(float(v), 4) for v in each]}
        fact |= {"bytes_up": 200 * parties, "bytes_down": 2600 * parties}
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


@pytest.fixture(scope="session")
def _ran_privately():
    import atoll

    data = atoll.data.build({"use": "digits", "clients": 10, "by": "iid"}, 0)
    stages = [atoll.Clip(0.3, quantile=0.5), atoll.Average("expected"), atoll.Gaussian(2.0)]
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax(), epochs=1), atoll.Poisson(0.5),
                    atoll.Channel(stages, atoll.Sum()), rounds=9, stop=[atoll.Budget(1.8, 0.01)],
                    availability=atoll.Always(drop=0.2))  # fmt: skip
    return atoll.simulate(job, data, 0, workers=0)


@pytest.fixture
def private_run(_ran_privately):
    """A real run with adaptive clipping and Gaussian noise, which ends when its budget is spent."""
    return copy.deepcopy((dict(_ran_privately.about), _ran_privately.facts))


CASES = {
    "whole": {},
    "no end": {"ended": False},
    "no local split": {"splits": ("test",)},
    "no central test": {"splits": ("local",)},
    "no look at all": {"splits": ()},
    "only a start": {"rounds": 0, "splits": (), "ended": False},
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


@pytest.fixture(params=list(CASES))
def private_case(request):
    """The same runs with everything on them that protects."""
    units = ("party", "example") if len(request.param) % 2 else ("party",)
    return (request.param, *made_up(**CASES[request.param], private=units))
