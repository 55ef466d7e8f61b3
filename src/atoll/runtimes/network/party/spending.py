"""What a party's data set has given away: one file for each data set, over all servers, jobs, names, keys and restarts.

The file is read, checked and replaced under a lock, before an answer leaves, so that two processes of one party cannot
spend the same budget twice. Noise is written down as it was, and composed by Rényi DP whenever ε is asked for.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from atoll.core.disk import replace_file
from atoll.core.errors import AtollError, Unwritable
from atoll.privacy.account import epsilon_of
from atoll.privacy.events import Spend

FORMAT = 1


class AccountBroken(AtollError, ValueError):
    """A file of a data set's spending that is not what was written."""

    code = "account_broken"


class AnswerCost(NamedTuple):
    """What hides this party in one answer: its whole vector, and one example of its data. None: nothing does."""

    party: Spend | None = None
    example: Spend | None = None


UNLIMITED = AnswerCost()


def epsilon(costs: Mapping[AnswerCost, int], delta: float) -> float:
    """Return the ε of so many answers of each cost, for the largest unit that all of them hide: parties or examples."""
    given = [(cost, n) for cost, n in costs.items() if n]
    parties = [(cost.party, n) for cost, n in given if cost.party is not None]
    examples = [(cost.example, n) for cost, n in given if cost.example is not None]
    return next((epsilon_of(one, delta) for one in (parties, examples) if len(one) == len(given)), inf)


@dataclass
class Tally:
    """What was given: answers with something of the training data by phase, evaluations, bytes both ways."""

    answers: Counter[str] = field(default_factory=Counter)
    costs: Counter[AnswerCost] = field(default_factory=Counter)  # of answers and evaluations
    rounds: int = 0  # as `max_rounds` counts them
    evaluations: int = 0
    bytes: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.answers + other.answers, self.costs + other.costs, self.rounds + other.rounds,
            self.evaluations + other.evaluations, self.bytes + other.bytes,
        )  # fmt: skip

    def written(self) -> dict[str, object]:
        costs = [[_written(cost.party), _written(cost.example), n] for cost, n in self.costs.items()]
        counts = {"rounds": self.rounds, "evaluations": self.evaluations, "bytes": self.bytes}
        return {"answers": dict(self.answers), "costs": costs, **counts}

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Tally:
        costs = Counter({AnswerCost(_read(party), _read(example)): int(n) for party, example, n in said["costs"]})
        counts = (int(said[name]) for name in ("rounds", "evaluations", "bytes"))
        return cls(Counter(said["answers"]), costs, *counts)


@dataclass
class Spending:
    """All that a data set has given, by job and calendar month."""

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    agreed: dict[str, str] = field(default_factory=dict)  # jobs, and the substance of each

    def of(
        self, *, job: str | None = None, month: str | None = None, but: str | None = None, like: str | None = None
    ) -> Tally:
        """Add up what was given to one job or all, in one month or ever; `but` leaves one job out, and `like` those of
        another substance.
        """
        found = (
            tally for (one, when), tally in self.tallies.items()
            if job in (None, one) and month in (None, when) and one != but and like in (None, self.agreed.get(one))
        )  # fmt: skip
        return sum(found, Tally())


class DataAccount:
    """The file of one data set.

    Args:
        folder: where it is, for all data sets of this party.
        name: of the data set.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.path = folder / f"{name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise self._unwritable(error) from None

    def read(self) -> Spending:
        """Return what was given so far."""
        with self._locked():
            return self._load()

    def add(
        self, job: str, month: str, more: Tally, check: Callable[[Spending], None] = lambda _: None, *,
        sync: bool = True,
    ) -> Spending:  # fmt: skip
        """Write down what is about to be given, unless the check refuses what it would come to. Return all of it."""
        with self._locked():
            spending = self._load()
            spending.tallies[job, month] = spending.tallies.get((job, month), Tally()) + more
            check(spending)
            self._save(spending, sync)
            return spending

    def agree(self, job: str, substance: str, check: Callable[[Spending], None]) -> None:
        """Write down that a job is agreed to, unless the check refuses it after all that was given and agreed to."""
        with self._locked():
            spending = self._load()
            check(spending)
            if spending.agreed.get(job) != substance:
                spending.agreed[job] = substance
                self._save(spending, sync=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _load(self) -> Spending:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return Spending()
        head, _, body = text.partition(b"\n")
        try:
            if head.decode() != sha256(body).hexdigest():
                raise ValueError
            said = json.loads(body)
            if said["format"] != FORMAT:
                raise ValueError
            given = {(job, month): Tally.read(tally) for job, month, tally in said["given"]}
            # Whoever gave something had agreed, also before agreements were written down.
            return Spending(given, dict.fromkeys((job for job, _ in given), "") | dict(said.get("agreed", {})))
        except (ValueError, KeyError, TypeError):
            raise AccountBroken(
                f"{self.path} is not what was written: bring it back from a backup, or name a new data set in the "
                "policy (dataset = …), which begins with nothing spent"
            ) from None

    def _save(self, spending: Spending, sync: bool) -> None:
        given = [[job, month, tally.written()] for (job, month), tally in spending.tallies.items()]
        text = json.dumps({"format": FORMAT, "dataset": self.name, "agreed": spending.agreed, "given": given})
        body = text.encode()
        try:
            replace_file(self.path, sha256(body).hexdigest().encode() + b"\n" + body, mode=0o600, sync=sync)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> Unwritable:
        return Unwritable(
            f"cannot write {self.path}: {error.strerror}; nothing is given that is not written down there: name "
            "another folder in the policy (accounts = …), or free some space"
        )


def _written(spend: Spend | None) -> dict[str, object] | None:
    if spend is None:
        return None
    return {"multiplier": spend.multiplier, "rate": spend.rate, "times": spend.times, "unit": spend.unit}


def _read(said: Mapping[str, Any] | None) -> Spend | None:
    if said is None:
        return None
    rate = float(said["rate"])
    sampling: Any = "poisson" if rate < 1 else "none"
    return Spend(float(said["multiplier"]), sampling, rate, said["unit"], times=int(said["times"]), told=True)
