"""Privacy on the page: every figure is the facts', every ε has its words, and what is simulated says so."""

import re
from decimal import Decimal
from html import unescape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.privacy.account import in_words
from atoll.report import figures as fig
from atoll.report import privacy
from atoll.report.page import notes, page, tiles
from atoll.report.units import in_bytes, in_seconds

GROUPS = {"privacy", "answers", "compression"}


def plain(html):
    """Return the words of a page without its pictures and marks."""
    text = re.sub(r"<(svg|style|pre)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", text)).replace("\u00a0", " ")


def titles(about, facts):
    return [p.title for p in fig.panels(about, facts) if p.group in GROUPS]


def axes(about, facts, title):
    (chosen,) = [p for p in fig.panels(about, facts) if p.title == title]
    return fig.draw([chosen]).axes[0]


def lines(ax):
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def turns(facts):
    return [f for f in facts if f["what"] == "round"]


# --- laws -------------------------------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6))
def test_an_epsilon_is_never_written_too_small(value):
    written = Decimal(privacy.in_epsilon(value).replace(",", ""))
    assert Decimal(repr(value)) <= written <= Decimal(repr(value)) * Decimal("1.0101")
    assert Decimal(privacy.in_epsilon(float(written)).replace(",", "")) == written


def test_epsilons_as_people_write_them():
    values = (0.0, 0.0012341, 0.5, 2.004, 3.06, 19.81, 99.95, 1234.2, float("inf"))
    said = ["0", "0.00124", "0.500", "2.01", "3.06", "19.9", "100.0", "1,235", "∞"]
    assert [privacy.in_epsilon(v) for v in values] == said


def test_facts_without_privacy_claim_nothing(case):
    _, about, facts = case
    assert not privacy.accounts(about, facts)
    assert not titles(about, facts)
    assert privacy.section(about, facts) == ""
    assert not privacy.tiles(about, facts)
    assert not privacy.notes(about, facts)


# --- a real run -------------------------------------------------------------------------------------------------------


def test_numbers_of_a_private_run_are_those_of_the_facts(private_run):
    about, facts = private_run
    text = plain(page(about, facts))
    end = facts[-1]
    epsilon, tight = (privacy.in_epsilon(end[name]) for name in ("epsilon", "epsilon_tight"))
    means = in_words(end["epsilon_means"])
    clipped, noise = (100 * np.mean([f[name] for f in turns(facts)]) for name in ("clipped", "noise_share"))
    lost, asked = (sum(f.get(name, 0) for f in turns(facts)) for name in ("lost", "asked"))
    said = [
        f"ε {epsilon} at δ 0.01",
        f"tight {tight} (PLD); {means}",
        f"ε {epsilon}, or {tight} by PLD, was spent ({means})",
        f"{clipped:.3g} % of the vectors were clipped on average",
        f"noise had {noise:.3g} % of the noisy vector's length",
        f"Answers: {lost} of {asked} were lost.",
        f"server{about['seen']['server']}",
        f"{means}{epsilon}{tight}{privacy.in_epsilon(about['privacy']['epsilon_planned'])}",
        "it ended because the budget of epsilon 1.8 at delta 0.01 allows 6 rounds",
    ]
    for words in said:
        assert words in text
    assert end["epsilon_means"] == about["privacy"]["epsilon_means"]
    assert end["epsilon"] <= 1.8 < about["privacy"]["epsilon_planned"]


def test_curves_of_a_private_run_are_the_facts(private_run):
    about, facts = private_run
    rounds = [f["round"] for f in turns(facts)]
    spent = list(lines(axes(about, facts, "Privacy spent")).values())
    noted = [f for f in facts if f["what"] in ("round", "empty")]
    assert spent[0] == ([f["round"] for f in noted], [f["epsilon"] for f in noted])
    assert spent[1] == ([noted[-1]["round"]], [facts[-1]["epsilon_tight"]])
    assert spent[2][1] == [1.8, 1.8]
    for title, name in (
        ("Vectors that were clipped", "clipped"),
        ("Norm that vectors are clipped to", "clip_norm"),
        ("Noise in the noisy vector", "noise_share"),
    ):
        assert next(iter(lines(axes(about, facts, title)).values())) == (rounds, [f[name] for f in turns(facts)])
    found = lines(axes(about, facts, "Vectors that were clipped"))
    assert found["aim 50\u2009%"][1] == [0.5, 0.5]
    found = lines(axes(about, facts, "Answers"))
    assert found["asked"] == (rounds, [f["asked"] for f in turns(facts)])
    assert found["used"] == (rounds, [f["answered"] for f in turns(facts)])


def test_everything_of_a_private_run_fits_one_figure(tell):
    about, facts = tell(private=("party", "example"))
    figure = fig.overview(about, facts)
    figure.canvas.draw()
    assert [ax.get_title("left") for ax in figure.axes if ax.get_title("left")] == [
        p.title for p in fig.panels(about, facts)
    ]
    assert figure.get_size_inches()[0] == 2 * 4.4
    assert len(fig.spending(about, facts).axes) == 4


def test_a_run_from_before_privacy_still_has_its_page(run):
    about, facts = run
    for record in (about, facts[0]):
        for name in ("seen", "privacy", "pipeline"):
            record.pop(name, None)
    text = plain(page(about, facts))
    assert "Who sees what" not in text
    assert "ε" not in text
    assert "differentially private" not in text
    assert titles(about, facts) == ["Answers"]


def test_a_run_without_noise_says_so(run):
    about, facts = run
    text = plain(page(about, facts))
    assert "Who sees what" in text
    assert about["seen"]["server"] in text
    assert privacy.OPEN in text
    assert "Privacy spent" not in text


# --- single facts -----------------------------------------------------------------------------------------------------


def test_two_units_have_two_accounts(tell):
    about, facts = tell(private=("party", "example"))
    assert [(a.name, a.unit, a.delta) for a in privacy.accounts(about, facts)] == [
        ("epsilon", "party", "0.001"),
        ("epsilon_example", "example", "0.0001"),
    ]
    said = [tile for tile in tiles(about, facts) if tile[0].startswith("Privacy spent")]
    assert [value for _, value, _ in said] == ["ε 4.50 at δ 0.001", "ε 9.00 at δ 0.0001"]
    found = lines(axes(about, facts, "Privacy spent"))
    assert {"party 4.50 by RDP", "party 4.00 by PLD", "example 9.00 by RDP", "example 8.00 by PLD"} < set(found)
    about["job"]["stop"].append({"use": "budget", "epsilon": 20.0, "unit": "example"})
    ax = axes(about, facts, "Privacy spent")
    assert [text.get_text() for text in ax.texts] == ["budget 8.5", "budget 20 (example)"]
    assert [list(line.get_ydata()) for line in ax.lines[-2:]] == [[8.5, 8.5], [20.0, 20.0]]


def test_what_was_not_computed_is_not_shown(tell):
    about, facts = tell(private=("party",))
    del facts[-1]["epsilon_tight"]
    assert "by PLD" not in privacy.caption("privacy", about, facts)
    (tile,) = (tile for tile in tiles(about, facts) if tile[0].startswith("Privacy spent"))
    assert tile[2] == in_words(facts[-1]["epsilon_means"])
    for fact in facts:
        fact.pop("epsilon_means", None)
    del about["privacy"]
    assert privacy.accounts(about, facts)[0].words == privacy.UNSAID
    for said in (privacy.tiles(about, facts)[0][2], privacy.caption("privacy", about, facts)):
        assert privacy.UNSAID in said
    assert privacy.UNSAID in privacy.section(about, facts)


def test_an_epsilon_that_has_no_bound_is_said_and_not_drawn(tell):
    about, facts = tell(private=("party",))
    for fact in facts:
        if "epsilon" in fact:
            fact["epsilon"] = float("inf")
    facts[-1].pop("epsilon_tight")
    assert "Privacy spent" not in titles(about, facts)
    assert privacy.tiles(about, facts)[0][1] == "ε ∞ at δ 0.001"
    assert "<td>∞</td>" in privacy.section(about, facts)


def test_empty_rounds_spend_too(tell):
    about, facts = tell(private=("party",), rounds=3)
    facts.insert(-1, {"what": "empty", "round": 4, "epsilon": 1.75, "time": 0.3})
    (t, v), *_ = lines(axes(about, facts, "Privacy spent")).values()
    assert (t[-1], v[-1]) == (4, 1.75)


def test_what_is_simulated_has_a_mark(tell):
    about, facts = tell(private=("party",))
    html = privacy.section(about, facts)
    assert html.count("<b class=tag>simulated</b>") == 1
    assert privacy.SIMULATED in html
    assert tiles(about, facts)[6][0] == "Privacy spent (simulated noise)"
    about.pop("simulated")  # who does not say is taken to have simulated
    assert privacy.SIMULATED in privacy.section(about, facts)
    about["simulated"] = False
    about["seen"] = {"server": "the sum of at least 7 vectors"}
    assert "imulated" not in privacy.section(about, facts)
    assert "imulated" not in privacy.caption("privacy", about, facts)
    assert privacy.tiles(about, facts)[0][0] == "Privacy spent"


def test_the_section_shows_every_sentence_about_who_sees_what(tell):
    about, facts = tell(private=("party",))
    rows = re.findall(r"<tr><td>(.*?)</td><td>(?:<b.*?</b> )?(.*?)</td></tr>", privacy.section(about, facts))
    assert [(unescape(who), unescape(what)) for who, what in rows[: len(about["seen"])]] == list(about["seen"].items())
    for line in about["pipeline"]:
        assert f"<li>{line}</li>" in privacy.section(about, facts)


def test_rounds_that_opened_nothing_are_counted_with_examples(tell):
    about, facts = tell(private=("party",), rounds=9)
    (said,) = privacy.notes(about, facts)
    assert said == (
        "1 round opened nothing, and left the model as it was; what such a round would have spent counts all the same "
        "(round 2: 4 of 10 answered, 7 are needed: nothing was opened)."
    )
    for fact in turns(facts)[3:8]:
        fact |= {"answered": 0, "aborted": "0 of 10 answered, 7 are needed: nothing was opened"}
    (said,) = privacy.notes(about, facts)
    assert said.startswith("6 rounds opened nothing")
    assert said.count("7 are needed") == privacy.EXAMPLES
    assert said.endswith("; …).")
    # Those who answered in vain were waited for.
    assert "not waited for" not in " ".join(notes(about, facts))
    assert "6 of 90 answers were lost, in 1 round." in notes(about, facts)
    assert privacy.caption("answers", about, facts) == "Answers: 6 of 90 were lost; 6 rounds opened nothing."
    found = lines(axes(about, facts, "Answers"))
    assert found["nothing opened"][0] == [2, 4, 5, 6, 7, 8]
    assert found["needed"] == ([2], [7])
    assert found["used"][1] == [10, 0, 10, 0, 0, 0, 0, 0, 10]


def test_too_few_answers_count_as_nothing_opened(tell):
    about, facts = tell(rounds=3)
    turns(facts)[1] |= {"answered": 4, "needed": 7, "lost": 6}
    (said,) = privacy.notes(about, facts)
    assert said == "1 round opened nothing, and left the model as it was (round 2: 4 of 10 answered, 7 are needed)."


def test_clipping_without_noise_promises_nothing(tell):
    about, facts = tell(rounds=2)
    for fact, value in zip(turns(facts), (0.2, 0.4), strict=True):
        fact["clipped"] = value
    assert titles(about, facts) == ["Vectors that were clipped"]
    assert privacy.caption("privacy", about, facts) == (
        "Privacy: 30 % of the vectors were clipped on average; no noise is added, so nothing here is "
        "differentially private."
    ).replace("30 %", "30\u00a0%")
    assert not privacy.tiles(about, facts)


def test_the_error_of_compression_is_drawn(tell):
    about, facts = tell(rounds=2)
    for fact, value in zip(turns(facts), (0.2, 0.4), strict=True):
        fact["error_share"] = value
    assert next(iter(lines(axes(about, facts, "Error of compression")).values())) == ([1, 2], [0.2, 0.4])
    assert "off by 30\u00a0% of their length" in privacy.caption("compression", about, facts)


def test_a_protocol_that_was_run_tells_its_cost(tell):
    about, facts = tell(rounds=2)
    for fact in turns(facts):
        fact |= {"protocol_bytes": 5000.0 + fact["round"], "protocol_client": 0.004, "protocol_server": 0.02}
    assert privacy.tiles(about, facts) == [
        ("A party's protocol, a round", in_bytes(5001.5), f"sent; {in_seconds(0.004)} of CPU each; server 20 ms")
    ]
    for fact in turns(facts):
        fact.pop("protocol_client")  # which no server knows of parties that are elsewhere
    assert privacy.tiles(about, facts)[0][2] == "sent; server 20 ms"
    for fact in turns(facts):
        fact.pop("protocol_server")
    assert privacy.tiles(about, facts)[0][2] == "sent"


def test_accounts_of_release_0_1_are_shown_as_they_were_noted(tell):
    """It noted sentences, and δ as a number for the first account only."""
    about, facts = tell(private=("party", "example"))
    first, second = "unit: party; delta: 0.5; accountant: RDP", "unit: example; delta: 0.25; accountant: RDP"
    about["privacy"] = {"words": first, "delta": 1e-3, "epsilon_planned": 2.0, "epsilon_example_means": second}
    facts[-1] |= {"epsilon_means": first, "epsilon_example_means": second}
    found = privacy.accounts(about, facts)
    assert [(a.words, a.unit, a.delta) for a in found] == [(first, "", "0.001"), (second, "example", "")]
    assert first in privacy.section(about, facts)
    assert first in privacy.section(about, [])


@pytest.mark.parametrize("said", [None, "words", []])
def test_strange_accounts_of_privacy_are_left_out(said, tell):
    about, facts = tell(rounds=1)
    about["seen"] = about["privacy"] = said
    assert privacy.section(about, facts) == ""
