"""Twenty audits by canary, drawn at random: `python tests/security/canaries.py`.

Each row is a job with noise: local, central, distributed, or of single examples. It runs as a simulation, as real party
code in this process (private draws from the operating system, hidden sums with their whole protocol), or between
processes of `atoll serve` and `atoll join` over sockets with TLS. The ε is the one that Atoll states itself, in the
facts of the run or in the party's own account. Clip, rounds, rate, parties and noise are drawn from a seed, among jobs
that state an ε between 2 and 4 at δ = 1e-5; below 2, a quarter of the noise needs more trials to be seen.

A canary is the worst case: its gradient is longer than the clip, along a weight of its own. Its score is its number in
what the attacker sees, added over the rounds. Scores without a canary are those of weights that nobody has (neighbours
add or remove one, or zero it out). Where the promise is about a vector that is replaced, as with local noise, the two
canaries are opposite vectors. Noise is independent from weight to weight, so all scores are independent.

The lower bound on ε is that of Clopper and Pearson; half of the scores choose a threshold, the other half test it. Each
job runs twice: as it is, and with a quarter of its noise. The first must stay below the stated ε at 95 %; the second
must be above it at 99.75 %, so that all twenty findings hold together at 95 %.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "network" / "faults")]

from cluster import Cluster  # noqa: E402

import atoll  # noqa: E402
import spawn  # noqa: E402
from atoll.attacks.canary import Canaries  # noqa: E402
from atoll.core.tree import Array  # noqa: E402
from atoll.core.wire import Mismatch  # noqa: E402
from atoll.core.world import World  # noqa: E402
from atoll.data.federated import Federated, Silos  # noqa: E402
from atoll.job.assemble import assemble  # noqa: E402
from atoll.job.file import dumps, to_table  # noqa: E402
from atoll.privacy import PrivacyAudit, audit_scores  # noqa: E402
from atoll.runtimes.local.worker import Chunk, Worker  # noqa: E402
from atoll.runtimes.network.party.assess import assess  # noqa: E402
from atoll.runtimes.network.party.policy import Policy  # noqa: E402
from atoll.runtimes.network.party.session import Session  # noqa: E402
from atoll.runtimes.run import _train  # noqa: E402

SEED, DELTA, EACH, TOGETHER = 12, 1e-5, 0.95, 0.9975  # 1 − 0.05/20
MODES = ("simulated", "simulated", "in process", "in process", "sockets")
LONG, FAR = 1e3, 1e8  # of a canary's x and y: its gradient points along its weight, and stays longer than the clip
WHAT = "train/contribute"


@dataclass(frozen=True)
class Audited:
    """A job that is audited: its kind, who runs it, and what was drawn.

    Args:
        kind: where the noise is.
        mode: who runs it.
        seed: of the job.
        sigma: multiplier of the noise.
        clip: norm of a vector, or of an example's gradient.
        rounds: of which one trial is made.
        n: parties, or examples of one party.
        rate: of Poisson cohorts, or of batches of examples; 1: everybody, every time.
    """

    kind: str
    mode: str
    seed: int
    sigma: float
    clip: float
    rounds: int
    n: int
    rate: float

    @property
    def canaries(self) -> Canaries:
        """The party of an audit of examples."""
        batch = None if self.rate == 1 else round(self.rate * self.n)
        return Canaries(atoll.ExampleDP(self.clip, self.sigma), batch=batch, size=self.n)

    def data(self) -> Federated:
        """One canary for each party, along a weight of its own; opposite ones along the same."""
        if self.kind == "example":
            return Federated(self.canaries.samples(), kind="real")
        me = np.arange(self.n)
        x = np.zeros((self.n, 1 if self.kind == "local" else self.n + EMPTY), np.float32)
        x[me, 0 if self.kind == "local" else me] = LONG
        y = np.where((me % 2 == 1) & (self.kind == "local"), -FAR, FAR).astype(np.float32)
        return Federated(Silos(x, y, np.arange(self.n + 1)), kind="real")

    def job(self, trials: int = 1) -> atoll.Job:
        rounds, stop = self.rounds * trials, [atoll.Budget(1e9, DELTA)]
        if self.kind == "example":
            method = replace(self.canaries.method, model=atoll.models.linear())
            return atoll.Job(method, atoll.All(), rounds=rounds, stop=stop)
        hidden = self.kind == "distributed"
        noise = atoll.Gaussian(self.sigma, where=self.kind)  # type: ignore[arg-type]
        stages = [atoll.Clip(self.clip), atoll.Average("expected"), *([atoll.Ring()] if hidden else []), noise]
        channel = atoll.Channel(stages, atoll.SecureSum() if hidden else atoll.Sum())
        select = atoll.All() if self.rate == 1 else atoll.Poisson(self.rate)
        return atoll.Job(atoll.FedAvg(atoll.models.linear(), lr=1.0), select, channel, rounds=rounds, stop=stop)

    def world(self, again: int = 0) -> World:
        return (World.simulated if self.mode == "simulated" else World.real)(self.seed + again)

    def ledger(self) -> float:
        """Return the ε of one trial by the ledger of the job; 0 where there is no such job."""
        try:
            made = assemble(self.job(), self.data(), self.seed, world=self.world())
        except Mismatch:  # noise that is too small for the ring
            return 0.0
        return float(made.ledger.spent(self.rounds)["epsilon"]) if made.ledger else 0.0  # type: ignore[arg-type]

    def quartered(self) -> Audited:
        return replace(self, sigma=self.sigma / 4)


class Seen(NamedTuple):
    """What an attacker has: the ε that was stated, scores with a canary, scores without."""

    stated: float
    present: Array
    absent: Array


EMPTY = 400  # weights that nobody has
# Trials: each of them has one score for every canary, and there are fewer canaries where each is a party of its own.
TRIALS = {"many": 20, "few": 200, "vectors": 4, "asks": 4000, "examples": 40, "rounds": 1600, "models": 300}
# Of each kind: how many parties or examples there are where they are simulated, and where each is a process or has its
# own part of a protocol; the most rounds of a trial; rates, and rates where the population is small.
RANGES: dict[str, tuple[tuple[int, int], tuple[int, int], int, tuple[float, ...], tuple[float, ...]]] = {
    "local": ((2000, 4000), (4, 4), 2, (1.0,), (1.0,)),
    "central": ((200, 400), (3, 5), 5, (1.0, 0.5, 0.25), (1.0, 0.5)),
    "distributed": ((200, 400), (3, 6), 3, (1.0, 0.5, 0.25), (1.0,)),
    "example": ((200, 500), (200, 500), 4, (1.0, 0.5, 0.25), (1.0, 0.5, 0.25)),
}


@cache
def drawn(seed: int) -> tuple[Audited, ...]:
    """Draw twenty jobs: five of each kind, of which two simulated, two in this process, one over sockets."""
    generator, found = np.random.default_rng(seed), list[Audited]()
    for kind in RANGES:
        for mode in MODES:
            one = _draw(kind, mode, generator)
            while not (2 <= one.ledger() <= 4 and one.quartered().ledger()):
                one = _draw(kind, mode, generator)
            found.append(one)
    return tuple(found)


def _draw(kind: str, mode: str, generator: np.random.Generator) -> Audited:
    many, few, most, rates, rates_of_few = RANGES[kind]
    small = mode == "sockets" or (mode == "in process" and kind in ("local", "distributed"))
    size = int(generator.integers(*(few if small else many), endpoint=True))
    return Audited(
        kind, mode, int(generator.integers(1000)), round(exp(generator.uniform(log(0.8), log(12))), 2),
        round(exp(generator.uniform(log(0.1), log(2))), 2),
        1 if kind == "local" and mode == "sockets" else int(generator.integers(1, most, endpoint=True)),
        size - size % 2 if kind in ("local", "example") else size,
        float(generator.choice(rates_of_few if small else rates)),
    )  # fmt: skip


def split(one: Audited, stated: float, moved: Array) -> Seen:
    """Tell the numbers of canaries from those of weights that nobody has; a row of `moved` is a trial."""
    if one.kind == "example":
        scores, there = np.array([one.canaries.scores(row) for row in moved]), one.canaries.present
    else:
        scores, there = moved / one.clip, np.arange(moved.shape[1]) < one.n
    return Seen(stated, scores[:, there].ravel(), scores[:, ~there].ravel())


def opposite(one: Audited, stated: float, vectors: Array) -> Seen:
    """Tell parties from those with the opposite canary: a row of `vectors` is a party, a column a trial."""
    return Seen(stated, vectors[::2].ravel() / one.clip, vectors[1::2].ravel() / one.clip)


def trained(one: Audited) -> Seen:
    """Look at the models of whole runs in this process."""
    runs = TRIALS["many" if one.n > 100 else "few"]
    found, data = list[tuple[float, Array]](), one.data()
    for again in range(runs):
        run = _train(one.job(), data, one.world(again), None, None, (), {"workers": 0})
        divisor = 1 if one.kind == "example" else one.job().select.expected(one.n)
        found.append((run.facts[-1]["epsilon"], np.asarray(run.vector[:-1], np.float64) * divisor))
    return split(one, found[0][0], np.array([model for _, model in found]))


def simulated_vectors(one: Audited) -> Seen:
    """Look at single vectors of all parties of a simulation."""
    made = assemble(one.job(), one.data(), one.seed, world=one.world())
    assert made.ledger is not None
    everybody, trials = np.arange(one.n), TRIALS["vectors"]
    worker = Worker(made.handlers, made.splits, one.world())
    rows = [answered(worker, t, everybody, 2)[:, 0] for t in range(trials * one.rounds)]
    sums = np.array(rows).reshape(trials, one.rounds, one.n).sum(1)
    return opposite(one, made.ledger.spent(one.rounds, last=True)["epsilon"], sums.T)  # type: ignore[arg-type]


def answered(worker: Worker, t: int, me: Array, size: int) -> Array:
    """Ask for vectors, from a model of zeros."""
    body = {"broadcast": {"params": np.zeros(size, np.float32), "lr": 1.0}, "t": t}
    return np.asarray(worker.answer(Chunk(WHAT, t, me, None, ()), body).each["vector"], np.float64)


def sessions(one: Audited) -> Seen:
    """Look at the vectors of real parties in this process, each made from the job text and its own policy."""
    with tempfile.TemporaryDirectory() as folder:
        data = one.data()
        recipe = {"use": "saved", "folder": str(data.save(Path(folder) / "data"))}
        text, vectors = dumps(to_table(one.job(), recipe, one.seed)), list[Array]()
        trials = TRIALS["examples" if one.kind == "example" else "asks"]
        for me in range(len(data))[:2]:
            session = Session(Policy(allow_plain=True, data={**recipe, "party": me}), text, me, len(data), 0)
            stated = assess(session, "", "").manifest.epsilon
            assert stated is not None
            worker, who = session.create(), np.array([me])
            if one.kind == "example":
                rows = np.array([_change(answered(worker, t, who, one.n + 1)[0]) for t in range(trials * one.rounds)])
                return split(one, stated, rows.reshape(trials, one.rounds, -1).sum(1))
            rows = np.array([answered(worker, t, who, 2)[0, 0] for t in range(trials * one.rounds)])
            vectors.append(rows.reshape(trials, one.rounds).sum(1))
    return opposite(one, stated, np.array(vectors))


def _change(vector: Array) -> Array:
    """What a server reads of a weighted change and its weight."""
    return np.asarray(vector[:-2] / vector[-1])


def sockets(one: Audited) -> Seen:
    """Look at what a curious server sees of parties that are processes."""
    trials = TRIALS[{"local": "rounds", "example": "examples"}.get(one.kind, "models")]
    with tempfile.TemporaryDirectory() as name, spawn.cleared():
        folder = Path(name)
        data = one.data()
        where = data.save(folder / "data")
        text = dumps(to_table(one.job(trials), {"use": "saved", "folder": str(where)}, one.seed))
        cluster = Cluster(folder, text, len(data), f'use = "saved", folder = "{where}"')
        server = cluster.serve(code=f"import sys; sys.path.insert(0, {str(HERE)!r}); import curious; curious.main()")
        cluster.join_all()
        cluster.ends(server, 900)
        stated = next(fact["epsilon"] for fact in cluster.facts("round") if fact["round"] == one.rounds)
        features = data.train.x.shape[1]
        seen = np.fromfile(folder / ("vectors.bin" if one.kind == "local" else "models.bin"))
    if one.kind == "local":
        table = seen.reshape(-1, features + 3)  # the ask, the party, weights and a bias
        there = table[:, 1] % 2 == 0
        return Seen(stated, table[there, 2] / one.clip, table[~there, 2] / one.clip)
    by_ask = {int(row[0]): row[1:-1] for row in seen.reshape(-1, features + 2)}
    after = np.array([by_ask[t] for t in range(0, trials * one.rounds + 1, one.rounds)])
    divisor = 1 if one.kind == "example" else one.job().select.expected(one.n)
    return split(one, stated, np.diff(after, axis=0) * divisor)


def look(one: Audited) -> Seen:
    """Take the attacker's place."""
    if one.mode == "sockets":
        return sockets(one)
    if one.mode == "in process" and one.kind in ("local", "example"):
        return sessions(one)
    return simulated_vectors(one) if one.kind == "local" else trained(one)


class Row(NamedTuple):
    """What came of one job: as it is, and with a quarter of its noise."""

    one: Audited
    trials: tuple[int, int]
    honest: PrivacyAudit
    quarter: PrivacyAudit

    @property
    def good(self) -> bool:
        return not self.honest.caught and self.quarter.caught and self.honest.claimed <= 4

    def text(self, number: int) -> str:
        one, (present, absent) = self.one, self.trials
        words = "as promised" if self.good else "REFUTED" if self.honest.caught else "NOT SEEN"
        return (
            f"{number:2d}  {one.kind:<11} {one.mode:<10} {one.sigma:6.2f} {one.clip:5.2f} {one.rounds:6d} {one.n:5d} "
            f"{one.rate:5.2f} {present:7d} {absent:7d} {self.honest.claimed:7.2f} {self.honest.lower:8.2f} "
            f"{self.quarter.lower:8.2f}   {words}"
        )


def audited(one: Audited, see: Callable[[Audited], Seen] = look) -> Row:
    """Audit a job: the stated ε is that of the job as it is."""
    stated, present, absent = see(one)
    weak = see(one.quartered())
    return Row(
        one, (len(present), len(absent)), audit_scores(present, absent, stated, DELTA, EACH),
        audit_scores(weak.present, weak.absent, stated, DELTA, TOGETHER),
    )  # fmt: skip


HEAD = "     kind        parties     noise  clip rounds     n  rate   canary without  stated  bound   quarter"


def main(options: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the twenty jobs (default: {SEED})")
    parser.add_argument("--rows", type=int, nargs="*", help="only these, from 1 (default: all)")
    chosen = parser.parse_args(options)
    _say(f"twenty jobs of seed {chosen.seed}, delta {DELTA:g}; n: parties, or examples of one party\n{HEAD}")
    rows = []
    for number, one in enumerate(drawn(chosen.seed), 1):
        if not chosen.rows or number in chosen.rows:
            rows.append(audited(one))
            _say(rows[-1].text(number))
    below, above = sum(not row.honest.caught for row in rows), sum(row.quarter.caught for row in rows)
    _say(f"\n{below} of {len(rows)} below the stated epsilon (each at {EACH:.0%}); with a quarter of the noise {above}")
    _say(f"above it (each at {TOGETHER:.2%}: twenty together at 95%); {sum(os.times()[:4]) / 60:.1f} CPU minutes")
    return 0 if all(row.good for row in rows) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
