"""Figures: what is drawn is what was noted, for every kind of run."""

import matplotlib
import numpy as np
import pytest

from atoll.report import figures as fig
from atoll.runtimes.run import Run


def lines(ax):
    return [(line.get_xdata(), line.get_ydata()) for line in ax.lines]


def test_every_kind_of_run_can_be_drawn(case):
    _, about, facts = case
    before = dict(matplotlib.rcParams)
    figure = fig.overview(about, facts)
    figure.canvas.draw()
    assert dict(matplotlib.rcParams) == before
    assert len([ax for ax in figure.axes if ax.get_title("left")]) == len(fig.panels(about, facts))
    for draw in (fig.learning, fig.partition, fig.parties, fig.traffic, fig.timing):
        assert draw(about, facts).get_size_inches()[0] > 4


def test_a_run_draws_itself(run):
    about, facts = run
    figure = Run(None, {}, facts, about=about).plot()
    shown = [ax.get_title("left") for ax in figure.axes if ax.get_title("left")]
    assert shown == [panel.title for panel in fig.panels(about, facts)]
    assert {"Accuracy", "Traffic per round"} <= set(shown)


def test_every_kind_of_private_run_can_be_drawn(private_case):
    _, about, facts = private_case
    ran = any(f["what"] == "round" for f in facts)
    short = any("aborted" in f for f in facts)
    assert len(fig.spending(about, facts).axes) == 4 * ran
    assert [p.group for p in fig.panels(about, facts)].count("answers") == short


def test_curves_are_the_facts_and_the_best_is_marked(run):
    about, facts = run
    ax = fig.learning(about, facts).axes[0]
    evaluations = [f for f in facts if f["what"] == "evaluation" and f["split"] == "test"]
    (t, v), (at, top) = lines(ax)[:2]
    assert t.tolist() == [f["round"] for f in evaluations]
    assert v.tolist() == [f["accuracy"] for f in evaluations]
    assert top[0] == max(v)
    assert at[0] == t[np.argmax(v)]


def test_thinning_keeps_first_last_lowest_and_highest():
    rng = np.random.default_rng(0)
    t, v = np.arange(5000), rng.normal(size=5000)
    a, b = fig.thin(t, v)
    assert len(a) <= fig.MOST + 2
    assert {0, 4999, int(v.argmin()), int(v.argmax())} <= set(a.tolist())
    assert np.array_equal(b, v[a])
    assert (np.diff(a) > 0).all()


def test_phases_add_up_to_the_seconds_noted(run):
    about, facts = run
    t, spent = fig.phases(about, facts)
    noted = sum(f["seconds"] for f in facts if f["what"] in ("round", "evaluation"))
    assert t.tolist() == [0, 1, 2, 3, 4]
    assert sum(v.sum() for v in spent.values()) == pytest.approx(noted)
    facts = [{"what": "round", "round": 1, "seconds": 1.0, "work": 0.9, "compile": 0.3}]
    assert fig.phases(about, facts)[1]["combine"].tolist() == [0.0]


def test_every_title_is_inside_its_picture(run):
    for panel in fig.panels(*run):
        figure = fig.draw([panel])
        (ax,) = figure.axes
        title = ax.get_tightbbox(for_layout_only=False)
        assert title.y1 <= figure.bbox.height, panel.title


def test_a_program_with_roles_has_rounds_of_one_phase_and_whole_ticks():
    about = {"roles": {"A": {}}, "parties": 1}
    facts = [{"what": "round", "round": 1, "seconds": 2.0, "asked": 3, "answered": 3, "bytes_up": 9, "bytes_down": 9}]
    assert [p.title for p in fig.panels(about, facts) if p.group == "time"] == ["Time per round"]
    (ax,) = fig.timing(about, facts).axes
    assert ax.get_legend() is None
    assert [k for k in ax.get_xticks() if k != round(k)] == []


def test_traffic_is_summed(tell):
    about, facts = tell(rounds=3, parties=20)
    up = lines(fig.traffic(about, facts).axes[1])[0][1]
    assert up.tolist() == pytest.approx([26.04, 52.08, 78.12])


def test_the_partition_names_the_parties_it_shows(tell):
    about, _ = tell(parties=10_000, classes=100)
    numbers, counts = fig.shown(about)
    assert (len(numbers), numbers[0], numbers[-1]) == (200, 0, 9999)
    assert counts.shape == (200, 100)
    about, _ = tell(parties=3, names=("a", "b", "c"))
    assert [label.get_text() for label in fig.partition(about).axes[0].get_xticklabels()] == ["a", "b", "c"]


def test_numbers_as_people_write_them():
    assert fig.score(0.93871, "accuracy") == "93.9\u00a0%"
    assert fig.score(0.00012345, "loss") == "0.000123"
    assert [fig.number(v) for v in (0.5, 12.345, 99.96, 1234.5)] == ["0.50", "12.3", "100", "1,234"]
