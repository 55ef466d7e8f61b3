"""Figures of a run, drawn from what is known of it (about) and what was noted (facts). No file is written here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.tree import Array
from atoll.report import privacy
from atoll.report.draw import (
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    INK,
    MOST,
    ORANGE,
    PALE,
    VERMILION,
    WIDTH,
    About,
    Fact,
    Facts,
    Panel,
    draw,
    largest,
    legend,
    number,
    percent,
    remark,
    rounds_axis,
    thin,
)
from atoll.report.units import in_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

SPLITS = {
    "test": ("central test", BLUE, "-"), "local": ("local test data", VERMILION, (0, (4, 1.5))),
    "train": ("training, mean of each round", GREY, (0, (1, 1.5))),
}  # fmt: skip
PHASES = {"compile": GREY, "train": BLUE, "combine": ORANGE, "evaluate": GREEN}
WORDS = {"accuracy": "accuracy", "r2": "R²", "mse": "mean squared error", "loss": "loss"}
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
FEW = 40  # parties that still get a mark each


# --- what the facts say -----------------------------------------------------------------------------------------------


def points(facts: Facts, split: str, metric: str) -> tuple[Array, Array]:
    """Return (rounds, values) of a metric in a split, where it is finite; of "train" what the rounds tell."""
    if split == "train":
        found = [(f["round"], f[f"train_{metric}"]) for f in facts if f["what"] == "round" and f"train_{metric}" in f]
    else:
        evaluations = [f for f in facts if f["what"] == "evaluation" and f.get("split") == split]
        found = [(f["round"], f[metric]) for f in evaluations if metric in f]
    t, v = np.asarray(found, np.float64).reshape(-1, 2).T
    fine = np.isfinite(v)
    return t[fine].astype(int), v[fine]


def low(about: About, metric: str) -> bool:
    """Say whether a low value of a metric is good, as the run declared it."""
    return bool(about.get("better", {}).get(metric) == "low")


def best(about: About, metric: str, t: Array, v: Array) -> tuple[int, float]:
    """Return (round, value) of the best value; the first, where there are several."""
    k = int(np.argmin(v) if low(about, metric) else np.argmax(v))
    return int(t[k]), float(v[k])


def measures(about: About, facts: Facts) -> tuple[str, ...]:
    """Name what the run measured, the headline first: accuracy, or R² and squared error; metrics of the user; loss."""
    seen = {name for f in facts if f["what"] == "evaluation" for name in f}
    declared = [name for name in about.get("better", ()) if name in seen]
    headline = [name for name in ("accuracy", "r2", "mse") if name in declared]
    others = [name for name in declared if name not in (*headline, "loss")]
    return (*headline, *others, *(["loss"] if "loss" in declared and "mse" not in declared else []))


def word(metric: str) -> str:
    """Name a metric in words."""
    return WORDS.get(metric, metric.replace("_", " "))


def spread(about: About, facts: Facts) -> tuple[str, Facts]:
    """Return the metric that is known party by party, and the evaluations that tell its distribution."""
    evaluations = [f for f in facts if f["what"] == "evaluation" and f.get("split") == "local" and f.get("each")]
    name = next((m for m in about.get("better", ()) if evaluations and f"{m}.mean" in evaluations[-1]), "")
    return name, evaluations if name else []


def rounds(facts: Facts, name: str) -> tuple[Array, Array]:
    """Return (rounds, values) of a number noted every round; 0 where a round did not note it."""
    found = [(f["round"], f.get(name, 0.0)) for f in facts if f["what"] == "round"]
    t, v = np.asarray(found, np.float64).reshape(-1, 2).T
    return t.astype(int), v


def phases(about: About, facts: Facts) -> tuple[Array, dict[str, Array]]:
    """Return rounds and, for each phase, its seconds; what is neither compiling nor training is combining.

    A program with roles has rounds of one phase: how their time divides is not noted.
    """
    if "roles" in about:
        t, seconds = rounds(facts, "seconds")
        return t, {"round": seconds}
    t = np.unique([f["round"] for f in facts if f["what"] in ("round", "evaluation")]).astype(int)
    spent = {name: np.zeros(len(t)) for name in PHASES}
    at = {r: k for k, r in enumerate(t.tolist())}
    for fact in facts:
        if fact["what"] == "round":
            k, work, compiled = at[fact["round"]], fact.get("work", 0.0), fact.get("compile", 0.0)
            spent["train"][k] = work
            spent["compile"][k] += compiled
            spent["combine"][k] = max(0.0, fact.get("seconds", 0.0) - work - compiled)
        elif fact["what"] == "evaluation":
            k, compiled = at[fact["round"]], fact.get("compile", 0.0)
            spent["compile"][k] += compiled
            spent["evaluate"][k] += max(0.0, fact.get("seconds", 0.0) - compiled)
    return t, spent


def shown(about: About) -> tuple[Array, Array]:
    """Return (numbers, counts) of the parties in the partition: all of them, or some chosen evenly."""
    counts = np.asarray(about.get("partition") or np.zeros((0, 1)), np.int64)
    parties = int(about.get("parties", len(counts)))
    return np.unique(np.linspace(0, max(parties - 1, 0), len(counts)).astype(int)), counts


def labels(about: About) -> list[str]:
    """Name the parties in the partition, row by row: as the data does, else by their numbers."""
    return [str(name) for name in about.get("names") or shown(about)[0].tolist()]


def score(value: float, metric: str) -> str:
    """Write a metric as people say it: an accuracy in per cent, all else as a plain number."""
    if metric == "accuracy":
        return f"{100 * value:.1f}\u00a0%"
    return f"{value:.3f}" if 1e-2 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


# --- panels -----------------------------------------------------------------------------------------------------------


def panels(about: About, facts: Facts) -> list[Panel]:
    """List the pictures this run has something to show in."""
    found = [_learning(about, facts, metric) for metric in measures(about, facts)[:2]]
    numbers, counts = shown(about)
    if counts.shape[1] > 1:
        found.append(Panel("partition", "Who holds which class", lambda ax: _labels(ax, about, numbers, counts)))
    if len(counts):
        found.append(Panel("partition", "How much each party holds", lambda ax: _sizes(ax, about, numbers, counts)))
    metric, evaluations = spread(about, facts)
    if evaluations:
        said = word(metric)[0].upper() + word(metric)[1:]
        found.append(Panel("parties", f"{said} of each party, round {evaluations[-1]['round']}",
                           lambda ax: _sorted(ax, low(about, metric), metric, evaluations[-1])))  # fmt: skip
        if len(evaluations) > 1:
            found.append(Panel("parties", f"{said} over parties", lambda ax: _evolution(ax, metric, evaluations)))
    found += privacy.panels(about, facts)
    if any(f["what"] == "round" for f in facts):
        found.append(Panel("traffic", "Traffic per round", lambda ax: _traffic(ax, facts, total=False)))
        found.append(Panel("traffic", "Traffic since the start", lambda ax: _traffic(ax, facts, total=True)))
        spent = phases(about, facts)
        found.append(Panel("time", "Time per round", lambda ax: _time(ax, *spent)))
        if len(spent[1]) > 1:
            found.append(Panel("time", "Where the time went", lambda ax: _where(ax, spent[1])))
    return found


def _learning(about: About, facts: Facts, metric: str) -> Panel:
    def paint(ax: Axes) -> None:
        low, high = np.inf, -np.inf
        for split, (label, colour, dash) in SPLITS.items():
            t, v = points(facts, split, metric)
            if not len(t):
                continue
            at, top = best(about, metric, t, v)
            few = "o" if len(t) == 1 else None
            said = f"{label}, best {score(top, metric)} in round {at}"
            ax.plot(*thin(t, v), color=colour, linestyle=dash, marker=few, markersize=3, label=said)
            ax.plot([at], [top], "o", color=colour, markerfacecolor="white", markersize=5.5, zorder=4)
            low, high = min(low, v.min()), max(high, v.max())
        _frame(ax, metric, low, high)
        rounds_axis(ax)
        legend(ax, columns=1)

    return Panel("learning", word(metric)[0].upper() + word(metric)[1:], paint)


def _frame(ax: Axes, metric: str, low: float, high: float) -> None:
    """Set the value axis: per cent for accuracy, R² not far below 0, logarithms where losses span decades."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if metric == "accuracy":
        ax.yaxis.set_major_formatter(FuncFormatter(percent))
        split = 0.06 * max(high - low, 0.02)
        ax.set_ylim(max(low - split, -0.02), min(high + split, 1.02))
    elif metric == "r2" and low < -1.0 < high:
        ax.set_ylim(-1.0, None)
    elif metric != "r2" and low > 0 and high / low > 30:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_ylabel(word(metric))


def _labels(ax: Axes, about: About, numbers: Array, counts: Array) -> None:
    parties, classes = counts.shape
    if parties <= FEW and classes <= 26:
        cell = 72 * min(0.80 * WIDTH / parties, 0.58 * HEIGHT / classes)
        y, x = np.nonzero(counts.T)
        area = counts[x, y] / max(counts.max(), 1) * cell**2
        ax.scatter(x, y, s=area, color=BLUE, alpha=0.85, linewidths=0)
        _party_axis(ax, about, numbers)
        ax.set_ylim(-0.7, classes - 0.3)
        ax.grid(axis="both")
        remark(ax, f"area: training samples; the largest circle is {counts.max():,}")
    else:
        bins = np.unique(np.linspace(0, classes, min(classes, 128) + 1).astype(int)[:-1])
        share = np.add.reduceat(counts, bins, axis=1) / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        order = np.argsort(share.argmax(axis=1), kind="stable")
        edge = (-0.5, parties - 0.5, -0.5, classes - 0.5)
        image = ax.imshow(share[order].T, aspect="auto", origin="lower", cmap=_blues(), vmin=0.0, extent=edge,
                          interpolation="none")  # fmt: skip
        bar = ax.figure.colorbar(image, ax=ax, pad=0.02, aspect=30, format=percent)
        bar.outline.set_visible(False)
        ax.grid(visible=False)
        ax.set_xlabel("parties, ordered by their most frequent class")
        remark(ax, f"colour: share of a party's samples{_chosen(about, parties)}")
    if classes <= 12:
        ax.set_yticks(np.arange(classes))
    ax.set_ylabel("class")


def _blues() -> Colormap:
    from matplotlib import colormaps

    return colormaps["Blues"].resampled(24)


def _sizes(ax: Axes, about: About, numbers: Array, counts: Array) -> None:
    sizes = counts.sum(axis=1)
    if len(sizes) <= FEW:
        ax.bar(np.arange(len(sizes)), sizes, width=0.75 if len(sizes) > 3 else 0.35, color=BLUE)
        _party_axis(ax, about, numbers)
    else:
        ax.stairs(np.sort(sizes)[::-1], np.arange(len(sizes) + 1) + 0.5, fill=True, color=BLUE)
        ax.set_xlabel(f"parties, largest first{_chosen(about, len(sizes))}")
        ax.set_xlim(0.5, len(sizes) + 0.5)
    mean = about.get("sizes", {}).get("mean", float(sizes.mean()))
    ax.axhline(mean, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), label=f"mean {number(mean)}")
    ax.set_ylim(0, None)
    ax.set_ylabel("training samples")
    legend(ax)


def _sorted(ax: Axes, lower: bool, metric: str, evaluation: Fact) -> None:
    """Paint every party as a dot from the worst to the best; the worst tenth in another colour."""
    values = np.sort(np.asarray(evaluation["each"], np.float64))
    values = values[::-1] if lower else values
    x = np.arange(1, len(values) + 1) * (evaluation.get("parties", len(values)) / len(values))
    worst = max(1, len(values) // 10)
    size = 14 if len(values) <= 60 else 5
    ax.scatter(x[:worst], values[:worst], s=size, color=VERMILION, linewidths=0, zorder=3)
    ax.scatter(x[worst:], values[worst:], s=size, color=BLUE, linewidths=0, zorder=3)
    lines = (
        (".mean", "mean", BLUE, "-"),
        (".worst10", "worst 10\u00a0%", VERMILION, (0, (4, 2))),
        (".best", "best", GREEN, ":"),
    )
    for key, label, colour, dash in lines:
        value = evaluation[f"{metric}{key}"]
        ax.axhline(value, color=colour, linestyle=dash, linewidth=1.0, label=f"{label}: {score(value, metric)}")
    _frame(ax, metric, float(values.min()), float(values.max()))
    ax.locator_params(axis="x", integer=True)
    ax.set_xlabel("parties, worst to best")
    legend(ax)


def _evolution(ax: Axes, metric: str, evaluations: Facts) -> None:
    t = np.asarray([f["round"] for f in evaluations])
    lines = {
        name: np.asarray([f[f"{metric}.{name}"] for f in evaluations], np.float64)
        for name in ("best", "mean", "worst10")
    }
    style = {
        "best": ("best", GREEN, ":"),
        "mean": ("mean", BLUE, "-"),
        "worst10": ("worst 10\u00a0%", VERMILION, (0, (4, 2))),
    }
    some = np.unique(np.linspace(0, len(t) - 1, min(len(t), MOST)).astype(int))
    ax.fill_between(t[some], lines["worst10"][some], lines["best"][some], color=PALE, alpha=0.6, linewidth=0)
    for name, (label, colour, dash) in style.items():
        ax.plot(*thin(t, lines[name]), color=colour, linestyle=dash, label=label)
    every = np.concatenate(list(lines.values()))
    every = every[np.isfinite(every)]
    _frame(ax, metric, every.min(initial=np.inf), every.max(initial=-np.inf))
    rounds_axis(ax)
    legend(ax)


def _traffic(ax: Axes, facts: Facts, *, total: bool) -> None:
    lines = {}
    for name in ("bytes_up", "bytes_down"):
        t, v = rounds(facts, name)
        lines[name] = (t, np.cumsum(v) if total else v)
    factor, unit = largest(max(v.max() for _, v in lines.values()), BYTES)
    words = {"bytes_up": ("up, from parties", BLUE, "-"), "bytes_down": ("down, to parties", ORANGE, (0, (4, 1.5)))}
    for name, (t, v) in lines.items():
        label, colour, dash = words[name]
        few = "o" if len(t) == 1 else None
        ax.plot(*thin(t, v / factor), color=colour, linestyle=dash, marker=few, markersize=3, label=label)
    ax.set_ylim(0, 1.08 * max(v.max() for _, v in lines.values()) / factor or 1.0)
    ax.set_ylabel(f"{unit} in all" if total else f"{unit} per round")
    rounds_axis(ax)
    legend(ax)


def _time(ax: Axes, t: Array, spent: Mapping[str, Array]) -> None:
    k = -(-len(t) // 160)  # rounds that share a step
    starts = np.arange(0, len(t), k)
    width = np.diff(np.append(starts, len(t)))
    steps = {name: np.add.reduceat(v, starts) / width for name, v in spent.items()}
    tops = np.sum(list(steps.values()), axis=0)
    edges = np.append(t[starts] - 0.5, t[-1] + 0.5)
    limit = 4.0 * float(np.median(tops))
    cut = np.nonzero(tops > limit)[0] if 0 < limit < 0.5 * tops.max() and len(tops) > 3 else np.arange(0)
    factor, unit = largest(limit / 2 if len(cut) else tops.max(), SECONDS)
    below = np.zeros(len(starts))
    for name, step in steps.items():
        colour = PHASES.get(name, BLUE)
        ax.stairs((below + step) / factor, edges, baseline=below / factor, fill=True, color=colour, label=name)
        below = below + step
    if len(cut):
        ax.set_ylim(0, limit / factor)
        first = int(cut[np.argmax(tops[cut])])
        said = f"cut off: {len(cut)} of {len(tops)} bars, up to {in_seconds(float(tops[first]))}"
        ax.annotate(said, (0.99, 0.97), xycoords="axes fraction", ha="right", va="top", color=GREY,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5})  # fmt: skip
    ax.set_ylabel(f"{unit} per round" + (f" (mean of {k})" if k > 1 else ""))
    ax.set_xlim(edges[0], edges[-1])
    rounds_axis(ax)
    if len(steps) > 1:
        legend(ax)


def _where(ax: Axes, spent: Mapping[str, Array]) -> None:
    totals = {name: float(v.sum()) for name, v in spent.items()}
    factor, unit = largest(max(totals.values()), SECONDS)
    whole = max(sum(totals.values()), 1e-12)
    for k, (name, seconds) in enumerate(totals.items()):
        ax.barh(-k, seconds / factor, color=PHASES[name], height=0.6)
        share = 100 * seconds / whole
        said = f" {in_seconds(seconds)} ({'<1' if 0 < share < 1 else f'{share:.0f}'}\u2009%)"
        ax.annotate(said, (seconds / factor, -k), va="center", xytext=(2, 0), textcoords="offset points")
    ax.set_yticks([-k for k in range(len(totals))], list(totals))
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1.35 * max(totals.values()) / factor or 1.0)
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"{unit} in all")


def _party_axis(ax: Axes, about: About, numbers: Array) -> None:
    """Label parties: by name where names are few and the font has their letters, else by number."""
    names = labels(about)
    ax.set_xlim(-0.7, len(names) - 0.3)
    ax.set_xlabel("party")
    if (
        about.get("names")
        and len(names) <= 12
        and all(n.isprintable() and max(map(ord, n), default=0) < 0x250 for n in names)
    ):
        short = [n if len(n) <= 10 else f"{n[:9].rstrip()}…" for n in names]
        tilt = 25 if len(names) * max(map(len, short)) > 44 else 0
        ax.set_xticks(np.arange(len(names)), short, rotation=tilt, ha="right" if tilt else "center")
        ax.set_xlabel("" if tilt else "party")
    elif len(names) <= 10:
        ax.set_xticks(np.arange(len(names)), [str(k) for k in numbers])
    else:
        some = np.arange(0, len(names), 5)
        ax.set_xticks(some, [str(numbers[k]) for k in some])


def _chosen(about: About, n: int) -> str:
    parties = int(about.get("parties", n))
    return f" ({n} of {parties:,})" if parties > n else ""


# --- figures ----------------------------------------------------------------------------------------------------------


def learning(about: About, facts: Facts) -> Figure:
    """Draw the learning curves: headline metric and loss, on the central test and on the parties' own."""
    return _group("learning", about, facts)


def partition(about: About, facts: Facts = ()) -> Figure:
    """Draw who holds what."""
    return _group("partition", about, facts)


def parties(about: About, facts: Facts) -> Figure:
    """Draw how the model does for each party at the end, and for the worst, the mean and the best over rounds."""
    return _group("parties", about, facts)


def spending(about: About, facts: Facts) -> Figure:
    """Draw the privacy spent over rounds, and what clipping and noise did."""
    return _group("privacy", about, facts)


def traffic(about: About, facts: Facts) -> Figure:
    """Draw bytes up and down, per round and summed up."""
    return _group("traffic", about, facts)


def timing(about: About, facts: Facts) -> Figure:
    """Draw where the time went, per round and in all."""
    return _group("time", about, facts)


def overview(about: About, facts: Facts) -> Figure:
    """Draw everything a run has to show as one figure."""
    return draw(panels(about, facts))


def _group(name: str, about: About, facts: Facts) -> Figure:
    return draw([p for p in panels(about, facts) if p.group == name])
