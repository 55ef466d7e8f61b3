"""What a party's policy promises: it refuses by name, is safe without a file, and stricter is never laxer."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.question import Exposure
from atoll.core.wire import Event
from atoll.runtimes.network.party.policy import NOTHING_BEFORE, SERVERS, BadPolicy, Before, Manifest, NotAllowed, Policy

NOON = datetime(2025, 6, 15, 12, 0, tzinfo=UTC)
LOCAL, DISTRIBUTED, CENTRAL = (Event(where, 1.0) for where in ("local", "distributed", "central"))
JOB = Manifest(
    server="abc", method="fedavg", model="f00", parameters=100, rounds=10, cohort=8, combine="secure_sum",
    exposure="masked", noise=(DISTRIBUTED,), epsilon=2.0, up=400, down=600, address="here:7000", against="malicious",
)  # fmt: skip
WHOLE = """
servers = ["abc", "there:7000"]
methods = ["fedavg", "fedprox"]
models = ["f00"]
allow_plain = false
require = ["secure_sum", "noise"]
min_cohort = 5
max_epsilon_job = 3.0
max_epsilon_month = 8
max_bytes = 20_000
max_rounds = 20
hours = "08:00-18:00"
data = { use = "csv", path = "mine.csv" }
"""


def allows(policy: Policy, job: Manifest = JOB, now: datetime = NOON, before: Before = NOTHING_BEFORE) -> bool:
    try:
        policy.check(job, now=now, before=before)
    except NotAllowed:
        return False
    return True


def refuses(policy: Policy, job: Manifest = JOB, now: datetime = NOON, before: Before = NOTHING_BEFORE) -> str:
    with pytest.raises(NotAllowed) as caught:
        policy.check(job, now=now, before=before)
    return str(caught.value)


# ---- the file


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(WHOLE)
    policy = Policy.load(path)
    assert policy.servers == ("abc", "there:7000")
    assert policy.require == ("secure_sum", "noise")
    assert policy.data == {"use": "csv", "path": "mine.csv"}
    assert policy.name == str(path)
    assert allows(policy)
    assert str(path) in refuses(policy, replace(JOB, rounds=21, up=0, down=0))


def test_an_empty_file_is_the_default_and_any_is_no_limit() -> None:
    any_of_all = 'servers = "any"\nmethods = "any"\nmodels = "any"\nrequire = "nothing"'
    assert Policy.parse("") == Policy.parse(any_of_all) == Policy()
    assert Policy.parse('require = "noise"').require == ("noise",)
    assert Policy.parse("methods = []").methods == ()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("most_epsilon_jobs = 3", "most_epsilon_jobs: a policy has no such key; did you mean 'max_epsilon_job'?"),
        ("allow_plan = true", "did you mean 'allow_plain'?"),
        ("name = 'x'", "name: a policy has no such key"),
        ("zzz = 1", "there are accounts, allow_metrics, allow_plain, allow_semi_honest, allow_sparse, data, dataset"),
        ("max_epsilon_job = nan", "max_epsilon_job=nan: a limit is a finite number above 0"),
        ("max_epsilon_job = inf", "max_epsilon_job=inf"),
        ("max_epsilon_job = 0", "max_epsilon_job=0"),
        ("max_epsilon_job = true", "max_epsilon_job=True"),
        ("max_epsilon_month = -1.0", "max_epsilon_month=-1.0"),
        ("max_epsilon_month = '3'", "max_epsilon_month='3'"),
        ("max_bytes = 1.5", "max_bytes=1.5: a limit is a whole number above 0"),
        ("max_bytes = 0", "max_bytes=0"),
        ("max_rounds = -3", "max_rounds=-3"),
        ("max_rounds = true", "max_rounds=True"),
        ("delta = 1.0", "delta=1.0: a number above 0 and below 1"),
        ("delta = 0", "delta=0: a number above 0"),
        ("delta = nan", "delta=nan: a number above 0"),
        ("delta = 'small'", "delta='small': a number above 0"),
        ("dataset = '../wards'", "dataset='../wards': a name of letters"),
        ("dataset = ''", "dataset='': a name of letters"),
        ("dataset = 3", "dataset=3: a text"),
        ("accounts = 3", "accounts=3: a text"),
        ("jobs = 'f00'", "jobs='f00': a list of names"),
        ("max_evaluations = 0", "max_evaluations=0: a limit"),
        ("max_memory = 0", "max_memory=0: a limit is a whole number above 0"),
        ("max_memory = -1", "max_memory=-1"),
        ("max_memory = '1 GB'", "max_memory='1 GB'"),
        ("max_memory = true", "max_memory=True"),
        ("min_cohort = 2", "min_cohort=2: a whole number from 3"),
        ("min_cohort = nan", "min_cohort=nan"),
        ("whole_batches = 1", "whole_batches=1: a whole number from 2"),
        ("whole_batches = 2.5", "whole_batches=2.5"),
        ("allow_plain = 'no'", "allow_plain='no': true or false"),
        ("allow_plain = 1", "allow_plain=1"),
        ("require = 'secure_sums'", "did you mean 'secure_sum'?"),
        ("require = [1]", "require=[1]"),
        ("require = true", "require=True"),
        ("servers = 'abc'", "servers='abc': a list of names, or \"any\""),
        ("servers = ['any']", "servers=['any']"),
        ("servers = ['']", "servers=['']"),
        ("methods = [1]", "methods=[1]"),
        ("models = true", "models=True"),
        ("hours = '8-18'", "hours='8-18': two times of day"),
        ("hours = '24:00-06:00'", "hours='24:00-06:00'"),
        ("hours = '08:00-08:00'", "hours='08:00-08:00': this is no time at all or all the time"),
        ("hours = 08:00:00", "hours=datetime.time(8, 0): a text"),
        ("data = 'mine.csv'", "data='mine.csv': a table"),
        ("servers = [", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_name(line: str, said: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        Policy.parse(line, "mine.toml")
    assert str(caught.value).startswith("mine.toml")
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.toml", "binary"):
        with pytest.raises(BadPolicy, match=r"cannot read .*without a policy nothing is joined"):
            Policy.load(tmp_path / name)


# ---- what is safe


@pytest.mark.parametrize(
    ("combine", "exposure", "noise", "plain"),
    [
        ("sum", "plain", (), True),
        ("each", "plain", (), True),
        ("sum", "plain", (CENTRAL,), True),  # the server adds it after it has read
        ("sum", "plain", (DISTRIBUTED,), True),  # too little alone
        ("sum", "noised", (LOCAL,), False),
        ("sum", "noised", (Event("local", 0.0),), True),
        ("sum", "noised", (Event("local", float("nan")),), True),
        ("secure_sum", "masked", (), False),
        ("light_sum", "masked", (), False),
        ("encrypted_sum", "sealed", (), False),
        ("secure_sum", "plain", (), True),
        ("a_new_sum", "plain", (), True),
        ("a_new_sum", "masked", (), False),  # what it declares counts, not its name
    ],
)
def test_without_a_file_nothing_leaves_that_the_server_could_read(
    combine: str, exposure: Exposure, noise: tuple[Event, ...], plain: bool
) -> None:
    job = replace(JOB, combine=combine, exposure=exposure, noise=noise, epsilon=None)  # of a lying server
    assert allows(Policy(), job) == (not plain)
    assert allows(Policy(allow_plain=True), job)
    if plain:
        assert "allow_plain = true" in refuses(Policy(), job)


@pytest.mark.parametrize(
    ("combine", "exposure", "noise", "met"),
    [
        ("secure_sum", "masked", (), {"secure_sum"}),
        ("secure_sum", "masked", (DISTRIBUTED,), {"secure_sum", "noise"}),
        ("secure_sum", "plain", (DISTRIBUTED,), set()),
        ("light_sum", "masked", (DISTRIBUTED,), {"noise"}),  # opens to a server that lies
        ("sum", "noised", (LOCAL,), {"noise"}),
        ("sum", "plain", (CENTRAL,), set()),
        ("secure_sum", "masked", (CENTRAL,), {"secure_sum"}),
    ],
)
def test_what_is_required_is_there_or_refused(
    combine: str, exposure: Exposure, noise: tuple[Event, ...], met: set[str]
) -> None:
    job = replace(JOB, combine=combine, exposure=exposure, noise=noise)
    for wish in ("secure_sum", "noise"):
        policy = Policy(allow_plain=True, require=(wish,))
        assert allows(policy, job) == (wish in met)
        if wish not in met:
            assert refuses(policy, job).startswith("require: ")


@pytest.mark.parametrize(
    ("limits", "job", "said"),
    [
        ({"servers": ("other",)}, {}, "servers: abc is not among those allowed; add its key (see the policy)"),
        ({"servers": ()}, {"address": ""}, "servers: "),
        ({"methods": ("fedprox",)}, {}, "methods: fedavg is not among"),
        ({"models": ("f01",)}, {}, "models: the schema f00"),
        ({"min_cohort": 9}, {}, "min_cohort: 8 parties are in a sum, and 9 must be"),
        ({"max_epsilon_job": 1.9}, {}, "max_epsilon_job: this job has ε = 2 at δ = 1e-05, and 1.9 is"),
        ({"max_epsilon_job": 99.0}, {"epsilon": None}, "max_epsilon_job: this job has no bound on ε"),
        ({"max_epsilon_job": 99.0}, {"epsilon": float("inf")}, "max_epsilon_job: this job has no bound on ε"),
        (
            {"max_epsilon_month": 1.9},
            {},
            "max_epsilon_month: with it, jobs of this month on data-44136fa355b3678a have ε = 2",
        ),
        ({"max_epsilon_month": 9.0}, {"epsilon": None}, "max_epsilon_month: "),
        ({"max_bytes": 9_999}, {}, "max_bytes: the job moves up to 10,000 bytes, and 9,999 is the limit"),
        ({"jobs": ("f01",)}, {"job": "f00"}, "jobs: this party has not agreed to the job f00; read what it does"),
        ({"jobs": ()}, {"job": "any"}, "jobs: this party has not agreed"),
        ({"delta": 0.01}, {"examples": 101}, "delta: 0.01 is above one over the 101 examples of this party"),
        ({"max_epsilon": 1.9}, {}, "max_epsilon: with it, all jobs on data-44136fa355b3678a have ε = 2"),
        ({"max_evaluations": 4}, {"evaluations": 5}, "max_evaluations: the job evaluates 5 times on this party's own"),
        ({"max_rounds": 9}, {}, "max_rounds: the job has 10 rounds, and 9 is the limit"),
        ({"min_noise": 1.1}, {}, "min_noise: the noise of the parties themselves is 1 times the bound"),
        ({"max_parameters": 99}, {}, "max_parameters: the model has 100 parameters, and 99 is the limit"),
        ({"hours": "13:00-12:00"}, {}, "hours: it is 12:00, and this party takes part at 13:00-12:00"),
    ],
)
def test_every_limit_refuses_by_its_name_and_only_alone(limits: Any, job: Any, said: str) -> None:
    assert said in refuses(Policy(**limits), replace(JOB, **job))
    assert allows(Policy(), replace(JOB, **job))


def test_figures_of_own_test_data_are_told_only_if_that_is_allowed() -> None:
    job = replace(JOB, metrics=("loss", "accuracy"))
    assert refuses(Policy(), job).startswith("allow_metrics: the job asks how well its models do on this party's own")
    assert allows(Policy(allow_metrics=True), job)


@pytest.mark.parametrize("noise", [(LOCAL,), (DISTRIBUTED,), (CENTRAL,), ()])
@pytest.mark.parametrize("exposure", get_args(Exposure))
def test_only_noise_that_hides_this_party_counts_as_its_own(noise: tuple[Event, ...], exposure: Exposure) -> None:
    """Noise of all parties together hides one only in a sum that nobody can look into; the server's hides none."""
    counts = LOCAL in noise or (DISTRIBUTED in noise and exposure in ("masked", "sealed"))
    policy = Policy(allow_plain=True, min_noise=1.0)
    assert allows(policy, replace(JOB, noise=noise, exposure=exposure)) == counts


@pytest.mark.parametrize(
    "limits",
    [
        {"min_noise": 1.0}, {"max_parameters": 100}, {"max_norm": 0.1},
        {"servers": ("abc",)}, {"servers": ("here:7000",)}, {"servers": ("hub abc",)},
        {"servers": ("hub abc of the registry",)}, {"methods": ("fedavg",)}, {"models": ("f00",)},
        {"min_cohort": 8}, {"max_epsilon_job": 2.0}, {"max_epsilon_month": 2.0}, {"max_bytes": 10_000},
        {"max_rounds": 10}, {"hours": "12:00-12:01"}, {"max_epsilon": 2.0}, {"jobs": ("", "x")}, {"jobs": ("any",)},
        {"delta": 0.1},
    ],
)  # fmt: skip
def test_a_limit_that_is_just_met_allows(limits: Any) -> None:
    assert allows(Policy(**limits))


def test_the_month_adds_up() -> None:
    policy = Policy(max_epsilon_month=8.0)
    assert allows(policy, before=Before(month=8.0))
    assert not allows(policy, before=Before(month=8.001))
    assert not allows(policy, before=Before(month=float("inf")))
    assert not allows(policy, before=Before(month=float("nan")))
    assert allows(policy, before=Before(ever=99.0))
    assert not allows(Policy(max_epsilon=8.0), before=Before(ever=8.001))
    assert not allows(Policy(max_epsilon_job=8.0), before=Before(alike=8.001))
    said = refuses(Policy(max_epsilon_job=8.0), before=Before(alike=9.0))
    assert "with others of the same method and channel, this job has ε = 9" in said


def test_another_job_than_before_needs_a_person() -> None:
    """Any difference counts, in a text that says the same too: its hash is what was read and agreed to."""
    before = Before(agreed=frozenset({"f00"}))
    assert allows(Policy(), replace(JOB, job="f00"), before=before)
    said = refuses(Policy(), replace(JOB, job="f01"), before=before)
    assert 'a changed job is a new consent; read what it does, then say jobs = ["f01"], or jobs = "any"' in said
    for jobs in (("f01",), ("any",)):
        assert allows(Policy(jobs=jobs), replace(JOB, job="f01"), before=before)
    assert not allows(Policy(jobs=("f01",)), replace(JOB, job="f00"), before=before)
    assert Policy.parse('jobs = "any"').jobs == ("any",)


@pytest.mark.parametrize(
    ("limits", "most"), [({"max_rounds": 30}, Before(20)), ({"max_bytes": 30_000}, Before(bytes=20_000)),
                         ({"max_evaluations": 9, "allow_metrics": True}, Before(evaluations=4))],
)  # fmt: skip
def test_what_other_jobs_took_of_the_data_is_gone(limits: Any, most: Before) -> None:
    job = replace(JOB, metrics=("loss",), evaluations=5) if "max_evaluations" in limits else JOB
    assert allows(Policy(**limits), job, before=most)
    one_more = Before(*(value and value + 1 for value in most))
    assert "other jobs on this data have taken" in refuses(Policy(**limits), job, before=one_more)


def test_all_objections_are_told() -> None:
    policy = Policy(methods=(), max_rounds=1, max_bytes=1)
    said = list(policy.objections(JOB, now=NOON))
    assert [sentence.split(":")[0] for sentence in said] == ["methods", "max_bytes", "max_rounds"]


@pytest.mark.parametrize(
    "lie",
    [
        {"rounds": 0}, {"rounds": -5}, {"rounds": 1.5}, {"rounds": True}, {"rounds": 2**63}, {"cohort": 0},
        {"up": -1}, {"down": -1}, {"parameters": -1}, {"epsilon": float("nan")}, {"epsilon": -1.0}, {"epsilon": "2"},
        {"exposure": 1}, {"exposure": True}, {"exposure": "open"},
        {"method": "fed\x1b[2Javg"}, {"combine": "x" * 201}, {"server": None},
        {"metrics": ("a\nb",)}, {"noise": ("local",)},
    ],
)  # fmt: skip
def test_a_manifest_that_cannot_be_is_refused_before_it_is_checked(lie: Any) -> None:
    with pytest.raises(ValueError, match="manifest"):
        replace(JOB, **lie)


# ---- hours


def test_hours_within_a_day_and_across_midnight_minute_by_minute() -> None:
    day, night = Policy(hours="08:00-18:30"), Policy(hours="22:00-06:00")
    for minute in range(24 * 60):
        now = datetime(2025, 3, 1, tzinfo=UTC) + timedelta(minutes=minute)
        assert day.open_at(now) == (8 * 60 <= minute < 18 * 60 + 30)
        assert night.open_at(now) == (minute >= 22 * 60 or minute < 6 * 60)
    assert not night.open_at(datetime(2025, 3, 1, 21, 59, 59, 999_999))
    assert night.open_at(datetime(2025, 3, 1, 5, 59, 59, 999_999))


def test_hours_are_those_of_the_clock_on_the_wall() -> None:
    night = Policy(hours="22:00-06:00")
    assert night.open_at(datetime(2025, 3, 1, 23, tzinfo=timezone(timedelta(hours=12))))  # 11:00 in UTC


def test_hours_are_of_the_time_zone_that_the_policy_names_in_summer_and_in_winter() -> None:
    night = Policy(hours="22:00-06:00", time_zone="Europe/Berlin")
    for month, shift in ((1, 1), (7, 2)):
        for hour in range(24):
            there = (hour + shift) % 24
            assert night.open_at(datetime(2025, month, 10, hour, tzinfo=UTC)) == (there >= 22 or there < 6)
    said = next(Policy(allow_plain=True, hours="13:00-14:00", time_zone="Asia/Tokyo").objections(JOB, now=NOON))
    assert "in Asia/Tokyo, and this party takes part at 13:00-14:00" in said
    assert Policy(hours="12:00-12:01", time_zone="UTC").open_at(datetime(2025, 1, 1, 12, tzinfo=UTC))
    for wrong in ("Europe/Atlantis", "", "../etc/passwd", "CEST+9x"):
        with pytest.raises(BadPolicy, match="no such time zone is known here"):
            Policy(time_zone=wrong)
    with pytest.raises(BadPolicy, match='a text, as in "Europe/Berlin"'):
        Policy.parse("time_zone = 2")


@given(a=st.times(), b=st.times(), at=st.times())
def test_a_window_and_its_other_half_share_no_moment_and_miss_none(a: time, b: time, at: time) -> None:
    a, b = a.replace(second=0, microsecond=0), b.replace(second=0, microsecond=0)
    if a == b:
        return
    now = datetime.combine(NOON.date(), at)
    one, other = (Policy(hours=f"{x:%H:%M}-{y:%H:%M}") for x, y in ((a, b), (b, a)))
    assert one.open_at(now) != other.open_at(now)


def test_semi_honest_and_sparse_sums_have_words_of_their_own() -> None:
    for combine, against in (("light_sum", "semi-honest"), ("encrypted_sum", "semi-honest"), ("a_new_sum", "")):
        job = replace(JOB, combine=combine, against=against, noise=(), epsilon=None)
        said = refuses(Policy(allow_plain=True, allow_sparse=True), job)
        assert said.startswith(f"allow_semi_honest: {combine} protects from a semi-honest server only")
        assert allows(Policy(allow_semi_honest=True), job)
    sparse = replace(JOB, against="sparse", noise=(), epsilon=None)
    assert refuses(Policy(allow_semi_honest=True), sparse).startswith("allow_sparse: secure_sum is sparse: a party")
    assert allows(Policy(allow_sparse=True), sparse)
    noisy = replace(sparse, noise=(DISTRIBUTED,), epsilon=1.0)
    assert "no party verifies that enough parties add their shares" in refuses(Policy(allow_sparse=True), noisy)
    assert allows(Policy(allow_sparse=True, allow_semi_honest=True), noisy)
    assert allows(Policy(), replace(JOB, against="malicious"))
    with pytest.raises(ValueError, match="a manifest says one of"):
        replace(JOB, against="anybody")


def test_whole_batches_are_hidden_sums_of_batches_as_large() -> None:
    policy = Policy(whole_batches=4)
    assert allows(policy, replace(JOB, batch=4))
    assert allows(policy, replace(JOB, batch=6))
    assert 'select = { use = "batches", size = 4 }' in refuses(policy, replace(JOB, batch=3))
    assert refuses(policy).startswith("whole_batches: ")
    assert "not hidden" in refuses(policy, replace(JOB, batch=4, exposure="noised", noise=(LOCAL,)))


# ---- laws

NAMES = st.lists(st.sampled_from(["abc", "fedavg", "f00", "here:7000", "x"]), max_size=3).map(tuple)
POLICIES = st.builds(
    Policy,
    servers=st.none() | NAMES,
    methods=st.none() | NAMES,
    models=st.none() | NAMES,
    allow_plain=st.booleans(),
    allow_semi_honest=st.booleans(),
    allow_sparse=st.booleans(),
    require=st.lists(st.sampled_from(["secure_sum", "noise"]), unique=True).map(tuple),
    min_cohort=st.integers(3, 12),
    whole_batches=st.none() | st.integers(2, 5),
    max_epsilon_job=st.none() | st.floats(0.1, 10),
    max_epsilon_month=st.none() | st.floats(0.1, 20),
    max_epsilon=st.none() | st.floats(0.1, 30),
    delta=st.sampled_from([1e-5, 1e-3]),
    jobs=st.none() | NAMES,
    max_evaluations=st.none() | st.integers(1, 20),
    max_bytes=st.none() | st.integers(1, 10_000),
    max_rounds=st.none() | st.integers(1, 20),
    hours=st.none() | st.sampled_from(["22:00-06:00", "08:00-18:00"]),
)
JOBS = st.builds(
    Manifest,
    server=st.sampled_from(["abc", "x"]),
    method=st.sampled_from(["fedavg", "x"]),
    model=st.sampled_from(["f00", "x"]),
    parameters=st.just(1),
    rounds=st.integers(1, 25),
    cohort=st.integers(1, 15),
    batch=st.integers(0, 6),
    against=st.sampled_from(SERVERS),
    combine=st.sampled_from(["secure_sum", "light_sum", "sum", "each"]),
    exposure=st.sampled_from(get_args(Exposure)),
    noise=st.lists(st.sampled_from([LOCAL, DISTRIBUTED, CENTRAL]), max_size=2).map(tuple),
    epsilon=st.none() | st.floats(0, 12),
    up=st.integers(0, 500),
    down=st.integers(0, 500),
    address=st.sampled_from(["", "here:7000"]),
    evaluations=st.integers(0, 12),
    examples=st.sampled_from([10, 10_000]),
    job=st.sampled_from(["f00", "x"]),
)
MOMENTS = st.datetimes(min_value=datetime(2024, 1, 1), max_value=datetime(2026, 1, 1))
SPENT = st.builds(
    Before, st.integers(0, 9), st.integers(0, 9), st.integers(0, 999), st.none() | st.floats(0, 20),
    st.none() | st.floats(0, 20), st.none() | st.floats(0, 20), st.just(frozenset()),
)  # fmt: skip


def least(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else min(a, b)


def common(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else tuple(x for x in a if x in b)


def both(a: Policy, b: Policy) -> Policy:
    """The loosest policy that is at least as strict as either, but for the hours, of which one is kept."""
    return Policy(
        **{key: common(getattr(a, key), getattr(b, key)) for key in ("servers", "methods", "models", "jobs")},
        **{
            key: least(getattr(a, key), getattr(b, key))
            for key in (f.name for f in fields(Policy))
            if key[:4] == "max_"
        },
        **{key: getattr(a, key) and getattr(b, key) for key in ("allow_plain", "allow_semi_honest", "allow_sparse")},
        require=tuple({*a.require, *b.require}),
        min_cohort=max(a.min_cohort, b.min_cohort),
        whole_batches=max(a.whole_batches or 0, b.whole_batches or 0) or None,
        delta=max(a.delta, b.delta),
        hours=a.hours,
    )


@settings(max_examples=200)
@given(POLICIES, POLICIES, JOBS, MOMENTS, SPENT)
def test_a_stricter_policy_never_accepts_what_a_laxer_refuses(
    a: Policy, b: Policy, job: Manifest, now: datetime, before: Before
) -> None:
    if allows(both(a, b), job, now, before):
        assert allows(a, job, now, before)
        assert allows(replace(b, hours=None), job, now, before)


@settings(max_examples=200)
@given(POLICIES, JOBS, MOMENTS, SPENT, st.integers(0, 5), st.integers(0, 300), st.floats(0, 3))
def test_a_job_that_asks_for_more_is_never_allowed_where_less_is_refused(
    policy: Policy, job: Manifest, now: datetime, before: Before, more: int, size: int, epsilon: float
) -> None:
    grown = replace(
        job, rounds=job.rounds + more, up=job.up + size, epsilon=None if job.epsilon is None else job.epsilon + epsilon
    )
    more_spent = [None if spent is None else spent + epsilon for spent in before[3:6]]
    if allows(policy, grown, now, Before(before.rounds + more, before.evaluations, before.bytes + size, *more_spent)):
        assert allows(policy, job, now, before)


@settings(max_examples=200)
@given(POLICIES, JOBS, MOMENTS, SPENT)
def test_every_objection_falls_when_its_key_is_loosened(
    policy: Policy, job: Manifest, now: datetime, before: Before
) -> None:
    """The sentence names the key that is in the way: without it, one objection less."""
    loose = {f.name: f.default for f in fields(Policy)} | {"min_cohort": 3, "require": ()}
    loose |= dict.fromkeys(("allow_plain", "allow_semi_honest", "allow_sparse"), True)
    said = [sentence.split(":")[0] for sentence in policy.objections(job, now=now, before=before)]
    for key in set(said) - ({"min_cohort"} if job.cohort < 3 else set()):
        after = replace(policy, **{key: loose[key]}).objections(job, now=now, before=before)
        assert [sentence.split(":")[0] for sentence in after] == [other for other in said if other != key]
