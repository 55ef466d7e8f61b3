"""Privacy on the report: what was spent, in which words, what clipping and noise did, who answered, who sees what."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from atoll.core.tree import Array
from atoll.privacy.account import in_epsilon, in_words
from atoll.report.draw import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    About,
    Fact,
    Facts,
    Panel,
    legend,
    number,
    percent,
    rounds_axis,
    thin,
)
from atoll.report.layout import as_list, as_table
from atoll.report.units import count, in_bytes, in_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = ("epsilon", "epsilon_party", "epsilon_example", "epsilon_server")  # facts that an account may note
Dash = str | tuple[int, tuple[float, float]]  # how a line is drawn
LINES: tuple[tuple[str, Dash], ...] = ((BLUE, "-"), (VERMILION, (0, (4, 1.5))), (GREEN, ":"))
DASH = (0, (4, 2))
EXAMPLES = 3  # of rounds that opened nothing
UNSAID = "unit, neighbours, sampling, delta and accountant were not noted"
SIMULATED = (
    "Simulated: this noise was drawn from the seed of the run, so that the run can be repeated. The figures are those "
    "that the same job would spend with noise that nobody can know."
)
OPEN = "No noise is added: nothing here is differentially private."


# --- what the facts say -----------------------------------------------------------------------------------------------


class EpsilonSpent(NamedTuple):
    """One account: ε by RDP so far, ε as tight as it was computed at the end, and the words that stand beside both.

    `unit` and `delta` are "" where a run did not note them as fields.
    """

    name: str
    epsilon: float
    tight: float | None
    words: str
    unit: str
    delta: str


def accounts(about: About, facts: Facts) -> list[EpsilonSpent]:
    """Return what was spent, one entry for each unit that noise protects."""
    planned = _planned(about)
    end: Fact = next((f for f in reversed(facts) if f["what"] == "end"), {})
    found = []
    for name in UNITS:
        spent = [float(f[name]) for f in facts if f["what"] in ("round", "empty", "end") and name in f]
        if spent:
            tight = end.get(f"{name}_tight")
            means = _means(name, end, planned)
            found.append(EpsilonSpent(name, spent[-1], None if tight is None else float(tight), *means))
    return found


def _means(name: str, *told: Fact) -> tuple[str, str, str]:
    """Return (words, unit, delta) of an account. Runs of release 0.1 noted the words, and one δ beside them."""
    terms = next((facts[f"{name}_means"] for facts in told if f"{name}_means" in facts), None)
    if isinstance(terms, Mapping):
        return in_words(terms), str(terms["unit"]), f"{terms['delta']:g}"
    old = told[-1].get("words", UNSAID) if name == "epsilon" else UNSAID
    delta = f"{told[-1]['delta']:g}" if name == "epsilon" and "delta" in told[-1] else ""
    return str(terms or old), name.removeprefix("epsilon").strip("_"), delta


def noted(facts: Facts, name: str) -> tuple[Array, Array]:
    """Return (rounds, values) of a number that some rounds noted, where it is finite."""
    found = [(f["round"], f[name]) for f in facts if f["what"] in ("round", "empty") and name in f]
    t, v = np.asarray(found, np.float64).reshape(-1, 2).T
    fine = np.isfinite(v)
    return t[fine].astype(int), v[fine]


def closed(facts: Facts) -> Facts:
    """Return the rounds in which too few answered, so that nothing was opened."""
    turns = [f for f in facts if f["what"] == "round"]
    return [f for f in turns if f.get("aborted") or f.get("answered", 0) < f.get("needed", 0)]


def _planned(about: About) -> Fact:
    said = about.get("privacy")
    return said if isinstance(said, Mapping) else {}


def simulated(about: About) -> bool:
    """Say whether all parties of a run were simulated; whoever does not say otherwise has simulated."""
    return bool(about.get("simulated", True))


def _budgets(about: About) -> dict[float, str]:
    """Return the ε that the run may spend, and in which words that is said."""
    stops = about.get("job", {}).get("stop") or ()
    found = [(float(s["epsilon"]), s.get("unit")) for s in stops if s.get("use") == "budget" and "epsilon" in s]
    return {epsilon: f"budget {epsilon:g}" + (f" ({unit})" if unit else "") for epsilon, unit in found}


def _aim(about: About) -> float | None:
    """Return the fraction of vectors that adaptive clipping wants to clip."""
    stages = about.get("job", {}).get("stages") or ()
    return next((1 - float(s["quantile"]) for s in stages if s.get("use") == "clip" and s.get("quantile")), None)


# --- figures ----------------------------------------------------------------------------------------------------------


def panels(about: About, facts: Facts) -> list[Panel]:
    """List the pictures of privacy that this run has something to show in."""
    found = []
    spent = [account for account in accounts(about, facts) if len(noted(facts, account.name)[0])]
    if spent:
        found.append(Panel("privacy", "Privacy spent", lambda ax: _spent(ax, about, facts, spent)))
    clipped, norm, noise, error = (
        noted(facts, name) for name in ("clipped", "clip_norm", "noise_share", "error_share")
    )
    if len(clipped[0]):
        found.append(Panel("privacy", "Vectors that were clipped", lambda ax: _clipped(ax, *clipped, _aim(about))))
    if len(norm[0]):
        found.append(Panel("privacy", "Norm that vectors are clipped to", lambda ax: _norm(ax, *norm)))
    if len(noise[0]):
        found.append(Panel("privacy", "Noise in the noisy vector", lambda ax: _noise(ax, *noise)))
    if closed(facts) or any(f.get("lost") for f in facts if f["what"] == "round"):
        found.append(Panel("answers", "Answers", lambda ax: _answers(ax, facts)))
    if len(error[0]):
        found.append(Panel("compression", "Error of compression", lambda ax: _error(ax, *error)))
    return found


def _spent(ax: Axes, about: About, facts: Facts, spent: list[EpsilonSpent]) -> None:
    high = 0.0
    for account, (colour, dash) in zip(spent, LINES, strict=False):
        t, v = noted(facts, account.name)
        of = f"{account.unit} " if len(spent) > 1 else ""
        _line(ax, t, v, f"{of}{in_epsilon(account.epsilon)} by RDP", colour, dash)
        if account.tight is not None and isfinite(account.tight):
            said = f"{of}{in_epsilon(account.tight)} by PLD"
            ax.plot([t[-1]], [account.tight], "D", color=colour, markerfacecolor="white", markersize=5, zorder=4,
                    clip_on=False, label=said)  # fmt: skip
        high = max(high, float(v.max()))
    for budget, said in _budgets(about).items():
        ax.axhline(budget, color=INK, linestyle=DASH, linewidth=1.0)
        ax.annotate(said, (0.01, budget), xycoords=("axes fraction", "data"), xytext=(0, 2),
                    textcoords="offset points")  # fmt: skip
        high = max(high, budget)
    ax.set_ylim(0, 1.08 * high or 1.0)
    ax.set_ylabel(f"ε at δ = {spent[0].delta}" if len(spent) == 1 and spent[0].delta else "ε")
    legend(ax, columns=2)


def _clipped(ax: Axes, t: Array, v: Array, aim: float | None) -> None:
    _line(ax, t, v, f"clipped, {_share(v)} on average", BLUE)
    if aim is not None:
        ax.axhline(aim, color=INK, linestyle=DASH, linewidth=1.0, label=f"aim {percent(aim)}")
    _shares(ax, "share of the vectors")


def _norm(ax: Axes, t: Array, v: Array) -> None:
    _line(ax, t, v, f"norm, from {number(v[0])} to {number(v[-1])}", GREEN)
    ax.set_ylim(0, 1.08 * float(v.max()) or 1.0)
    ax.set_ylabel("L2 norm")
    legend(ax)


def _noise(ax: Axes, t: Array, v: Array) -> None:
    _line(ax, t, v, f"noise, {_share(v)} on average", ORANGE)
    _shares(ax, "length of noise / of noisy vector")


def _error(ax: Axes, t: Array, v: Array) -> None:
    _line(ax, t, v, f"relative error, {_share(v)} on average", BLUE)
    ax.set_ylim(0, 1.08 * float(v.max()) or 1.0)
    _percents(ax, "length of error / of vector")


def _answers(ax: Axes, facts: Facts) -> None:
    turns = [f for f in facts if f["what"] == "round"]
    shut = {f["round"] for f in closed(facts)}
    t = np.asarray([f["round"] for f in turns])
    asked = np.asarray([f.get("asked", 0) for f in turns], np.float64)
    # Where nothing was opened no answer is used, however many came.
    used = np.asarray([0 if f["round"] in shut else f.get("answered", 0) for f in turns], np.float64)
    _line(ax, t, asked, "asked", GREY, (0, (4, 1.5)))
    _line(ax, t, used, "used", BLUE)
    least = [(f["round"], f["needed"]) for f in turns if "needed" in f]
    if least:
        ax.plot(*np.asarray(least).T, "_", color=VERMILION, markersize=7, markeredgewidth=1.5, label="needed")
    if shut:
        ax.plot(sorted(shut), np.zeros(len(shut)), "x", color=VERMILION, markersize=5, zorder=4, clip_on=False,
                label="nothing opened")  # fmt: skip
    ax.set_ylim(0, 1.08 * max(asked.max(), *(n for _, n in least), 1.0))
    ax.set_ylabel("parties")
    legend(ax)


def _line(ax: Axes, t: Array, v: Array, label: str, colour: str, dash: Dash = "-") -> None:
    few = "o" if len(t) == 1 else None
    ax.plot(*thin(t, v), color=colour, linestyle=dash, marker=few, markersize=3, label=label)
    rounds_axis(ax)


def _share(v: Array) -> str:
    return f"{100 * float(v.mean()):.3g}\u00a0%"


def _shares(ax: Axes, what: str) -> None:
    ax.set_ylim(-0.02, 1.02)
    _percents(ax, what)


def _percents(ax: Axes, what: str) -> None:
    from matplotlib.ticker import FuncFormatter

    ax.yaxis.set_major_formatter(FuncFormatter(percent))
    ax.set_ylabel(what)
    legend(ax)


# --- words ------------------------------------------------------------------------------------------------------------


def tiles(about: About, facts: Facts) -> list[tuple[str, str, str]]:
    """Return the key figures of privacy: what was spent, and what a protocol really cost."""
    spent = accounts(about, facts)
    found = []
    for account in spent:
        tight = "" if account.tight is None else f"tight {in_epsilon(account.tight)} (PLD); "
        at = f" at δ {account.delta}" if account.delta else ""
        what = "Privacy spent" + (" (simulated noise)" if simulated(about) else "")
        found.append((what, f"ε {in_epsilon(account.epsilon)}{at}", f"{tight}{account.words}"))
    size, client, server = (noted(facts, f"protocol_{name}")[1] for name in ("bytes", "client", "server"))
    if len(size):
        costs = [f"{in_seconds(float(client.mean()))} of CPU each"] if len(client) else []
        costs += [f"server {in_seconds(float(server.mean()))}"] if len(server) else []
        found.append(("A party's protocol, a round", in_bytes(float(size.mean())), "; ".join(["sent", *costs])))
    return found


def caption(group: str, about: About, facts: Facts) -> str:
    """Say in one sentence what a figure of privacy shows."""
    if group == "answers":
        said = _lost(facts)
        shut = len(closed(facts))
        return f"Answers: {said}" + (f"; {count(shut, 'round')} opened nothing." if shut else ".")
    if group == "compression":
        return (
            f"Compression: the server got vectors off by {_share(noted(facts, 'error_share')[1])} of their length "
            "on average."
        )
    spent = [
        f"ε {in_epsilon(a.epsilon)}{'' if a.tight is None else f', or {in_epsilon(a.tight)} by PLD,'} was spent "
        f"({a.words})"
        for a in accounts(about, facts)
    ]
    clipped, noise = (noted(facts, name)[1] for name in ("clipped", "noise_share"))
    more = [f"{_share(clipped)} of the vectors were clipped on average"] if len(clipped) else []
    more += [f"noise had {_share(noise)} of the noisy vector's length"] if len(noise) else []
    if not spent:
        more.append("no noise is added, so nothing here is differentially private")
    what = "Privacy (simulated noise): " if spent and simulated(about) else "Privacy: "
    return what + "; ".join(spent + more) + "."


def _lost(facts: Facts) -> str:
    turns = [f for f in facts if f["what"] == "round"]
    lost, asked = (sum(f.get(name, 0) for f in turns) for name in ("lost", "asked"))
    return f"{lost:,} of {asked:,} were lost" if lost else f"none of {asked:,} was lost"


def notes(about: About, facts: Facts) -> list[str]:
    """Say how many rounds opened nothing, with examples."""
    shut = closed(facts)
    if not shut:
        return []
    counted = "; what such a round would have spent counts all the same" if accounts(about, facts) else ""
    some = "; ".join(f"round {f['round']:,}: {_why(f)}" for f in shut[:EXAMPLES])
    rest = "; …" if len(shut) > EXAMPLES else ""
    return [f"{count(len(shut), 'round')} opened nothing, and left the model as it was{counted} ({some}{rest})."]


def _why(fact: Fact) -> str:
    few = f"{fact.get('answered', 0):,} of {fact.get('asked', 0):,} answered, {fact.get('needed', 0):,} are needed"
    return str(fact.get("aborted", few))


# --- the section of the page ------------------------------------------------------------------------------------------


def section(about: About, facts: Facts) -> str:
    """Return who sees what, and what was spent, as HTML; nothing where the run does not say."""
    seen = about.get("seen")
    parts = []
    if isinstance(seen, Mapping) and seen:
        rows = "\n".join(
            f"<tr><td>{escape(str(who))}</td><td>{escape(str(what))}</td></tr>" for who, what in seen.items()
        )
        parts.append(f"<div class='wide'><table class='words'><tbody>\n{rows}\n</tbody></table></div>")
    parts.append(_account(about, facts))
    if parts[0] and not parts[-1]:
        parts.append(f"<p>{OPEN}</p>")
    pipeline = [str(line) for line in about.get("pipeline") or ()]
    if pipeline:
        parts.append(f"<h3>What happens to a party's vector</h3>\n{as_list(pipeline, 'plain')}")
    body = "\n".join(part for part in parts if part)
    mark = " <b class=tag>simulated</b>" if simulated(about) else ""
    return f"<h2>Who sees what{mark}</h2>\n{body}" if body else ""


def _account(about: About, facts: Facts) -> str:
    planned = _planned(about)
    spent = accounts(about, facts)
    if not spent and not {"epsilon_means", "words"} & planned.keys():
        return ""
    plan = float(planned.get("epsilon_planned", inf))
    least = in_epsilon(plan) if "epsilon_planned" in planned else "–"
    rows = [
        [a.words, in_epsilon(a.epsilon), "–" if a.tight is None else in_epsilon(a.tight),
         least if a.name == "epsilon" else "–"] for a in spent
    ]  # fmt: skip
    rows = rows or [[_means("epsilon", planned)[0], "–", "–", least]]
    head = ["what ε means here", "ε\u00a0spent", "tight\u00a0(PLD)", "if\u00a0all\u00a0rounds\u00a0are\u00a0run"]
    return as_table(head, rows) + (f"\n<p class='soft'>{SIMULATED}</p>" if simulated(about) else "")
