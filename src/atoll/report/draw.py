"""How every figure is drawn: colours, axes, and panels laid out as one figure. No file is written here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from atoll.core.tree import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Fact = Mapping[str, Any]  # of a journal: whoever reads it knows what its kind of fact holds
Facts = Sequence[Fact]
About = Fact

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
BLUE, VERMILION, GREEN, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9"
INK, GREY, PALE = "#222222", "#767676", "#e4e4e4"
WIDTH, HEIGHT = 4.4, 3.0  # inches of a panel
MOST = 240  # points of a line, after thinning
TALL = {"learning": 0.74, "privacy": 0.79}  # groups with a legend of several lines: where their axes end

STYLE: dict[str, str | float | bool | list[str]] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 8.0, "text.color": INK,
    "text.parse_math": False, "axes.titlesize": 9.0, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.titlepad": 20.0, "axes.labelcolor": INK, "axes.edgecolor": GREY, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "axes.axisbelow": True, "axes.unicode_minus": True, "grid.color": PALE, "grid.linewidth": 0.6,
    "xtick.color": GREY, "ytick.color": GREY, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "lines.linewidth": 1.5, "legend.frameon": False,
    "legend.fontsize": 8.0, "svg.fonttype": "path", "svg.hashsalt": "atoll",
}  # fmt: skip


class Panel(NamedTuple):
    """One picture: the group it stands in, its title, and how it is painted on axes."""

    group: str
    title: str
    paint: Callable[[Axes], None]


def number(value: float) -> str:
    """Write a number with three digits that count."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def largest(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the largest unit that a value reaches, else the smallest."""
    return next((u for u in units if abs(value) >= 0.9995 * u[0]), units[-1])


def thin(t: Array, v: Array, most: int = MOST) -> tuple[Array, Array]:
    """Keep the first and last point and the lowest and highest of every stretch: no peak is lost."""
    if len(t) <= most:
        return t, v
    kept = {0, len(t) - 1}
    for part in np.array_split(np.arange(len(t)), most // 2):
        kept |= {int(part[np.argmin(v[part])]), int(part[np.argmax(v[part])])}
    chosen = np.asarray(sorted(kept))
    return t[chosen], v[chosen]


def percent(value: float, _: object = None) -> str:
    """Write a share as an axis does."""
    return f"{100 * value:.4g}\u2009%"


def rounds_axis(ax: Axes) -> None:
    """Make the horizontal axis one of rounds: whole numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    ax.set_xlabel("round")


def legend(ax: Axes, columns: int = 4) -> None:
    """Put the legend between title and axes."""
    rows = -(-len(ax.get_legend_handles_labels()[0]) // columns)
    if rows:
        box = ax.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, borderpad=0.2,
                        borderaxespad=0.2, handlelength=1.8, handletextpad=0.5, columnspacing=1.1,
                        labelspacing=0.25)  # fmt: skip
        box.set_in_layout(False)
        ax.set_title(ax.get_title("left"), pad=8 + 12 * rows)


def remark(ax: Axes, text: str) -> None:
    """Write a line between title and axes."""
    ax.annotate(text, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", color=GREY)


@contextmanager
def styled() -> Iterator[None]:
    """Draw in this module's style, whatever the user's; theirs is back afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def draw(chosen: Sequence[Panel]) -> Figure:
    """Draw panels as one figure, at most two of a group in a row; one that stands alone gets the whole row."""
    from matplotlib.figure import Figure

    with styled():
        groups = [[p for p in chosen if p.group == name] for name in dict.fromkeys(p.group for p in chosen)]
        rows = [group[k : k + 2] for group in groups for k in range(0, len(group), 2)]
        columns = max((len(row) for row in rows), default=1)
        figure = Figure(figsize=(WIDTH * columns, HEIGHT * max(1, len(rows))))
        if len(chosen) > 1:
            figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        else:  # margins that suit every panel, so that panels side by side are aligned
            top = TALL.get(chosen[0].group, 0.84) if chosen else 0.84
            figure.subplots_adjust(left=0.155, right=0.97, bottom=0.16, top=top)
        grid = figure.add_gridspec(max(1, len(rows)), columns)
        for k, row in enumerate(rows):
            for column, panel in enumerate(row):
                alone = slice(None) if len(row) == 1 else column
                ax = figure.add_subplot(grid[k, alone])
                ax.set_title(panel.title)
                panel.paint(ax)
        if not chosen:
            figure.text(0.5, 0.5, "nothing was noted yet", ha="center", color=GREY)
    return figure
