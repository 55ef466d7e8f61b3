"""The page: whole for every kind of run, self-contained, escaped, deterministic, and its numbers are the facts'."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import atoll
from atoll.core.world import World
from atoll.data.roles import nothing
from atoll.job.assemble import assemble
from atoll.programs.vertical.moments import JointMoments
from atoll.report.page import caption, notes, page, result, tiles, wall, write
from atoll.report.privacy import accounts, in_epsilon
from atoll.report.units import in_bytes, in_seconds
from atoll.runtimes.network.server.serve import remote
from atoll.runtimes.roles.simulate import describe as describe_roles
from atoll.runtimes.run import describe

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Reader(HTMLParser):
    """Read a page: its text, its addresses, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.addresses, self.tags, self.ids = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("href", "src", "xlink:href", "action", "data", "srcset")]
        self.ids += [v for k, v in attrs if k == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_every_kind_of_run_has_a_whole_self_contained_page(case):
    _, about, facts = case
    whole(page(about, facts))


def test_every_kind_of_private_run_has_a_whole_self_contained_page(private_case):
    _, about, facts = private_case
    text = page(about, facts)
    whole(text)
    words = re.sub(r"<(svg|style|pre)\b.*?</\1>", " ", text, flags=re.DOTALL)
    spent = accounts(about, facts)
    assert bool(spent) == any(f["what"] == "round" for f in facts)
    for account in spent:
        # No ε stands without its words: on its tile, below its figure, in the table.
        assert words.count(account.words) == 3
        for said in words.split(f"ε {in_epsilon(account.epsilon)}")[1:]:
            assert account.words in said[:400]


def whole(text):
    read = Reader(text)
    assert not read.open
    assert not {"script", "link", "iframe", "img"} & set(read.tags)
    assert all(a.startswith(("#", "data:image/png;base64,")) for a in read.addresses)
    assert len(read.ids) == len(set(read.ids))
    assert {a[1:] for a in read.addresses if a[0] == "#"} <= set(read.ids)
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)
    assert text.count("<h1>") == 1
    assert not {"nan", "None", "inf"} & set(re.findall(r"\w+", " ".join(read.words[2:])))


def test_equal_facts_give_equal_bytes_whatever_the_users_style(tell):
    import matplotlib

    about, facts = tell(private=("party",))
    first = page(about, facts)
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 20, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        assert page(about, facts) == first
        assert dict(matplotlib.rcParams) == before


def test_numbers_on_the_page_are_those_of_the_facts(run, tmp_path):
    about, facts = run
    text = " ".join(Reader(write(tmp_path / "a" / "report.html", about, facts).read_text(encoding="utf-8")).words)
    text = text.replace("\u00a0", " ")
    evaluations = [f for f in facts if f["what"] == "evaluation" and f["split"] == "test"]
    local = [f for f in facts if f["what"] == "evaluation" and f["split"] == "local"][-1]
    turns = [f for f in facts if f["what"] == "round"]
    best = max(evaluations, key=lambda f: f["accuracy"])
    said = [
        f"FedAvg reached {100 * evaluations[-1]['accuracy']:.1f} % test accuracy after 4 rounds with 6 parties "
        "(3 a round)",
        "it ended because all 4 rounds were done",
        f"best {100 * best['accuracy']:.1f} % in round {best['round']}",
        f"local accuracy; mean {100 * local['accuracy.mean']:.1f} %",
        f"{100 * local['accuracy.worst10']:.1f} %",
        "650",
        in_bytes(sum(f["bytes_up"] for f in turns) + sum(f["bytes_down"] for f in turns)),
        in_bytes(sum(f["bytes_up"] for f in turns) / sum(f["answered"] for f in turns)),
        in_seconds(facts[-1]["time"]),
        in_seconds(float(np.median([f["seconds"] for f in turns]))),
        f"{sum(f.get('lost', 0) for f in turns)} of 12 answers were lost",
        f"{about['sizes']['least']} to {about['sizes']['most']} training samples each",
        'data = { use = "digits"',
        "all parties were simulated on one machine",
        about["environment"]["jax"],
    ]
    for words in said:
        assert words in text


@pytest.mark.parametrize("world", [World.simulated(0), World.real(0)], ids=["simulated", "real"])
def test_a_report_says_where_the_parties_were(digits, world):
    """A hidden sum with noise, and a program with roles: each shows a protection."""
    private = [atoll.Clip(1.0), atoll.Average("expected"), atoll.Ring(), atoll.Gaussian(1.0, where="distributed")]
    channel = atoll.Channel(private, atoll.SecureSum())
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), atoll.All(), channel, rounds=2)
    data = remote(digits, digits.train.sizes.tolist()) if world.secret else digits
    summed = describe(assemble(job, data, 0, world=world), data, 0)
    moments = atoll.RoleJob(JointMoments(), {"A": "bank", "B": "shop", "C": "notary"})
    brought = dict.fromkeys("ABC", nothing().summary(b""))
    end = {"what": "end", "round": 2, "reason": "all 2 rounds done"}
    for about in (summed, describe_roles(moments, brought, world)):
        html = page(about, [{"what": "start", "round": 0}, end])
        assert ("imulat" in html) == (not world.secret)
        assert ("<b class=tag>simulated</b>" in html) == (not world.secret)
        assert ("The parties of this run were elsewhere" in html) == world.secret


def test_a_server_does_not_know_the_labels_of_parties_elsewhere(digits):
    data = remote(digits, digits.train.sizes.tolist())
    job = atoll.Job(atoll.FedAvg(atoll.models.softmax()), rounds=2)
    html = page(describe(assemble(job, data, 0, world=World.real(0)), data, 0), [{"what": "start", "round": 0}])
    assert "classes" not in html.partition("<h2>Job file")[0].partition("<h2>")[2]
    assert f"<td>{digits.train.sizes[0]}</td>" in html


def test_the_table_says_what_each_party_holds(run):
    about, facts = run
    table = page(about, facts).split("most frequent class")[1]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", table)]
    for k, held in enumerate(about["partition"]):
        n, most = sum(held), max(held)
        share = f"{100 * n / about['sizes']['all']:.1f} %"
        assert rows[k] == [
            str(k),
            str(n),
            share,
            str(np.count_nonzero(held)),
            f"{held.index(most)} ({100 * most / n:.0f} %)",
        ]


def test_each_of_three_hundred_named_parties_stands_beside_what_it_holds():
    """Only some are shown, and each is shown under its own name: party k is called w0k and has 1 + k % 7 samples."""
    names = [f"w{k:03}" for k in range(300)]
    sizes = {name: 1 + k % 7 for k, name in enumerate(names)}
    data = atoll.data.federate([(np.ones((n, 2)), np.arange(n) % 2) for n in sizes.values()], names=names, classes=2)
    about = describe(atoll.assemble(atoll.Job(atoll.FedAvg(atoll.models.softmax())), data), data, 0)
    table = page(about, []).split("most frequent class")[1]
    rows = [re.findall(r"<td>(.*?)</td>", row)[:2] for row in re.findall(r"<tr>.*?</tr>", table)]
    held = {row[0]: int(row[1]) for row in rows if row and row[0] in sizes}
    assert len(held) == 200
    assert {"w000", "w299"} <= set(held)
    assert held == {name: sizes[name] for name in held}


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "$\\frac{$", "\ud800", ""]
)
def test_names_of_users_stay_words(name, tell, tmp_path):
    about, facts = tell(parties=3, rounds=2, names=(name, "b" * 300, "医院"), private=("party",))
    about["seen"] |= {"server": name, name: "simulated"}
    about["pipeline"] = [name]
    facts[-1]["epsilon_means"] = f"unit: {name}"
    [f for f in facts if f["what"] == "round"][1]["aborted"] = name
    about["job"]["name"] = name
    about["environment"]["atoll"] = name
    facts[-1] |= {"reason": name, "complete": False}
    facts.insert(1, {"what": "in process", "why": name, "time": 0.0})
    facts.append({"what": name or "odd", "value": name})
    text = write(tmp_path / "r.html", about, facts).read_text(encoding="utf-8")
    read = Reader(text)
    assert not {"script", "img"} & set(read.tags)
    assert name.encode("utf-8", "backslashreplace").decode() in "".join(read.words)


def test_the_caption_of_traffic_tells_what_evaluation_took(tell):
    """2,600 bytes to each of 20 parties, and 200 from it, before the first round and after each of 3."""
    told = "; 4 evaluations on their own data took another 16 kB up and 208 kB down."
    assert caption("traffic", *tell(rounds=3)).endswith(told)
    assert "evaluation" not in caption("traffic", *tell(rounds=3, splits=("test",)))


def test_the_sentence_at_the_top(tell):
    about, facts = tell(kind="real", rounds=3, parties=2)
    assert result(about, facts).startswith(
        "FedAvg reached a test R² of 0.982 after 3 rounds with 2 parties (1 a round);"
    )
    about, facts = tell(splits=("local",), parties=1, rounds=1, ended=False)
    assert "on the parties' own test data after 1 round with 1 party; it has not ended" in result(about, facts)
    about, facts = tell(splits=(), rounds=3)
    facts[-1] |= {"reason": "3 s have passed (wall time 3 s)", "complete": False}
    assert result(about, facts) == (
        "FedAvg trained for 3 rounds with 20 parties (10 a round); it ended because 3 s have passed (wall time 3 s)."
    )
    about["job"]["method"]["server"] = {"use": "adam", "lr": 0.1}
    assert result(about, facts).startswith("FedAdam ")
    about["job"]["method"]["server"] = {"use": "fedyogi", "lr": 0.1}
    assert result(about, facts).startswith("FedYogi ")


def test_notes_say_what_went_wrong(tell):
    about, facts = tell(rounds=6)
    turns = [f for f in facts if f["what"] == "round"]
    turns[1] |= {"lost": 3, "answered": 6}
    turns[2]["died"] = "worker 1 (out of memory)"
    at = facts.index(turns[3])
    facts[at:at] = [{"what": "resume", "round": 3, "time": 0.01}, {"what": "empty", "round": 4, "time": 0.02}]
    said = " ".join(notes(about, facts))
    assert "3 of 60 answers were lost, in 1 round." in said
    assert "1 of 60 answers were not waited for." in said
    assert "Round 3: a worker process died and was replaced: worker 1 (out of memory)" in said
    assert "resumed after round 3" in said
    assert "1 round had nobody to ask" in said
    assert said.endswith("The run ended after round 6: all 6 rounds done.")


def test_the_clock_of_a_resumed_run_is_that_of_all_sittings():
    facts = [{"what": "start", "time": 0.1}, {"what": "round", "time": 5.0}, {"what": "resume", "time": 0.2},
             {"what": "end", "time": 2.0}]  # fmt: skip
    assert wall(facts) == 7.0


def test_numbers_that_are_not_finite_are_left_out(tell):
    about, facts = tell(rounds=5)
    for fact in [f for f in facts if f["what"] == "evaluation"][-2:]:
        fact["loss"] = float("nan")
    said = {what: value for what, value, _ in tiles(about, facts)}
    assert said["Test loss"] == f"{[f for f in facts if f.get('split') == 'test'][-2]['loss']:.3f}"
    assert "nan" not in page(about, facts)


def test_a_thousand_rounds_of_a_thousand_parties_stay_small(tell, tmp_path):
    about, facts = tell(parties=1000, rounds=1000, classes=62)
    assert write(tmp_path / "r.html", about, facts).stat().st_size < 1_500_000


def test_a_report_that_cannot_be_written_leaves_what_was_there(tell, tmp_path):
    about, facts = tell(rounds=0, splits=())
    path = write(tmp_path / "r.html", about, facts)
    assert write(path, about, facts) == path
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").touch()
    with pytest.raises(OSError, match="folder"):
        write(tmp_path / "folder", about, facts)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "old", "r.html"]
