"""Files of release 0.1 are rewritten word by word: the same job in memory and as text, and nothing else is touched."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.renames import FIELDS, PARTS
from atoll.data.catalogue import FEDERATIONS, TABLES
from atoll.data.errors import options_of
from atoll.data.partition import SCHEMES
from atoll.data.recipe import SPLIT
from atoll.job.catalogue import PARTS as TODAY
from atoll.job.catalogue import BadJob, find, parameters
from atoll.job.file import KEYS as KEYS_TODAY
from atoll.job.file import from_table, parse
from atoll.job.migrate import kind_of, migrate, rewrite
from atoll.job.renames import DATA, KEYS, POLICY
from atoll.job.spans import scan
from atoll.runtimes.network.party.policy import Policy

RELEASE = Path(__file__).parents[1] / "golden" / "release_0_1"
WORDS = json.loads((RELEASE / "words.json").read_text())
JOBS = sorted(RELEASE.glob("*.toml"))

# Every renamed word of a job, in every form that TOML has for it.
EVERY_FORM = """\
# every = 3 is said below; "over" too
name = "all words"   # tree
rounds = 4
every = 2  # rounds between two looks
stages = [
  { use = "clip", norm = 1.0 },  # least, most
  { use = 'weigh', "most" = 100.0 },
  "tree",
  { use = "tree", every = 4 },
]
combine = { use = "secure_sum", least = 3, real = true }
stop = [{ use = "still" }, { use = "patience", metric = "own.loss", least = 1e-3 }, { use = "target" }]

[data]
use = "digits"
clients = 12
by = "dirichlet"
least = 2

[method]
use = "fedadam"
model.use = "mlp"
model.hidden = [8]

[method.private]
use = "example_dp"
clip = 0.5

[select]
use = "over"
factor = 1.5
select = "in_turn"
"""
REWRITTEN = """\
# every = 3 is said below; "over" too
name = "all words"   # tree
rounds = 4
eval_every = 2  # rounds between two looks
stages = [
  { use = "clip", norm = 1.0 },  # least, most
  { use = 'weigh', max_weight = 100.0 },
  "tree_noise",
  { use = "tree_noise", every = 4 },
]
combine = { use = "secure_sum", min_parties = 3 }
stop = [{ use = "converged" }, { use = "patience", metric = "local.loss", min_delta = 1e-3 }, { use = "target" }]

[data]
use = "digits"
clients = 12
by = "dirichlet"
min_samples = 2

[method]
use = "fedadam"
model.use = "mlp"
model.hidden = [8]

[method.example_dp]
use = "example_dp"
clip = 0.5

[select]
use = "oversample"
factor = 1.5
select = "round_robin"
"""


def test_every_word_is_renamed_where_it_stands_and_all_else_stays() -> None:
    text, changes = rewrite(EVERY_FORM)
    assert text == REWRITTEN
    assert [change.line for change in changes] == [4, 7, 8, 9, 11, 11, 12, 12, 12, 18, 25, 30, 32]
    assert changes[0].words == "every is now eval_every"
    assert "real = true is dropped" in [change.words for change in changes]
    assert '"own.loss" is now "local.loss"' in [change.words for change in changes]
    parse(text, "the test")


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_a_job_of_the_release_is_the_same_as_text_and_in_memory(path: Path) -> None:
    old = path.read_text()
    text, changes = rewrite(old)
    assert tomllib.loads(text) == migrate(tomllib.loads(old))
    assert parse(text, path.name) == from_table(migrate(tomllib.loads(old)))
    assert rewrite(text) == (text, [])
    assert bool(changes) == (text != old)
    assert len(text.splitlines()) == len(old.splitlines())


def test_the_policy_of_the_release_is_read_when_rewritten() -> None:
    old = (RELEASE / "party" / "policy.toml").read_text()
    text, changes = rewrite(old)
    assert tomllib.loads(text) == migrate(tomllib.loads(old))
    assert len(changes) == len(POLICY) + 1
    assert rewrite(text) == (text, [])
    policy = Policy.parse(text)
    assert (policy.min_cohort, policy.min_noise, policy.max_norm) == (3, 0.5, 10.0)
    assert (policy.max_epsilon_job, policy.max_epsilon_month) == (4.0, 8.0)
    assert (policy.max_bytes, policy.max_rounds, policy.max_parameters) == (2_000_000_000, 500, 10_000_000)
    assert policy.data["min_samples"] == 8
    kept = [line for line in old.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == kept


# --- the tables are complete ------------------------------------------------------------------------------------------


def test_every_key_of_the_release_has_its_word_today() -> None:
    assert {KEYS.get(key, key) for key in WORDS["keys"]} <= set(KEYS_TODAY)
    assert {POLICY.get(key, key) for key in WORDS["policy"]} <= {field.name for field in fields(Policy)}


@pytest.mark.parametrize("kind", sorted(WORDS["parts"]))
def test_every_part_and_field_of_the_release_has_its_word_today(kind: str) -> None:
    today = "example_dp" if kind == "private" else kind
    for name, names in WORDS["parts"][kind].items():
        new = PARTS.get(kind, {}).get(name, name)
        assert new in TODAY[today]
        renamed = {FIELDS.get(name, {}).get(field, field) for field in names} - {None}
        gone = renamed - set(parameters(find(today, new)))
        assert not gone, f"{kind} {name}: say in FIELDS what became of {gone}"


def test_every_option_of_data_of_the_release_has_its_word_today() -> None:
    assert {DATA.get(option, option) for option in WORDS["split"]} <= set(SPLIT)
    for makers, said in (({**FEDERATIONS, **TABLES}, WORDS["data"]), (SCHEMES, WORDS["by"])):
        for name, options in said.items():
            assert {DATA.get(option, option) for option in options} <= set(options_of(makers[name]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("use", sorted(WORDS["parts"]["method"]))
def test_example_noise_is_renamed_in_every_method(use: str) -> None:
    said = {"data": "digits", "method": {"use": use, "model": "softmax", "private": "example_dp"}}
    assert from_table(migrate(said)).job.method.example_dp is not None  # type: ignore[attr-defined]


def test_words_that_mean_the_same_today_stay() -> None:
    said = {
        "data": {"use": "digits"},
        "method": {"use": "fedavg", "model": "cnn", "lr": {"use": "steps", "every": 5}},
        "select": {"use": "least_served", "number": 3},
        "stages": [{"use": "tree_noise", "every": 5}],
        "stop": [{"use": "patience", "metric": "local.loss"}],
    }
    assert migrate(said) == said


@pytest.mark.parametrize("use", ["secure_sum", "light_sum", "encrypted_sum"])
def test_hidden_sums_are_no_longer_said_to_be_real(use: str) -> None:
    start = f'data = "digits"\nmethod = "fedsgd"\n{"{}"}# end\n'
    for old, new in (
        (f'combine = {{ use = "{use}", real = true }}\n', f'combine = {{ use = "{use}" }}\n'),
        (f'combine = {{real = true,  use = "{use}"}}\n', f'combine = {{use = "{use}"}}\n'),
        (f'combine.use = "{use}"\ncombine.real = false # so\n', f'combine.use = "{use}"\n'),
        (f'[combine]\n  real = true\r\n  use = "{use}"\n', f'[combine]\n  use = "{use}"\n'),
    ):
        assert rewrite(start.format(old))[0] == start.format(new)


# --- what cannot be rewritten -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('method = "fedavg"\nevery = 1\neval_every = 2\n', "every is called eval_every now, and both are there"),
        ("most_rounds = 1\nmax_rounds = 2\n", "most_rounds is called max_rounds now, and both are there"),
        (
            'method = "fedavg"\nstages = ["average", { use = "weigh", most = 1, max_weight = 2 }]\n',
            "stages.1.most is called max_weight now, and both are there: keep one",
        ),
    ],
)
def test_a_word_said_in_both_languages_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadJob, match=sentence):
        rewrite(text)
    with pytest.raises(BadJob, match=sentence):
        migrate(tomllib.loads(text))


def test_old_words_are_refused_with_the_way_to_rewrite_them() -> None:
    with pytest.raises(BadJob, match=r"'every' is called 'eval_every' now; `atoll migrate FILE` rewrites a file$"):
        parse(EVERY_FORM, "job.toml")
    with pytest.raises(ValueError, match=r"a policy has no such key; .*atoll migrate FILE"):
        Policy.parse("most_rounds = 5")
    with pytest.raises(BadJob) as caught:
        parse('data = "digits"\nmethod = "fedvag"', "job.toml")
    assert "migrate" not in str(caught.value)


def test_kinds_of_files_are_told_apart() -> None:
    assert kind_of({"method": "fedavg", "data": "digits"}) == "job"
    assert kind_of({"program": {"use": "vertical_linear"}}) == "job"
    assert kind_of({"data": {"use": "csv"}}) == kind_of({"most_rounds": 3}) == kind_of({"max_rounds": 3}) == "policy"
    assert kind_of({}) is kind_of({"name": "x", "data": "digits"}) is kind_of({"project": {}}) is None


# --- laws -------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["every", "use", "most", "real", "over", "a b", "ü", "", 'q"', "x.y", "1"])
strings = st.one_of(
    st.sampled_from(["over", "tree", "own.loss", 'a "quoted" # word', "'", "two\nlines", ""]), st.text()
)
scalars = st.one_of(strings, st.integers(-9, 9), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
old_parts = st.fixed_dictionaries(
    {"use": st.sampled_from(["over", "in_turn", "tree", "weigh", "buffered", "secure_sum", "patience", "fedprox"])},
    optional={
        "private": scalars, "most": scalars, "least": scalars, "enough": scalars, "real": st.booleans(),
        "every": scalars, "metric": st.sampled_from(["own.loss", "test.loss"]), "select": st.just("in_turn"),
    },
)  # fmt: skip
part = st.one_of(old_parts, strings)
old_jobs = st.fixed_dictionaries(
    {"method": part},
    optional={
        "every": st.integers(), "select": part, "combine": part, "stages": st.one_of(part, st.lists(part, max_size=3)),
        "stop": st.lists(old_parts, max_size=3), "data": st.dictionaries(st.sampled_from(["least", "use"]), scalars),
    },
)  # fmt: skip


def basic(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml(value: Any, draw: Any) -> str:
    """Write a value, with the space and the quotes of a hurried hand."""
    gap = draw(st.sampled_from(["", " ", "  "]))
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{gap}{key(k, draw)}{gap}={gap}{toml(v, draw)}{gap}" for k, v in value.items()) + gap + "}"
        )
    if isinstance(value, list):
        line = draw(st.sampled_from(["", "\n", " # ] }\n", "\r\n"]))
        return "[" + "".join(f"{line}{gap}{toml(v, draw)}{gap}," for v in value) + line + "]"
    if isinstance(value, str):
        plain = "'" not in value and value.isprintable()
        if plain and draw(st.booleans()):
            return f"'{value}'"
        if draw(st.booleans()):
            return f'"""{basic(value)[1:-1]}"""'
        return basic(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)


def key(name: str, draw: Any) -> str:
    bare = bool(name) and name.isascii() and name.isalnum()
    return name if bare and draw(st.booleans()) else basic(name)


@st.composite
def texts(draw: Any, tables: st.SearchStrategy[dict[str, Any]]) -> str:
    """Write a table in one of the many ways that TOML has."""
    table = draw(tables)
    first, later = "", ""
    for name, value in table.items():
        note = draw(st.sampled_from(["", " # every = 1", "\n"]))
        way = draw(st.integers(0, 2))
        said = key(name, draw)
        if isinstance(value, dict) and value and way == 0:
            later += f"[ {said} ]{note}\n" + "".join(f"{key(k, draw)} = {toml(v, draw)}\n" for k, v in value.items())
        elif isinstance(value, dict) and value and way == 1:
            first += "".join(f"{said} . {key(k, draw)}={toml(v, draw)}{note}\n" for k, v in value.items())
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value) and way == 0:
            for row in value:
                later += f"[[{said}]]{note}\n" + "".join(f"{key(k, draw)} = {toml(v, draw)}\n" for k, v in row.items())
        else:
            first += f"{said}\t=\t{toml(value, draw)}{note}\n"
    return first + later


def at(said: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        said = said[step]
    return said


@settings(deadline=None)
@given(texts(st.dictionaries(names, values, max_size=4)))
def test_every_piece_of_a_text_is_found_where_it_stands(text: str) -> None:
    said, spans = tomllib.loads(text), scan(text)
    for span in spans.values:
        assert tomllib.loads(f"v = {text[span.start : span.end]}")["v"] == at(said, span.path)
    for span in spans.keys:
        assert list(tomllib.loads(f"{text[span.start : span.end]} = 0")) == [span.path[-1]]
        at(said, span.path)
    for span in spans.pairs:
        assert tomllib.loads(text[span.start : span.end])

    def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Any:
        rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        yield from () if isinstance(value, dict | list) else [path]
        for step, row in rows:
            yield from leaves(row, (*path, step))

    found = [span.path for span in spans.values if not isinstance(at(said, span.path), dict | list)]
    assert sorted(found, key=repr) == sorted(leaves(said), key=repr)


@settings(deadline=None)
@given(texts(old_jobs))
def test_a_rewritten_text_says_what_migrating_in_memory_says(text: str) -> None:
    new, changes = rewrite(text)
    assert tomllib.loads(new) == migrate(tomllib.loads(text))
    assert rewrite(new) == (new, [])
    assert migrate(tomllib.loads(new)) == tomllib.loads(new)
    assert bool(changes) == (new != text)
    assert all(1 <= change.line <= text.count("\n") + 1 for change in changes)
