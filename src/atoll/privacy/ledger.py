"""The ledger: reads what a job spends from the wire, the select and the method, and says it in figures and words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.core.keys import Array
from atoll.core.wire import Mismatch, Wire
from atoll.privacy.account import Account
from atoll.privacy.calibrate import delta_for
from atoll.privacy.events import Spend

_USEFUL = 20.0  # ε
_SIZES = 24  # of parties that are looked at to find the one that spends most


@dataclass(frozen=True)
class Ledger:
    """One account for each unit that is protected: parties, examples, or both.

    `server` is the account against the server where noise hides parties from it: it knows who took part, so that no
    sampling is amplified.
    """

    accounts: tuple[Account, ...]
    server: Account | None = None

    def of(self, unit: str | None = None) -> Account:
        """Return the account of a unit, or the only one."""
        found = [a for a in self.accounts if unit in (None, a.spend.unit)]
        if not found:
            raise Mismatch(f"nothing here protects a single {unit}: its noise protects {self.accounts[0].spend.unit}s")
        return found[0]

    def spent(self, rounds: int, *, last: bool = False) -> dict[str, Any]:
        """Return the facts of so many rounds: ε of each unit; at the end also as tight as it can be computed."""
        facts: dict[str, Any] = {}
        for account in self.accounts:
            name = "epsilon" if account is self.accounts[0] else f"epsilon_{account.spend.unit}"
            facts[name] = account.epsilon(rounds)
            if last:
                # Where so much was spent, tighter figures are of no use to anybody, and take long.
                tight = account.tight(rounds) if facts[name] < _USEFUL else None
                facts |= {f"{name}_tight": tight} if tight is not None else {}
                facts[f"{name}_means"] = account.words()
        if last and self.server:
            facts |= {
                "epsilon_server": self.server.epsilon(rounds),
                "epsilon_server_means": f"against the server; {self.server.words()}",
            }
        return facts


def ledger_of(
    wire: Wire, select: Any, method: Any, sizes: Array, *, steady: bool, rounds: int, deltas: Mapping[str, float]
) -> Ledger | None:
    """Open the accounts of a job; None where no noise is added.

    The sampling is read from the select that does it. `steady`: everybody is always online, so that a sample of
    fixed size is drawn from all. `deltas` are those that a budget asks for, by unit.
    """
    found = [_of_parties(event.where, event.multiplier, select, len(sizes), steady, wire) for event in wire.noise]
    private = getattr(method, "private", None)
    if private is not None:
        found.append(_of_examples(private, method, sizes, rounds, deltas))
    population = {"party": len(sizes), "example": int(sizes.sum())}
    accounts = []
    for spend in found:
        delta = deltas.get(spend.unit)
        if delta is None:
            if population[spend.unit] < 2:
                raise Mismatch(f"one {spend.unit} alone has nobody to hide among: federate at least two")
            delta = delta_for(population[spend.unit])
        try:
            accounts.append(Account(spend, delta))
        except ValueError as error:
            raise Mismatch(str(error)) from None
    server = None
    for event, account in zip(wire.noise, accounts, strict=False):
        if event.where == "distributed" and account.spend.rate < 1:
            unsampled = Spend(
                event.multiplier, "none" if account.spend.sampling == "poisson" else "fixed", population=len(sizes)
            )
            server = Account(unsampled, account.delta)
    return Ledger(tuple(accounts), server) if accounts else None


def _of_parties(where: str, multiplier: float, select: Any, parties: int, steady: bool, wire: Wire) -> Spend:
    if where == "local":  # whoever sees a report knows whose it is: no sampling hides it
        return Spend(multiplier, mechanism="local", population=parties)
    if where == "tree":
        epoch = select.epoch(parties) if hasattr(select, "epoch") else None
        if epoch is None or wire.tree != epoch:
            name = type(select).__name__
            remedy = f"use Tree(every={epoch})" if epoch else "select with InTurn()"
            raise Mismatch(f"a tree lasts {wire.tree} rounds, and {name} does not promise that in these no party takes "
                           f"part twice: {remedy}")  # fmt: skip
        return Spend(multiplier, mechanism="tree", epoch=epoch, population=parties)
    sampling = getattr(select, "sampling", None)
    if sampling == "poisson":
        return Spend(multiplier, "poisson", select.rate, population=parties)
    number = select.expected(parties)
    if sampling == "fixed" and steady and number < parties:
        return Spend(multiplier, "fixed", number / parties, population=parties)
    if sampling == "none":
        return Spend(multiplier, population=parties)
    # Nothing is amplified, and who leaves makes room for another: vectors are replaced, not removed.
    return Spend(multiplier, "fixed", 1.0, population=parties)


def _of_examples(private: Any, method: Any, sizes: Array, rounds: int, deltas: Mapping[str, float]) -> Spend:
    """Spend what the party spends that spends most, should it take part in every round."""
    if not private.multiplier > 0:
        raise Mismatch("private training with multiplier 0 adds no noise and protects nothing: leave `private` out")
    epochs, batch = getattr(method, "epochs", 1), getattr(method, "batch", None)
    some = np.unique(sizes[sizes > 0])
    shown = some[np.unique(np.linspace(0, len(some) - 1, min(len(some), _SIZES)).astype(int))]
    delta = deltas.get("example", delta_for(max(int(sizes.sum()), 2)))
    spends = []
    for n in shown.tolist():
        rate, steps = private.per_round(n, epochs, batch)
        spends.append(Spend(private.multiplier, "poisson" if rate < 1 else "none", rate, "example", times=steps))
    return max(spends, key=lambda spend: Account(spend, delta).epsilon(rounds))


def calibrated(ledger: Ledger, epsilon: float, rounds: int) -> float:
    """Return the smallest multiplier of three digits with which so many rounds stay within ε, all else as it is."""
    from atoll.privacy.calibrate import smallest

    account = ledger.accounts[0]
    return smallest(lambda z: Account(replace(account.spend, multiplier=z), account.delta), epsilon, rounds)
