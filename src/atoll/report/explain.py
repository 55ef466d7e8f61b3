"""What a job would do, cost and reveal, in plain words, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np

from atoll.core.world import World
from atoll.data.federated import Federated
from atoll.data.schema import Column, TableSchema
from atoll.job.assemble import Assembled, assemble
from atoll.job.job import Job
from atoll.job.quorum import in_words
from atoll.privacy.account import Account, in_epsilon
from atoll.programs.federate import Exchange
from atoll.programs.influence import at_will, capped
from atoll.programs.phases import by_phase, lines_by_phase
from atoll.programs.traffic import FLOW, FRAMES, HEADERS
from atoll.report.units import count, in_bytes

_MANY = 5_000  # parties; beyond, playing the selection takes too long to wait for
_PLAYED = 300  # rounds of it
_SOME = 100  # asks, for an example
_SHOWN = 30  # columns
_UNEVALUATED = {
    False: "never evaluated: no test data",
    True: "never evaluated on the parties' data; a server may have test data of its own",
}
_NOISE = {
    False: "the noise is simulated: derived from the seed, so that runs are reproducible",
    True: "the noise comes from the operating system of whoever adds it",
}


def explain(job: Job, data: Federated, seed: int = 0, *, world: World | None = None, own: bool = False) -> str:
    """Say what a job would do, cost and reveal, in the world that it would run in.

    Args:
        job: the job.
        data: its data, or a description of it.
        seed: of its public randomness. Default 0.
        world: simulated (the default) or real.
        own: whether the data is that of one party, which knows nothing of what others hold. Default false.

    Raises:
        Mismatch: two parts of the job cannot be combined.

    Example:
        >>> import atoll
        >>> data = atoll.data.load("digits").split(10, seed=0)
        >>> job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.Count(5), rounds=3)
        >>> "who sees what" in atoll.explain(job, data)
        True
    """
    assembled = assemble(job, data, seed, world=world)
    parts = (_cost, _pipeline, _seen, _privacy, _end)
    blocks = [_what(assembled, data, own), *(part(assembled, data) for part in parts)]
    return "\n\n".join(f"{title}\n" + "\n".join(f"  {line}" for line in lines) for title, lines in blocks)


def _each(a: Assembled, words: Callable[[Exchange], Sequence[str]]) -> list[str]:
    """Say something of every phase."""
    return lines_by_phase({name: words(exchange) for name, exchange in a.program.exchanges.items()})


def _first(part: object) -> str:
    return (inspect.getdoc(type(part)) or "").split("\n")[0]


def _what(a: Assembled, data: Federated, own: bool) -> tuple[str, list[str]]:
    sizes = data.train.sizes
    method = a.job.method
    everybody = (
        f"{len(data):,} parties hold {int(sizes.sum()):,} samples: {int(sizes.min()):,} to {int(sizes.max()):,} each, "
        f"{sizes.mean():,.1f} on average"
    )
    mine = f"this party, one of {len(data):,}, holds {int(sizes[0]):,} samples; it is not told what others hold"
    lines = [
        mine if own else everybody,
        f"{_named(a.job.select)}: about {a.wire.total.cohort:,} of them {_at_once(a)}, "
        f"at most {count(a.job.rounds, 'round')}",
        *filter(None, [in_words(a.job)]),
        f"{type(method).__name__}: {_first(method)}",
    ]
    alone = method.training()
    if alone is not None:
        model = alone.model
        lines.append(f"model {type(model.spec).__name__} ({model.backend}): {model.size:,} parameters")
    read = "each party's sums" if a.program.evaluating is None else "the sum over all parties only"
    evaluations = {"test": "the server's test set", "local": f"the parties' own test data ({read})"}
    where = " and ".join(evaluations[split] for split in a.program.splits)
    often = "round" if a.job.eval_every == 1 else f"{a.job.eval_every} rounds"
    lines.append(f"evaluated every {often} on {where}" if where else _UNEVALUATED[a.program.world.secret])
    if "local" in a.splits and "local" not in a.program.splits and a.program.evaluation:
        lines.append("not evaluated on the parties' own test data: scores have no noise, and would tell what it hides")
    return f"job {a.job.name}", [*lines, *_columns(data.schema)]


def _columns(schema: TableSchema | None) -> list[str]:
    """Say what the columns mean that the job is about."""
    if schema is None:
        return []
    scaled = "; each party shifts and scales its numbers by its own rows" if schema.standardise else ""
    features = [f"  {_column(column)}" for column in schema.features]
    shown = [*features[:_SHOWN], *([f"  and {len(features) - _SHOWN:,} more"] if len(features) > _SHOWN else [])]
    return [f"it predicts {_column(schema.target)} from {len(features):,} columns{scaled}", *shown]


def _column(column: Column) -> str:
    unit = f" in {column.unit}" if column.unit else ""
    values = f" ({', '.join(column.values)})" if column.values else ""
    fill = "" if column.fill is None else f", missing cells become {column.fill}"
    return f"{column.name!r}{unit}{values}{fill}"


def _at_once(a: Assembled) -> str:
    combine = a.program.exchanges[a.phase].combine  # one that buffers stands alone
    if combine.staleness is not None:
        return f"at work at a time, {combine.answers(a.wire):,} answers a round"
    called = a.job.select.asked(len(a.program.sizes))
    return "in a round" if called == a.wire.total.cohort else f"in a round, for which {called:,} are asked"


def _cost(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    method, program = a.program.method, a.program
    combine, rounds = program.exchanges[a.phase].combine, a.job.rounds
    each, holders = program.round_cost  # a round has every phase once
    buffered, cohort = combine.staleness is not None, combine.answers(a.wire)
    called = cohort if buffered else a.job.select.asked(len(data))  # who is asked sends, waited for or not
    per_party = rounds * called / len(data)
    bound = (
        "about" if buffered or a.job.select.sampling(len(data)).varies else "at most"
    )  # in a buffer some are at work when it ends
    # Before the first round, and after the last.
    evaluations = 1 + -(-rounds // a.job.eval_every) if "local" in program.splits else 0
    own, theirs = program.evaluation_cost
    both, evaluated = each.up + each.down, (own.up + own.down) * evaluations
    evaluated_all = evaluated * len(data) + (theirs.up + theirs.down) * evaluations
    round_ = both * called + holders.up + holders.down
    lines = [
        f"a party sends {in_bytes(each.up)} and receives {in_bytes(each.down)} in a round it takes part in",
        f"a round moves {bound} {in_bytes(round_)}, the whole job {bound} {in_bytes(round_ * rounds + evaluated_all)}",
        f"a party takes part about {per_party:,.1f} times: {in_bytes(both * per_party)}",
    ]
    if holders.questions:
        lines.append(f"who holds the key sends {in_bytes(holders.up)} and receives {in_bytes(holders.down)} more")
    if evaluations:
        lines.append(
            f"of the whole, all {len(data):,} parties receive the model {evaluations:,} times to evaluate it on their "
            f"own data, and send {in_bytes(own.up)} of sums each time: {in_bytes(evaluated)} each, "
            f"{in_bytes(evaluated_all)} together"
        )
    often = f"{each.questions} in a round" + (f", {own.questions} in an evaluation" if evaluations else "")
    lines.append(
        f"on a network each question ({often}) takes about {HEADERS} B more either way, for headers, "
        f"and TLS and flow control take {FRAMES + FLOW:.1%} of all"
    )
    if not method.cycle:
        lines.append("as the method runs it decides how often a round asks; here a round has every phase once")
    return "cost", [*lines, *_each(a, lambda exchange: _held(exchange, cohort))]


def _held(exchange: Exchange, cohort: int) -> list[str]:
    if not exchange.combine.holds_rows:
        return ["the server adds vectors up as they come: its memory does not grow with the cohort"]
    row = exchange.wire.row
    need = cohort * row.size * np.dtype(row.dtype).itemsize
    return [f"the server holds all {cohort:,} vectors of a round at once: {in_bytes(need)}"]


def _pipeline(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    def stages(exchange: Exchange) -> list[str]:
        parts = [*exchange.stages, exchange.combine]
        return [f"{i}. {_named(part)}: {_first(part)}" for i, part in enumerate(parts, 1)]

    done = [line for words in (stages, _travels, capped, at_will) for line in _each(a, words)]
    return "what happens to a party's vector", done


def _travels(exchange: Exchange) -> list[str]:
    wire = exchange.wire
    # What a conversation makes of the numbers is among the costs.
    known = [f"{wire.row.size:,} numbers" + ("" if exchange.combine.hidden else f" in {in_bytes(wire.row.bytes)}")]
    whole = f"whole numbers modulo 2^{wire.ring.modulus.bit_length() - 1}" if wire.ring else ""
    known += [whole] if whole else [f"no longer than {wire.l2:g}" if wire.l2 is not None else "no norm bound"]
    known.append("weighted by examples" if wire.weighted else "unweighted" if wire.mean else "summed")
    return [f"so it travels as {', '.join(known)}"]


def _named(part: object) -> str:
    from atoll.job.catalogue import table

    said = table(part)
    assert isinstance(said, dict)
    fields = ", ".join(f"{k}={v['use'] if isinstance(v, dict) else v}" for k, v in said.items() if k != "use")
    return f"{said['use']}({fields})"


def _seen(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    lines = [f"{who}: {what}" for who, what in a.program.seen().items()]
    for phase, hidden in by_phase({name: one.combine.hidden for name, one in a.program.exchanges.items()}):
        told = _rounds_together(a, len(data)) if hidden else []
        lines += [f"{phase}: {line}" if phase else line for line in told]
    return "who sees what", lines


def _rounds_together(a: Assembled, parties: int) -> list[str]:
    """Say what all sums together give away, which no single one does."""
    from atoll.select.metrics import multi_round

    if parties > _MANY:
        return []
    rounds = min(a.job.rounds, _PLAYED)
    played = multi_round(a.job.select, parties, rounds, a.job.availability, a.program.world.seed)
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
        lines.append(f"epsilon {_spent(a, account)} ({account.words()})")
    if _seen_by_all(a):
        lines.append("the parties of a hidden sum, and its server, see who takes part: sampling hides nobody from them")
    if not a.ledger.asks:
        lines.append("as the method runs it decides how often a round asks: no epsilon of all rounds is known before")

    def opened(exchange: Exchange) -> list[str]:
        wire, least = exchange.wire, exchange.wire.total.min_cohort
        needed = f"at least {least:,} parties are in the sum of a round; else nothing is opened"
        assumed = f", assuming at most {sum(event.corrupt for event in wire.noise):,} corrupt"
        return [f"{needed}{assumed if wire.noised('distributed') else ''}"] if least else []

    return "differential privacy", [*lines, *_each(a, opened), _NOISE[a.program.world.secret]]


def _seen_by_all(a: Assembled) -> bool:
    """Tell whether a sample that would hide parties is seen, since it is that of a hidden sum."""
    sampled = a.job.select.sampling(len(a.program.sizes)).kind in ("poisson", "fixed")
    return sampled and bool(a.wire.noise) and any(one.combine.hidden for one in a.program.exchanges.values())


def _spent(a: Assembled, account: Account) -> str:
    asks = a.ledger.planned(a.job.rounds) if a.ledger else None
    if asks is None:
        return f"{in_epsilon(account.epsilon(1))} after one ask, {in_epsilon(account.epsilon(_SOME))} after {_SOME}"
    after = f"all {a.job.rounds:,} rounds" if a.job.rounds > 1 else "its only round"
    return f"{in_epsilon(account.epsilon(asks))} after {after}"


def _end(a: Assembled, data: Federated) -> tuple[str, list[str]]:
    lines = [f"after {count(a.job.rounds, 'round')}", *(f"{_named(s)}: {_first(s)}" for s in a.job.stop)]
    return "ends (whichever comes first)", lines
