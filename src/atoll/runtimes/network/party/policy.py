"""What a party consents to: its own file of limits, and the one question whether a job stays within them."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, time, tzinfo
from hashlib import sha256
from math import inf, isnan
from pathlib import Path
from typing import NamedTuple, Self, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from atoll.core.errors import AtollError, nearest
from atoll.core.question import Exposure
from atoll.core.wire import Event
from atoll.job.migrate import of_release_0_1
from atoll.runtimes.network.messages.calls import NOT_ALLOWED

ANY = "any"
_WORD = 200
REQUIRE = ("secure_sum", "noise")
SERVERS = ("", "semi-honest", "sparse", "malicious")  # from which a hidden sum protects, the strongest last
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")
SIZES = ("max_parties", "max_classes", "max_assess_memory")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class BadPolicy(AtollError, ValueError):
    """A policy that cannot be: the sentence names the key, what is wrong with it, and what would be right."""

    code = "bad_policy"


class NotAllowed(AtollError, ValueError):
    """A job that this party's policy forbids; the sentence names the key and the remedy."""

    code = NOT_ALLOWED


@dataclass(frozen=True)
class Manifest:
    """What a job would do to a party. `server` and `address` are what the party's own connection says they are."""

    server: str  # its key, as rosters write it
    method: str
    model: str  # the hash of its schema
    parameters: int
    rounds: int
    cohort: int
    combine: str
    exposure: Exposure = "plain"  # in which form a vector of this party leaves it
    noise: tuple[Event, ...] = ()
    epsilon: float | None = None  # of this party over the whole job, at its own δ; None: nothing is promised
    length: float | None = None  # no vector of this party is longer; None: nothing is promised
    up: int = 0  # bytes a round
    down: int = 0
    metrics: tuple[str, ...] = ()  # what is evaluated on the party's data and told
    address: str = ""
    role: str = ""  # that this party would play; of a job without roles none
    partners: tuple[str, ...] = ()  # names of those who play the other roles
    asks: int | None = None  # for this party's vector, over all rounds; None: one a round
    fixed: bool = True  # so many; else at most, as the method decides while it runs
    against: str = ""  # one of SERVERS; a sparse graph protects from one that lies after the keys are out
    batch: int = 0  # parties that are in a sum together or not at all; 0: none
    evaluations: int = 0  # at most, on this party's own test data
    examples: int = 0  # that this party trains on
    job: str = ""  # the hash of its text
    substance: str = ""  # the hash of what it asks, whatever it is called and however often it does

    def __post_init__(self) -> None:
        for name, least in (("parameters", 0), ("rounds", 1), ("cohort", 1), ("up", 0), ("down", 0)):
            value = getattr(self, name)
            if not _whole(value) or value < least:
                raise ValueError(f"{name}={value!r}: a manifest says a whole number from {least}")
        if self.epsilon is not None and not (_number(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon={self.epsilon!r}: a manifest says a number from 0, or None without noise")
        if self.exposure not in get_args(Exposure):
            raise ValueError(f"exposure={self.exposure!r}: a manifest says one of {', '.join(get_args(Exposure))}")
        if self.against not in SERVERS:
            raise ValueError(f"against={self.against!r}: a manifest says one of {SERVERS}")
        # These words come from a peer and are shown in sentences.
        words = (self.server, self.method, self.model, self.combine, self.address, self.role, self.job,
                 self.substance)  # fmt: skip
        for word in (*words, *self.metrics, *self.partners):
            if not (isinstance(word, str) and len(word) <= _WORD and word.isprintable()):
                raise ValueError(
                    f"{str(word)[:20]!r}: words of a manifest are printable and of up to {_WORD} characters"
                )
        if not all(isinstance(event, Event) for event in self.noise):
            raise ValueError(f"noise={self.noise!r}: a manifest says events of noise")

    @property
    def bytes(self) -> int:
        """What the models and vectors of the job's rounds take, both ways; a party counts all bytes as they move."""
        return self.rounds * (self.up + self.down)

    @property
    def hidden(self) -> bool:
        """Whether the server reads only a sum."""
        return self.exposure in ("masked", "sealed")

    @property
    def own_noise(self) -> bool:
        """Whether noise of the parties protects a vector: its own alone, or all of theirs in a hidden sum."""
        kinds = {event.where for event in self.noise if event.multiplier > 0}
        return "local" in kinds or (self.hidden and "distributed" in kinds)

    @property
    def multiplier(self) -> float:
        """How much of such noise there is, over the bound of one vector."""
        kinds = ("local", "distributed") if self.hidden else ("local",)
        return max((event.multiplier for event in self.noise if event.where in kinds), default=0.0)

    @property
    def plain(self) -> bool:
        """Whether the server could read this party's vector as it is."""
        if self.role:
            return self.exposure == "plain"
        return not self.hidden and not any(e.where == "local" and e.multiplier > 0 for e in self.noise)


class Before(NamedTuple):
    """What this party's data set has given to other jobs; its ε of this month, of ever and of jobs that ask the same,
    with a job in it, whole (None: that of the job alone); and the jobs that were agreed to.
    """

    rounds: int = 0
    evaluations: int = 0
    bytes: int = 0
    month: float | None = None
    ever: float | None = None
    alike: float | None = None
    agreed: frozenset[str] = frozenset()


NOTHING_BEFORE = Before()


@dataclass(frozen=True)
class Policy:
    """A party's limits. Without a file: nothing leaves that the server could read as it is; all else is free."""

    servers: tuple[str, ...] | None = None  # keys, lines or addresses; None: any that this party was told to join
    methods: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None  # hashes of schemas
    allow_plain: bool = False
    allow_semi_honest: bool = False  # hidden sums that a server opens by lying: light_sum, encrypted_sum
    allow_sparse: bool = False  # secure_sum in a sparse graph, in which a party verifies its neighbours only
    require: tuple[str, ...] = ()  # "secure_sum": one that a lying server cannot open; "noise": by the parties
    min_cohort: int = 3  # in a sum that hides vectors
    whole_batches: int | None = None  # sums have all or none of a batch of so many parties, frozen at consent
    min_noise: float | None = None  # of the parties' own, over the bound of one vector
    max_norm: float | None = None  # this party shortens every vector to it, whatever the job says
    allow_metrics: bool = False  # the server may learn how well a model does on this party's own test data
    roster: str | None = None  # the file of the others' keys, from elsewhere than the server; secure sums need it
    delta: float = 1e-5  # at which this party computes every ε, whatever a job says
    max_epsilon: float | None = None  # of the data set, over all jobs
    max_epsilon_job: float | None = None
    max_epsilon_month: float | None = None  # of the data set, over all jobs
    dataset: str | None = None  # the name that limits belong to; None: by the digest of `data`
    accounts: str | None = None  # the folder of what data sets have given; None: "accounts", beside the party's folder
    # Hashes of the job texts that this party agrees to, or "any"; None: what the data set is asked for first.
    jobs: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None  # that this party plays; None: any
    partners: tuple[str, ...] | None = None  # names that may play the other roles; None: any of this party's roster
    max_bytes: int | None = None  # of the data set, over all jobs, both ways
    max_rounds: int | None = None  # of the data set, over all jobs
    max_evaluations: int | None = None  # of the data set, over all jobs
    round_metrics: int | None = None  # sums over this party's own test data are told in multiples of it
    epsilon_metrics: float | None = None  # of one answer with them: noise of so much is added to it
    max_parameters: int = 100_000_000
    max_memory: int = 10_000_000_000  # bytes that a method may keep at this party
    max_parties: int = 10_000  # that a server may say there are
    max_classes: int = 10_000
    max_assess_memory: int = 8_000_000_000  # bytes of the process that works out what a job would do
    hours: str | None = None  # "22:00-06:00", of the clock on the wall
    time_zone: str | None = None  # of the hours, as in "Europe/Berlin"; None: the machine's
    # Packages whose parts a job may use, each with its digest: `atoll parts` prints them.
    parts: Mapping[str, str] = field(default_factory=dict, hash=False)
    data: Mapping[str, object] = field(default_factory=dict, hash=False)  # a recipe, as in a job file
    name: str = "the policy"  # where it was read from

    def __post_init__(self) -> None:
        epsilons = ("max_epsilon", "max_epsilon_job", "max_epsilon_month")
        numbers = dict.fromkeys((*epsilons, "epsilon_metrics", "min_noise", "max_norm"), "finite")
        limits = (*SIZES, "max_bytes", "max_rounds", "max_evaluations", "max_parameters", "max_memory", "round_metrics")
        counts = dict.fromkeys(limits, "whole")
        for key, kind in {**numbers, **counts}.items():
            value, right = getattr(self, key), _whole if kind == "whole" else _number
            if value is not None and not (right(value) and 0 < value < inf):
                raise BadPolicy(f"{key}={value!r}: a limit is a {kind} number above 0; leave it out for none")
        if not _whole(self.min_cohort) or self.min_cohort < 3:
            raise BadPolicy(f"min_cohort={self.min_cohort!r}: a whole number from 3, below which sums hide nobody")
        if self.whole_batches is not None and not (_whole(self.whole_batches) and self.whole_batches >= 2):
            raise BadPolicy(f"whole_batches={self.whole_batches!r}: a whole number from 2; leave it out for none")
        for key in ("allow_plain", "allow_metrics", "allow_semi_honest", "allow_sparse"):
            if not isinstance(getattr(self, key), bool):
                raise BadPolicy(f"{key}={getattr(self, key)!r}: true or false")
        for wish in self.require:
            if wish not in REQUIRE:
                raise BadPolicy(f"require={wish!r}: there is no such protection; {nearest(wish, REQUIRE)}")
        _check_hours(self.hours, self.time_zone)
        _check_parts(self.parts)
        self._check_account()

    def _check_account(self) -> None:
        if not (_number(self.delta) and 0 < self.delta < 1):
            raise BadPolicy(f"delta={self.delta!r}: a number above 0 and below 1, at most 1/examples of this party")
        if self.dataset is not None and not _NAME.fullmatch(self.dataset):
            raise BadPolicy(f'dataset={self.dataset!r}: a name of letters, digits, - and _, up to 100, as in "wards"')

    def open_at(self, now: datetime) -> bool:
        """Whether this moment is within the hours: from the first minute on, until before the second."""
        if self.hours is None:
            return True
        start, end = _window(self.hours)
        at = self.here(now).time()
        return start <= at < end if start < end else at >= start or at < end

    def here(self, now: datetime) -> datetime:
        """Return a moment as the clocks of this party's time zone show it."""
        return now if self.time_zone is None else now.astimezone(_zone(self.time_zone))

    def check_sizes(self, *, parties: int = 0, classes: int = 0, parameters: int = 0) -> None:
        """Refuse what a server says of sizes before any memory is spent on them."""
        said = {"parties": parties, "classes": classes, "parameters": parameters}
        for what, number in said.items():
            most = getattr(self, f"max_{what}")
            if number > most:
                fact = f"the server says {number:,} {what}, and {most:,} is the limit"
                raise NotAllowed(self._says(f"max_{what}", fact, "ask its owner why, or raise the limit"))

    @property
    def dataset_name(self) -> str:
        """The name of the data set that limits belong to."""
        recipe = json.dumps(self.data, sort_keys=True, default=str)
        return self.dataset or f"data-{sha256(recipe.encode()).hexdigest()[:16]}"

    def check(self, manifest: Manifest, *, now: datetime, before: Before = NOTHING_BEFORE) -> None:
        """Raise NotAllowed with the first objection. `before` is what the data set has given to other jobs."""
        objection = next(self.objections(manifest, now=now, before=before), None)
        if objection is not None:
            raise NotAllowed(objection)

    def objections(self, manifest: Manifest, *, now: datetime, before: Before = NOTHING_BEFORE) -> Iterator[str]:
        """Say all that this policy has against a job, a sentence each."""
        yield from self._who(manifest)
        yield from self._consent(manifest, before)
        yield from self._protection(manifest)
        yield from self._sums(manifest)
        yield from self._epsilon(manifest, before)
        yield from self._limits(manifest, before)
        if not self.open_at(now):
            where = f" in {self.time_zone}" if self.time_zone else ""
            fact = f"it is {self.here(now):%H:%M}{where}, and this party takes part at {self.hours}"
            yield self._says("hours", fact, "join again then")

    def _who(self, job: Manifest) -> Iterator[str]:
        # Of a whole line the key counts: its second word.
        known = None if self.servers is None else {(line.split(maxsplit=2)[1:2] or [line])[0] for line in self.servers}
        if known is not None and not known & {job.server, job.address} - {""}:
            yield self._says("servers", f"{job.server or job.address} is not among those allowed", "add its key")
        if self.methods is not None and job.method not in self.methods:
            yield self._says("methods", f"{job.method} is not among those allowed", "add it")
        if self.models is not None and job.model not in self.models:
            yield self._says("models", f"the schema {job.model} is not among those allowed", "add its hash")
        if self.roles is not None and job.role and job.role not in self.roles:
            yield self._says("roles", f"the job gives this party role {job.role}, not among those allowed", "add it")
        strangers = [] if self.partners is None else [name for name in job.partners if name not in self.partners]
        if strangers:
            fact = f"{strangers[0]} plays another role of the job, and is not among those allowed"
            yield self._says("partners", fact, "add its name")

    def _consent(self, job: Manifest, before: Before) -> Iterator[str]:
        if self.jobs is not None and not {job.job, ANY} & {*self.jobs}:
            fact = f"this party has not agreed to the job {job.job}"
            yield self._says("jobs", fact, "read what it does, then add its hash")
        if self.jobs is None and before.agreed and job.job not in before.agreed:
            fact = f"{self.dataset_name} has agreed to another job before, and a changed job is a new consent"
            remedy = f'read what it does, then say jobs = ["{job.job}"], or jobs = "any" for all within these limits'
            yield self._says("jobs", fact, remedy)

    def _protection(self, job: Manifest) -> Iterator[str]:
        if job.plain and job.role and not self.allow_plain:
            fact = f"the hub reads answers of role {job.role} as they are"
            yield self._says("allow_plain", fact, "ask for a program that seals them, or say allow_plain = true")
        elif job.plain and not self.allow_plain:
            fact = f"with {job.combine} the server reads this party's vector as it is"
            yield self._says("allow_plain", fact, "ask for a job with secure_sum, or say allow_plain = true")
        if "secure_sum" in self.require and not (job.hidden and job.combine == "secure_sum"):
            yield self._says("require", f"{job.combine} is not a real secure_sum", "ask for one, or do not require it")
        if "noise" in self.require and not job.own_noise:
            fact = "this job has no noise that the parties add themselves"
            yield self._says("require", fact, 'ask for "local" noise, or "distributed" under a secure_sum')
        if self.min_noise is not None and job.multiplier < self.min_noise:
            fact = f"the noise of the parties themselves is {job.multiplier:g} times the bound of a vector"
            yield self._says("min_noise", f"{fact}, and {self.min_noise:g} must be", "ask for more")
        if job.metrics and not self.allow_metrics:
            fact = f"the job asks how well its models do on this party's own test data ({', '.join(job.metrics)})"
            yield self._says("allow_metrics", fact, "say allow_metrics = true, or ask for a job without own test data")

    def _sums(self, job: Manifest) -> Iterator[str]:
        hidden, sparse = job.hidden and not job.role, job.against == "sparse"
        if hidden and job.cohort < self.min_cohort:
            fact = f"{job.cohort} parties are in a sum, and {self.min_cohort} must be"
            yield self._says("min_cohort", fact, "ask for a larger cohort")
        if hidden and SERVERS.index(job.against) < SERVERS.index("sparse") and not self.allow_semi_honest:
            fact = f"{job.combine} protects from a semi-honest server only: one that lies can open single vectors"
            yield self._says("allow_semi_honest", fact, "ask for secure_sum, or say allow_semi_honest = true")
        if hidden and sparse and not self.allow_sparse:
            fact = f"{job.combine} is sparse: a party verifies its neighbours only"
            yield self._says("allow_sparse", fact, "ask for sparse = false, or say allow_sparse = true")
        if hidden and sparse and any(e.where == "distributed" for e in job.noise) and not self.allow_semi_honest:
            fact = "in a sparse graph no party verifies that enough parties add their shares of the noise"
            yield self._says("allow_semi_honest", fact, "ask for sparse = false, or say allow_semi_honest = true")
        if self.whole_batches is not None and not (job.hidden and job.batch >= self.whole_batches):
            fact = f"sums of this job are not hidden, or not made of whole batches of {self.whole_batches} parties"
            remedy = f'ask for secure_sum and select = {{ use = "batches", size = {self.whole_batches} }}'
            yield self._says("whole_batches", fact, remedy)

    def _epsilon(self, job: Manifest, before: Before) -> Iterator[str]:
        noisy_scores = self.epsilon_metrics is not None and job.evaluations > 0
        if (job.epsilon is not None or noisy_scores) and self.delta * job.examples > 1:
            fact = (
                f"{self.delta:g} is above one over the {job.examples:,} examples of this party, which may be published"
            )
            yield self._says("delta", fact, f"say delta = {0.1 / job.examples:.1g}, or less")
        alone = inf if job.epsilon is None else job.epsilon
        month, ever, alike = (alone if one is None else one for one in (before.month, before.ever, before.alike))
        same = "this job has" if alike == alone else "with others of the same method and channel, this job has"
        remedy = "ask for fewer rounds or more noise of the parties"
        for key, epsilon, limit, whose in (
            ("max_epsilon_job", alike, self.max_epsilon_job, same),
            (
                "max_epsilon_month",
                month,
                self.max_epsilon_month,
                f"with it, jobs of this month on {self.dataset_name} have",
            ),
            ("max_epsilon", ever, self.max_epsilon, f"with it, all jobs on {self.dataset_name} have"),
        ):
            if limit is not None and not epsilon <= limit:
                told = f"ε = {epsilon:.4g}" if epsilon < inf else "no bound on ε"
                fact = f"{whose} {told} at δ = {self.delta:g}, and {limit:g} is the limit"
                yield self._says(key, fact, remedy)

    def _limits(self, job: Manifest, before: Before) -> Iterator[str]:
        if job.parameters > self.max_parameters:
            fact = f"the model has {job.parameters:,} parameters, and {self.max_parameters:,} is the limit"
            yield self._says("max_parameters", fact, "ask for a smaller model")
        if self.max_bytes is not None and job.bytes + before.bytes > self.max_bytes:
            fact = f"the job moves up to {job.bytes:,} bytes{_more(before.bytes)}, and {self.max_bytes:,} is the limit"
            yield self._says("max_bytes", fact, "ask for fewer rounds or a smaller model, or raise it")
        asks = job.rounds if job.asks is None else job.asks
        if self.max_rounds is not None and asks + before.rounds > self.max_rounds:
            told = f", which ask a party {asks:,} times" if asks != job.rounds else ""
            if not job.fixed:
                told = f", the method decides as it runs how often they ask, here up to {asks:,} times"
            fact = (
                f"the job has {job.rounds:,} rounds{told}{_more(before.rounds)}, and {self.max_rounds:,} is the limit"
            )
            yield self._says("max_rounds", fact, "ask for fewer rounds, or raise it")
        most = self.max_evaluations
        if most is not None and job.evaluations + before.evaluations > most:
            fact = f"the job evaluates {job.evaluations:,} times on this party's own test data"
            more = _more(before.evaluations)
            yield self._says(
                "max_evaluations", f"{fact}{more}, and {most:,} is the limit", "ask for a larger eval_every"
            )

    def _says(self, key: str, fact: str, remedy: str) -> str:
        return f"{key}: {fact}; {remedy} (see {self.name})"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a policy file."""
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise BadPolicy(f"cannot read {path}: {error}; without a policy nothing is joined") from None

    @classmethod
    def parse(cls, text: str, name: str = "the policy") -> Self:
        """Read a policy from the text of a file."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise BadPolicy(f"{name} is not TOML: {error}") from None
        known = {f.name for f in fields(cls)} - {"name"}
        try:
            for key in table:
                if key not in known:
                    raise BadPolicy(f"{key}: a policy has no such key; {nearest(key, known)}")
            made: Callable[..., Self] = cls  # the values are checked one by one
            return made(**{key: _value(key, value) for key, value in table.items()}, name=name)
        except BadPolicy as error:
            raise BadPolicy(f"{name}: {error}{of_release_0_1(table)}") from None


def _value(key: str, value: object) -> object:
    """Turn what TOML has into what the field holds; what is left to check, the policy checks itself."""
    if key in ("servers", "methods", "models", "roles", "partners", "jobs"):
        if value == ANY:
            return (ANY,) if key == "jobs" else None
        if not isinstance(value, list) or not all(isinstance(v, str) and v and v != ANY for v in value):
            raise BadPolicy(f'{key}={value!r}: a list of names, or "{ANY}"')
        return tuple(value)
    if key == "require":
        wishes = [value] if isinstance(value, str) else value
        if not isinstance(wishes, list) or not all(isinstance(v, str) for v in wishes):
            raise BadPolicy(f"require={value!r}: {' or '.join(REQUIRE)}, or a list of both")
        return tuple(v for v in wishes if v != "nothing")
    examples = {
        "hours": "22:00-06:00",
        "time_zone": "Europe/Berlin",
        "roster": "roster",
        "dataset": "wards",
        "accounts": "accounts",
    }
    example = examples.get(key)
    if example and not isinstance(value, str):
        raise BadPolicy(f'{key}={value!r}: a text, as in "{example}"')
    if key == "parts" and not isinstance(value, dict):
        raise BadPolicy(f"parts={value!r}: a table of packages and digests; `atoll parts` prints it")
    if key == "data" and not isinstance(value, dict):
        raise BadPolicy(f'data={value!r}: a table, as in data = {{ use = "csv" }}')
    return value


def _check_parts(parts: Mapping[str, str]) -> None:
    for name, digest in parts.items():
        if not (isinstance(name, str) and 0 < len(name) <= _WORD and name.isprintable()):
            raise BadPolicy(f"parts: {str(name)[:20]!r} is no name of a package; `atoll parts` prints those here")
        if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
            raise BadPolicy(f"parts.{name}={digest!r}: a digest is 64 digits of 0-9 and a-f; `atoll parts` prints it")


def _window(hours: str) -> tuple[time, time]:
    found = _HOURS.fullmatch(hours)
    if not found:
        raise BadPolicy(f'hours={hours!r}: two times of day, as in "22:00-06:00"')
    a, b, c, d = map(int, found.groups())
    if (a, b) == (c, d):
        raise BadPolicy(f"hours={hours!r}: this is no time at all or all the time; leave hours out for the latter")
    return time(a, b), time(c, d)


def _more(before: int) -> str:
    return f", other jobs on this data have taken {before:,}" if before else ""


def _check_hours(hours: str | None, zone: str | None) -> None:
    if hours is not None:
        _window(hours)
    if zone is not None:
        _zone(zone)


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise BadPolicy(
            f'time_zone={name!r}: no such time zone is known here; write it as in "Europe/Berlin" or "UTC", and '
            "install tzdata where there are none"
        ) from None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _number(value: object) -> bool:
    return _whole(value) or (isinstance(value, float) and not isnan(value))
