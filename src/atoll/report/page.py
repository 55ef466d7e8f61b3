"""The report: one HTML file that needs no script and no network. Everything on it is a function of about and facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from os import PathLike
from pathlib import Path

import numpy as np

from atoll.core.disk import replace_file
from atoll.core.errors import Mismatch, Unwritable
from atoll.core.tree import Array
from atoll.journal import rounds_done
from atoll.report import figures as fig
from atoll.report import privacy, roles
from atoll.report.draw import About, Fact, Facts, draw, number
from atoll.report.figures import score
from atoll.report.layout import CSS, as_list, as_table, as_tiles, joined, svg
from atoll.report.shown import shown
from atoll.report.units import count, in_bytes, in_seconds

DOING = {"compile": "compiling", "train": "training", "combine": "combining", "evaluate": "evaluation"}
MANY = 20  # rows of a table before it is folded


def write(path: str | Path, about: About, facts: Facts) -> Path:
    """Write the report; the file is the old one or the new one, whatever happens."""
    if not isinstance(path, str | PathLike):
        raise Mismatch(f'path must be the path of a file, as in "report.html", got {path!r}')
    path = Path(path)
    if path.is_dir():
        raise Unwritable(f"{path} is a folder: name a file in it, as in {path / 'report.html'}")
    text = shown(page(about, facts))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode("utf-8"), sync=False)
    except OSError as error:
        remedy = "free some space, or choose another folder; atoll report RUN writes it again"
        raise Unwritable(f"cannot write to {path.parent}: {error.strerror}; {remedy}") from None
    return path


def page(about: About, facts: Facts) -> str:
    """Return the report as HTML."""
    name = escape(str(about.get("job", {}).get("name", "run")))
    parts = [
        f"<header><h1>{name}</h1>\n<p class='result'>{escape(result(about, facts))}</p>",
        f"<p class='soft'>{escape(_simulated(about))}</p></header>",
        as_tiles(tiles(about, facts)),
        _pictures(about, facts),
        privacy.section(about, facts),
        roles.section(about),
        _parties(about, facts),
        _notes(notes(about, facts)),
        _job(about),
        _environment(about),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} – Atoll report</title>\n<style>{CSS}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


# --- what is said -----------------------------------------------------------------------------------------------------


def result(about: About, facts: Facts) -> str:
    """Say in one sentence what came out."""
    done, parties = _done(facts), int(about.get("parties", 0))
    cohort = int(about.get("cohort", parties))
    who = count(parties, "party") + (f" ({cohort:,} a round)" if cohort < parties else "")
    headline = _headline(about, facts)
    if headline:
        split, metric, t, v = headline
        reached = f"reached {_value(split, metric, float(v[-1]))} after {count(int(t[-1]), 'round')}"
    else:
        reached = f"{'ran' if 'roles' in about else 'trained'} for {count(done, 'round')}"
    end = next((f for f in reversed(facts) if f["what"] == "end"), None)
    if end is None:
        return f"{method(about)} {reached} with {who}; it has not ended: it is still running or was interrupted."
    return f"{method(about)} {reached} with {who}; it ended because {_because(end)}."


def _because(end: Fact) -> str:
    if not end.get("complete"):
        return str(end["reason"]).rstrip(".")
    return f"all {end['round']:,} rounds were done" if end["round"] > 1 else "its only round was done"


def method(about: About) -> str:
    """Name the method as its paper does."""
    job = about.get("job", {})
    said: Fact = job.get("method") or job.get("program") or {}
    use = str(said.get("use", "the method"))
    server = said.get("server")
    server = server if isinstance(server, Mapping) else {}
    rule = str(server.get("use", "")).removeprefix("fed")  # of the paper's formula, or of Optax
    if use == "fedavg" and rule in ("adam", "yogi", "adagrad"):
        return f"Fed{rule.capitalize()}"
    known = {"fedavg": "FedAvg", "fedprox": "FedProx", "fedsgd": "FedSGD"}
    return "FedAvgM" if use == "fedavg" and rule == "sgd" and server.get("momentum") else known.get(use, use)


def _headline(about: About, facts: Facts) -> tuple[str, str, Array, Array] | None:
    """Return (split, metric, rounds, values) of what the run is evaluated by."""
    for split in ("test", "local"):
        for metric in fig.measures(about, facts):
            t, v = fig.points(facts, split, metric)
            if len(t):
                return split, metric, t, v
    return None


def _value(split: str, metric: str, value: float) -> str:
    if split == "test":
        said = f"{score(value, metric)} test accuracy"
        return said if metric == "accuracy" else f"a test {fig.word(metric)} of {score(value, metric)}"
    said = f"{score(value, metric)} accuracy" if metric == "accuracy" else f"{fig.word(metric)} {score(value, metric)}"
    return f"{said} on the parties' own test data"


def _simulated(about: About) -> str:
    where = about.get("environment", {})
    machine = f" ({where['machine']}, {where.get('cores', '?')} cores)" if "machine" in where else ""
    what = "messages" if "roles" in about else "vectors"
    if not privacy.simulated(about):
        counted = f"{what} hold" if "roles" in about else f"{what} hold that travel"
        return (
            f"The parties of this run were elsewhere. Times are the server's{machine}; bytes are what {counted}, not "
            "measured on the network."
        )
    return (
        f"This run was a simulation: all parties were simulated on one machine{machine}. Times are that machine's; "
        f"bytes are counted from the {what} that would travel, not measured on a network."
    )


def _done(facts: Facts) -> int:
    return rounds_done(facts)


def wall(facts: Facts) -> float:
    """Add up the clock of every start: it starts anew where a run was resumed."""
    total, last = 0.0, 0.0
    for fact in facts:
        if fact["what"] == "resume":
            total, last = total + last, 0.0
        last = max(last, float(fact.get("time", 0.0)))
    return total + last


def tiles(about: About, facts: Facts) -> list[tuple[str, str, str]]:
    """Return the key figures: (what, value, more)."""
    found = []
    headline = _headline(about, facts)
    split, name = (headline[0], "Test" if headline[0] == "test" else "Own") if headline else ("", "")
    for metric in fig.measures(about, facts):
        t, v = fig.points(facts, split, metric)
        if len(t):
            at, top = fig.best(about, metric, t, v)
            more = f"best {score(top, metric)} in round {at:,}"
            found.append((f"{name} {fig.word(metric)}", score(float(v[-1]), metric), more))
    metric, evaluations = fig.spread(about, facts)
    if evaluations:
        last = evaluations[-1]
        more = f"local {metric}; mean {score(last[f'{metric}.mean'], metric)}"
        found.append(("Worst 10\u00a0% of parties", score(last[f"{metric}.worst10"], metric), more))
    planned = about.get("job", {}).get("rounds")
    found.append(("Rounds", f"{_done(facts):,}", f"of {planned:,} planned" if planned else ""))
    parties = int(about.get("parties", 0))
    found.append(("Parties", f"{parties:,}", f"{int(about.get('cohort', parties)):,} a round"))
    if "parameters" in about:
        found.append(("Parameters", f"{about['parameters']:,}", ""))
    return found + privacy.tiles(about, facts) + _costs(about, facts)


def _costs(about: About, facts: Facts) -> list[tuple[str, str, str]]:
    turns = [f for f in facts if f["what"] == "round"]
    if not turns:
        return []
    total = {name: sum(f.get(name, 0) for f in turns) for name in ("bytes_up", "bytes_down", "asked", "answered")}
    up, down = total["bytes_up"] / max(total["answered"], 1), total["bytes_down"] / max(total["asked"], 1)
    both = f"{in_bytes(total['bytes_up'])} up, {in_bytes(total['bytes_down'])} down"
    compiled = sum(f.get("compile", 0.0) for f in facts)
    median = float(np.median([f.get("seconds", 0.0) for f in turns]))
    roles = "roles" in about  # which are asked several times a round, compile nothing and evaluate nothing
    return [
        ("Per answer" if roles else "Per party and round", in_bytes(up), f"up, and {in_bytes(down)} down"),
        ("Traffic in all", in_bytes(total["bytes_up"] + total["bytes_down"]), both),
        ("Wall time", in_seconds(wall(facts)), "" if roles else f"{in_seconds(compiled)} of it compiling"),
        ("Median round", in_seconds(median), "" if roles else "without evaluation"),
    ]


def notes(about: About, facts: Facts) -> list[str]:
    """Say what else happened: who was lost, what died, where it went on, why it ended."""
    turns = [f for f in facts if f["what"] == "round"]
    asked = sum(f.get("asked", 0) for f in turns)
    lost = sum(f.get("lost", 0) for f in turns)
    shut = {f["round"] for f in privacy.closed(facts)}
    late = sum(f.get("asked", 0) - f.get("lost", 0) - f.get("answered", 0) for f in turns if f["round"] not in shut)
    said = []
    if lost:
        hit = sum(1 for f in turns if f.get("lost"))
        said.append(f"{lost:,} of {asked:,} answers were lost, in {count(hit, 'round')}.")
    if late > 0:
        said.append(f"{late:,} of {asked:,} answers were not waited for.")
    said += privacy.notes(about, facts)
    empty = [f["round"] for f in facts if f["what"] == "empty"]
    if empty:
        said.append(f"{count(len(empty), 'round')} had nobody to ask, and left the model as it was: {_some(empty)}.")
    said += [
        f"Round {f['round']:,}: a worker process died and was replaced: {f['died']}" for f in turns if f.get("died")
    ]
    said += [f"Everything ran in one process: {f.get('why', '')}" for f in facts if f["what"] == "in process"]
    said += [f"The run was resumed after round {f['round']:,}." for f in facts if f["what"] == "resume"]
    known = {"start", "evaluation", "round", "end", "empty", "in process", "resume"}
    said += [f"{f['what']}: {_rest(f)}" for f in facts if f["what"] not in known]
    if len(said) > MANY:
        said = [*said[:MANY], f"… and {len(said) - MANY:,} more, in facts.jsonl."]
    end = [f for f in facts if f["what"] == "end"]
    why = f"The run ended after round {end[-1]['round']:,}: {end[-1]['reason']}." if end else "No end was noted."
    return [*said, why]


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(f"{n:,}" for n in numbers[:10]) + (", …" if len(numbers) > 10 else "")


def _rest(fact: Fact) -> str:
    return ", ".join(f"{k} {v}" for k, v in fact.items() if k not in ("what", "time"))[:300]


def caption(group: str, about: About, facts: Facts) -> str:
    """Say in one sentence what a figure shows."""
    if group == "learning":
        split, metric, t, v = _headline(about, facts) or ("", "loss", np.zeros(1, int), np.zeros(1))
        at, top = fig.best(about, metric, t, v)
        where = "on the central test set" if split == "test" else "on the parties' own test data"
        start = f"from {score(float(v[0]), metric)} (round {int(t[0])}) to {score(float(v[-1]), metric)}"
        return f"Learning curves: {where}, {fig.word(metric)} went {start}; best {score(top, metric)} in round {at:,}."
    if group == "partition":
        return _held(about)
    if group == "parties":
        metric, evaluations = fig.spread(about, facts)
        last = evaluations[-1]
        worst, mean = (score(last[f"{metric}.{k}"], metric) for k in ("worst10", "mean"))
        return (
            f"How evenly the model serves the parties, on their own test data: in round {last['round']:,} the worst "
            f"tenth of them has {fig.word(metric)} {worst} on average, against {mean} over all, each counted once."
        )
    if group == "traffic":
        up, down = (float(fig.rounds(facts, name)[1].sum()) for name in ("bytes_up", "bytes_down"))
        said = f"{in_bytes(up)} went up from the parties and {in_bytes(down)} down to them, all parties together"
        evaluated = [f for f in facts if f["what"] == "evaluation" and "bytes_down" in f]
        up, down = (sum(f[name] for f in evaluated) for name in ("bytes_up", "bytes_down"))
        taken = f"{in_bytes(up)} up and {in_bytes(down)} down"
        more = f"; {count(len(evaluated), 'evaluation')} on their own data took another {taken}"
        return f"Traffic: {said}{more if evaluated else ''}."
    if group in ("privacy", "answers", "compression"):
        return privacy.caption(group, about, facts)
    return _times(fig.phases(about, facts)[1])


def _times(spent: Mapping[str, Array]) -> str:
    if len(spent) == 1:
        (seconds,) = spent.values()
        median, whole = in_seconds(float(np.median(seconds))), in_seconds(float(seconds.sum()))
        return f"Time: a round took {median} in the median, all of them {whole}."
    totals = {name: float(v.sum()) for name, v in spent.items()}
    most = max(totals, key=lambda name: totals[name])
    share = 100 * totals[most] / max(sum(totals.values()), 1e-12)
    return (
        f"Time: {share:.0f}\u00a0% of it went into {DOING[most]}; to combine is what a round does beside compiling and "
        "training, and round 0 is the evaluation of the untrained model."
    )


def _held(about: About) -> str:
    sizes = about.get("sizes", {})
    parties = int(about.get("parties", 0))
    least, most = (int(sizes.get(k, 0)) for k in ("least", "most"))
    span = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    said = f"Who holds what: {count(parties, 'party')} with {span} training samples{' each' if parties > 1 else ''}"
    _, counts = fig.shown(about)
    if counts.shape[1] > 1:
        held = float(np.median((counts > 0).sum(axis=1)))
        said += f"; in the median a party has {held:g} of the {counts.shape[1]} classes"
    return f"{said}."


# --- how it is laid out -----------------------------------------------------------------------------------------------


def _pictures(about: About, facts: Facts) -> str:
    panels = fig.panels(about, facts)
    shown = []
    for k, group in enumerate(dict.fromkeys(p.group for p in panels)):
        plots = [svg(draw([p]), f"{group}{i}", p.title) for i, p in enumerate(panels) if p.group == group]
        words = f"<b>Figure {k + 1}.</b> {escape(caption(group, about, facts))}"
        shown.append(
            f"<figure>\n<div class='plots'>\n{joined(plots)}\n</div>\n<figcaption>{words}</figcaption>\n</figure>"
        )
    return f"<h2>Figures</h2>\n{joined(shown)}" if shown else ""


def _parties(about: About, facts: Facts) -> str:
    _, counts = fig.shown(about)
    if not len(counts):
        return ""
    rows = []
    sizes = about.get("sizes", {})
    if sizes:
        rows.append(["training samples", f"{sizes['least']:,}", "–", number(sizes["mean"]), f"{sizes['most']:,}"])
    metric, evaluations = fig.spread(about, facts)
    if evaluations:
        last = evaluations[-1]
        ends = (max, min) if fig.low(about, metric) else (min, max)
        values = [ends[0](last["each"]), last[f"{metric}.worst10"], last[f"{metric}.mean"], last[f"{metric}.best"]]
        rows.append([f"local {fig.word(metric)}, round {last['round']:,}", *(score(v, metric) for v in values)])
    head = ["over parties", "least or worst", "worst 10 %, mean", "mean", "most or best"]
    summary = as_table(head, rows) if rows else ""
    table = _held_table(about, counts)
    if len(counts) > MANY:
        total = int(about.get("parties", len(counts)))
        some = (
            f"{len(counts):,} of {total:,} parties, chosen evenly" if total > len(counts) else f"all {total:,} parties"
        )
        table = f"<details><summary>What each party holds ({some})</summary>\n{table}</details>"
    return f"<h2>Parties</h2>\n{summary}\n{table}"


def _held_table(about: About, counts: Array) -> str:
    sizes = counts.sum(axis=1)
    whole = about.get("sizes", {}).get("all") or int(sizes.sum())
    rows = []
    for name, row, n in zip(fig.labels(about), counts, sizes.tolist(), strict=True):
        cells = [name, f"{n:,}", f"{100 * n / max(whole, 1):.1f} %"]
        if counts.shape[1] > 1:
            cells += [str(int((row > 0).sum())), f"{int(row.argmax())} ({100 * row.max() / max(n, 1):.0f} %)"]
        rows.append(cells)
    head = ["party", "training samples", "share of all"]
    return as_table(head + (["classes held", "most frequent class"] if counts.shape[1] > 1 else []), rows)


def _notes(said: Iterable[str]) -> str:
    return f"<h2>Notes</h2>\n{as_list(said)}"


def _job(about: About) -> str:
    from atoll.job.file import dumps

    return f"<h2>Job file</h2>\n<pre>{escape(dumps(about['job']))}</pre>" if about.get("job") else ""


def _environment(about: About) -> str:
    rows = [[str(k), str(v)] for k, v in about.get("environment", {}).items()]
    return f"<h2>Environment</h2>\n{as_table([], rows, kind='words')}" if rows else ""
