"""What one job may still take of a party's data set: checked before an answer is worked out, and again as it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from atoll.runtimes.network.party.audit import AuditLog
from atoll.runtimes.network.party.policy import Before, Manifest, NotAllowed, Policy
from atoll.runtimes.network.party.session import Assessment
from atoll.runtimes.network.party.spending import UNLIMITED, DataAccount, Spending, Tally, epsilon


def _now() -> datetime:
    return datetime.now().astimezone()


def account_of(policy: Policy, folder: Path) -> DataAccount:
    """Open the account of a party's data set, which is beside the folders that it keeps for its servers."""
    return DataAccount(Path(policy.accounts) if policy.accounts else folder.parent / "accounts", policy.dataset_name)


def carry_over(audit: AuditLog, account: DataAccount) -> None:
    """Book the answers of an audit that were given before data sets had accounts; of their noise nothing is known."""
    earlier = audit.unbooked()
    if not earlier:
        return
    for job, month, answers, moved in earlier:
        unknown = Counter({UNLIMITED: sum(answers.values())})
        account.add(job, month, Tally(answers, unknown, sum(answers.values()), bytes=moved))
    audit.append("booked", dataset=account.name)


@dataclass(frozen=True)
class JobBudget:
    """One job on one data set.

    Args:
        account: of the data set.
        policy: its limits.
        assessed: what the job would do.
        job: the hash of its text.
        clock: tells the time of day, with its zone.
    """

    account: DataAccount
    policy: Policy
    assessed: Assessment
    job: str
    clock: Callable[[], datetime] = _now

    @property
    def month(self) -> str:
        return f"{self.clock():%Y-%m}"

    @property
    def substance(self) -> str:
        return self.assessed.manifest.substance

    def agree(self, manifest: Manifest) -> None:
        """Agree to the job, which is written down, or refuse what the policy forbids at this moment."""

        def check(spending: Spending) -> None:
            self.policy.check(manifest, now=self.clock(), before=self.before(spending))

        self.account.agree(self.job, self.substance, check)

    def before(self, spending: Spending) -> Before:
        """Return what was given and agreed to before, to judge the job by."""
        others = spending.of(but=self.job)
        month, alike = spending.of(month=self.month, but=self.job), spending.of(but=self.job, like=self.substance)
        spent = [epsilon(tally.costs + self.assessed.plan, self.policy.delta) for tally in (month, others, alike)]
        return Before(
            others.rounds, others.evaluations, others.bytes, spent[0], spent[1], spent[2], frozenset(spending.agreed)
        )

    def allow(self, what: str, evaluates: bool) -> None:
        """Refuse one answer too many, before it is worked out."""
        spending = self.account.read()
        key = self.job, self.month
        spending.tallies[key] = spending.tallies.get(key, Tally()) + self._one(what, evaluates, spending)
        self.check(spending)

    def book(self, what: str, evaluates: bool) -> None:
        """Write an answer down that is about to leave; what others took meanwhile counts."""
        self.account.add(self.job, self.month, self._one(what, evaluates, self.account.read()), self.check)

    def moved(self, size: int) -> int:
        """Count bytes; return how many the data set has moved in all. Only a power cut can lose them."""
        return self.account.add(self.job, self.month, Tally(bytes=size), sync=False).of().bytes

    def epsilon(self) -> float:
        """Return what the job has spent."""
        return epsilon(self.account.read().of(job=self.job).costs, self.policy.delta)

    def _one(self, what: str, evaluates: bool, spending: Spending) -> Tally:
        if evaluates:
            return Tally(costs=Counter({self.assessed.evaluating: 1}), evaluations=1)
        given = spending.of(job=self.job).answers.total()
        cost = self.assessed.costs.get(what, UNLIMITED)
        # A round of a role takes several answers; the first of them begins it.
        return Tally(Counter([what]), Counter({cost: 1}), int(given % self.assessed.a_round == 0))

    def check(self, spending: Spending) -> None:
        """Refuse what is beyond the job or the policy. The party counts itself: which round it is, the server says."""
        policy, mine, ever = self.policy, spending.of(job=self.job), spending.of()
        if not self.assessed.allows(mine.answers):
            raise NotAllowed(
                f"the server asked {mine.answers.total()} times, and the job has {self.assessed.manifest.rounds} "
                "rounds: ask its owner why, or for a job that allows extra_answers"
            )
        if mine.evaluations > self.assessed.evaluations:
            raise NotAllowed(
                f"the server asked {mine.evaluations} times how well models do on this party's own test data, and the "
                f"job does {self.assessed.evaluations} times: ask its owner why"
            )
        self._at_most("max_rounds", policy.max_rounds, ever.rounds, "answers of this data set")
        self._at_most("max_evaluations", policy.max_evaluations, ever.evaluations, "evaluations on this data set")
        month, alike = spending.of(month=self.month), mine + spending.of(but=self.job, like=self.substance)
        limits = (("job", policy.max_epsilon_job, alike), ("month", policy.max_epsilon_month, month))
        for name, limit, tally in (*(("_" + n, x, y) for n, x, y in limits), ("", policy.max_epsilon, ever)):
            if limit is not None and epsilon(tally.costs, policy.delta) > limit:
                raise NotAllowed(
                    f"{policy.name}: max_epsilon{name} = {limit:g}, and with this answer the data set "
                    f"{policy.dataset_name} would have spent more: raise it to continue"
                )

    def _at_most(self, key: str, limit: int | None, found: int, what: str) -> None:
        if limit is not None and found > limit:
            raise NotAllowed(
                f"{self.policy.name}: {key} = {limit:,}, and with this it would be {found:,} {what} over all jobs: "
                "raise it to continue"
            )
