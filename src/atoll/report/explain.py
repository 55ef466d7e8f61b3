"""What a job would do, cost and reveal, in plain words, before anything runs."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from atoll.combine import Buffered, Each, EncryptedSum, LightSum, SecureSum
from atoll.combine.each import ONE_MACHINE
from atoll.core.tree import leaves
from atoll.data.federated import Federated
from atoll.job import Assembled, Job, assemble
from atoll.report.units import in_bytes
from atoll.select import Over
from atoll.select.sample import asked

_MANY = 5_000  # parties; beyond, playing the selection takes too long to wait for
_PLAYED = 300  # rounds of it
_ADDRESSED = "in a simulation the noise is simulated: drawn by address, so that runs repeat"
_SERVED = {  # what is said of a simulation, and of a job between real parties
    ONE_MACHINE: "how many bytes, and when: mutual TLS hides the rest",
    _ADDRESSED: "the noise comes from the operating system of whoever adds it",
}


def explain(job: Job, data: Federated, seed: int = 0, *, served: bool = False) -> str:
    """Say what a job on this data would do, simulated or `served`; raise Mismatch where it makes no sense."""
    assembled = assemble(job, data, seed)
    parts = (_what, _cost, _pipeline, _seen, _privacy, _end)
    blocks = [part(assembled, data) for part in parts]
    text = "\n\n".join(f"{title}\n" + "\n".join(f"  {line}" for line in lines) for title, lines in blocks)
    for simulated, real in _SERVED.items() if served else ():
        text = text.replace(simulated, real)
    return text


def _first(part: Any) -> str:
    return (inspect.getdoc(type(part)) or "").split("\n")[0]


def _what(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    sizes = data.train.sizes
    method = a.job.method
    lines = [
        f"{len(data):,} parties hold {int(sizes.sum()):,} samples: {int(sizes.min()):,} to {int(sizes.max()):,} each, "
        f"{sizes.mean():,.1f} on average",
        f"{_named(a.job.select)}: about {a.wire.cohort:,} of them {_at_once(a)}, at most {a.job.rounds:,} rounds",
        f"{type(method).__name__}: {_first(method)}",
    ]
    model = getattr(method, "model", None)
    if model is not None:
        lines.append(f"model {type(model.spec).__name__} ({model.backend}): {model.size:,} parameters")
    looks = {"test": "the server's test set", "own": "the parties' own test data"}
    where = " and ".join(looks[room] for room in a.plan.rooms)
    lines.append(f"evaluated every {a.job.every} round(s) on {where}" if where else "never evaluated: no test data")
    return f"job {a.job.name}", lines


def _at_once(a: Assembled) -> str:
    combine = a.job.channel.combine
    if isinstance(combine, Buffered):
        return f"at work at a time, {combine.enough:,} answers a round"
    called = asked(a.job.select, len(a.plan.sizes))
    return "in a round" if called == a.wire.cohort else f"in a round, for which {called:,} are asked"


def _varies(select: Any) -> bool:
    """Say whether cohorts differ in size by chance, so that the expected one is an average."""
    return _varies(select.select) if isinstance(select, Over) else getattr(select, "sampling", None) == "poisson"


def _cost(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    method = a.plan.method
    share = method.share(method.init(a.plan.seed))
    down = sum(np.asarray(leaf).nbytes for _, leaf in leaves(share))
    combine, up, rounds = a.job.channel.combine, a.plan.up, a.job.rounds
    buffered = isinstance(combine, Buffered)
    cohort = combine.enough if isinstance(combine, Buffered) else a.wire.cohort
    called = cohort if buffered else asked(a.job.select, len(data))  # who is asked sends, waited for or not
    per_party = rounds * called / len(data)
    bound = "about" if buffered or _varies(a.job.select) else "at most"  # in a buffer some are at work when it ends
    looks = 1 + -(-rounds // a.job.every) if "own" in a.plan.rooms else 0  # before the first round, and after the last
    looked = down * looks * len(data)
    lines = [
        f"a party sends {in_bytes(up)} and receives {in_bytes(down)} in a round it takes part in",
        f"a round moves {bound} {in_bytes((up + down) * called)}, "
        f"the whole job {bound} {in_bytes((up + down) * called * rounds + looked)}",
        f"a party takes part about {per_party:,.1f} times: {in_bytes((up + down) * per_party)}",
    ]
    if looks:
        lines.append(
            f"of the whole, all {len(data):,} parties receive the model {looks:,} times to evaluate it on their own "
            f"data: {in_bytes(down * looks)} each, {in_bytes(looked)} together"
        )
    if isinstance(combine, Buffered | Each):
        need = cohort * a.wire.size * np.dtype(a.wire.dtype).itemsize
        lines.append(f"the server holds all {cohort:,} vectors of a round at once: {in_bytes(need)}")
    else:
        lines.append("the server adds vectors up as they come: its memory does not grow with the cohort")
    return "cost", lines


def _pipeline(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    parts = [*a.job.channel.stages, a.job.channel.combine]
    lines = [f"{i}. {_named(part)}: {_first(part)}" for i, part in enumerate(parts, 1)]
    if isinstance(a.job.channel.combine, Each):
        lines[-1] += f" Here: {_first(a.job.channel.combine.rule)}"
    wire = a.wire
    known = [f"{wire.size:,} numbers in {in_bytes(wire.bytes)}"]
    whole = f"whole numbers modulo 2^{wire.ring.bit_length() - 1}" if wire.ring else ""
    known += [whole] if whole else [f"no longer than {wire.l2:g}" if wire.l2 is not None else "of unbounded length"]
    known.append("weighted by examples" if wire.weighted else "every party one voice" if wire.mean else "summed")
    return "what happens to a party's vector", [*lines, f"so it travels as {', '.join(known)}"]


def _named(part: Any) -> str:
    from atoll.catalogue import table

    said = table(part)
    fields = ", ".join(f"{k}={v['use'] if isinstance(v, dict) else v}" for k, v in said.items() if k != "use")
    return f"{said['use']}({fields})"


def _seen(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    combine = a.job.channel.combine
    lines = [f"{who}: {what}" for who, what in combine.seen(a.wire).items()]
    hidden = isinstance(combine, SecureSum | LightSum | EncryptedSum)
    return "who sees what", [*lines, *(_rounds_together(a, len(data)) if hidden else [])]


def _rounds_together(a: Assembled, parties: int) -> list[str]:
    """Say what all sums together give away, which no single one does."""
    from atoll.select.metrics import multi_round

    if parties > _MANY:
        return []
    rounds = min(a.job.rounds, _PLAYED)
    played = multi_round(a.job.select, parties, rounds, a.job.availability, a.plan.seed)
    told = (
        f"over {rounds:,} rounds: sums tell apart groups of {played.privacy} or more parties "
        f"(multi-round privacy T = {played.privacy}), {played.cardinality:.3g} parties are in a sum on average (C), "
        f"and the share of rounds that parties take part in differs by {played.fairness_gap:.2g} (F)"
    )
    alone = "T = 1: models that hardly change can be worked out one by one; select with batches, or add noise"
    return [told, *([alone] if played.privacy == 1 else [])]


_HIDES = {
    "local": "from the server too: each party adds noise of its own before it sends",
    "central": "from whoever sees the models, not from the server, which adds the noise",
    "distributed": "from the server too: noise is added in shares, and only the noisy sum is opened",
    "tree": "from whoever sees the models, not from the server, which adds the noise",
}


def _privacy(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    """Say what the noise promises, with everything that must stand beside an ε."""
    if a.ledger is None:
        return "differential privacy", ["no noise is added: nothing here is differentially private"]
    lines = [f"hides one party {_HIDES[event.where]}" for event in a.wire.noise]
    for account in a.ledger.accounts:
        if account.spend.unit == "example":
            lines.append("hides one example of a party from everybody else: its noise is inside local training")
        lines.append(
            f"epsilon {account.epsilon(a.job.rounds):.3g} after all {a.job.rounds:,} rounds ({account.words()})"
        )
    if a.ledger.server:
        server = a.ledger.server
        spent = server.epsilon(a.job.rounds)
        lines.append(f"against the server, which knows who took part: epsilon {spent:.3g} ({server.words()})")
    if a.wire.floor:
        lines.append(f"at least {a.wire.floor:,} parties a round must be honest and answer; else nothing is opened")
    return "differential privacy", [*lines, _ADDRESSED]


def _end(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    lines = [f"after {a.job.rounds:,} rounds", *(f"{_named(s)}: {_first(s)}" for s in a.job.stop)]
    return "ends (whichever comes first)", lines
