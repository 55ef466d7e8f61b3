"""`atoll status` and `atoll stop`: how a served run is doing, while its server runs and after; and ending it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypedDict

from atoll.report.shown import shown

if TYPE_CHECKING:
    from atoll.runtimes.network.server.health import OpenQuestion

LAST = 10  # rounds that say how long the next will take
STOP = 60.0  # seconds that a server may take to end; a call may be on its way for a while


class PartyStatus(TypedDict):
    """Whether a party is connected, and how many seconds ago it was last heard of."""

    connected: bool
    seen: float | None


class Rejections(TypedDict):
    """How many messages of a party were rejected, and why the last one was."""

    count: int
    last: str


class RunStatus(TypedDict):
    """How a served run is doing."""

    state: str
    reason: str
    round: int
    rounds: int | None
    seconds_left: float | None
    epsilon: float | None
    needed: int
    awaited: list[str]
    untold: list[str]
    refused: dict[str, str]
    parties: dict[str, PartyStatus]
    questions: list[OpenQuestion]
    rejected: dict[str, Rejections]
    damaged: list[str]


def status_of(run: Path, as_json: bool) -> None:
    """Say how a served run is doing, or a party or an edge whose folder this is."""
    from atoll.cli import party_status as party

    said: Mapping[str, object]
    if party.is_party(run):
        said = found = party.party_status(run)
        words = party.in_words(found)
    else:
        said = served = status(run)
        words = in_words(served)
    sys.stdout.write(json.dumps(said) + "\n" if as_json else "".join(f"{shown(line)}\n" for line in words))


def stop_run(run: Path) -> None:
    """End a server and wait until it has ended; what it has done is kept."""
    from atoll.job.catalogue import BadJob
    from atoll.runtimes.network.server.monitor import server_of

    pid = server_of(run)
    if pid is None:
        raise BadJob(f"{run}: no server is running there")
    try:
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise BadJob(f"the server of {run} (process {pid}) is another user's: stop it as that user") from None
    until = time.monotonic() + STOP
    while server_of(run) == pid:
        if time.monotonic() > until:
            raise BadJob(
                f"the server of {run} (process {pid}) was asked to stop and still runs after {STOP:g} s: wait, or "
                f"end it with kill -9 {pid}; no round that was done is lost"
            )
        time.sleep(0.05)
    if status(run)["state"] == "finished":
        sys.stdout.write("stopped; the run had finished\n")
        return
    sys.stdout.write(f"stopped; nothing is lost. To resume, serve the same job with --run {quote(str(run))}\n")


def status(run: Path) -> RunStatus:
    """Put together what the journal has, what the server said last, and whether it is running."""
    from atoll.core.effects import number
    from atoll.journal import read, rounds_done
    from atoll.runtimes.network.server.monitor import last_said, server_of

    record = read(run)
    facts, said = record.facts, last_said(run)
    live = server_of(run) is not None
    rounds = [fact for fact in facts if fact["what"] == "round"]
    done, planned = rounds_done(facts), record.job.get("rounds")
    planned = planned if isinstance(planned, int) else None
    state, reason = _state(run, facts, said, live)
    if live and state == "running":
        done = said["round"]  # of the same moment as the questions
    pace = _pace(facts)
    return {
        "state": state,
        "reason": reason,
        "round": done,
        "rounds": planned,
        "seconds_left": round((planned - done) * pace, 1) if state == "running" and planned and pace else None,
        "epsilon": next((number(f, "epsilon") for f in reversed(rounds) if "epsilon" in f), None),
        "needed": said.get("needed", 0) if live else 0,
        "awaited": said.get("awaited", []) if live else [],
        "untold": list(said.get("untold", [])) if state == "finished" else [],
        "refused": dict(said.get("refused", {})) if live else _refused(facts),
        "parties": _parties(facts, said, live),
        "questions": said.get("questions", []) if live else [],
        "rejected": _rejected(facts),
        "damaged": list(record.damaged),
    }


def _state(run: Path, facts: list[dict[str, object]], said: Mapping[str, Any], live: bool) -> tuple[str, str]:
    where = quote(str(run))
    again = f"serve the same job with --run {where} to resume it" if said else f"atoll run --resume {where} resumes it"
    if live:
        state = said.get("state", "running")
        return state, str(said.get("reason", "")) if state in ("full", "finished") else ""
    ended = next((str(f["reason"]) for f in reversed(facts) if f["what"] == "end"), None)
    if ended is not None:
        return "finished", ended
    if said.get("state") == "failed":
        return "failed", str(said.get("reason", ""))
    if said.get("state") == "stopped":
        return "stopped", f"by hand; {again}"
    return "stopped", f"not running; {again}"


def _pace(facts: list[dict[str, object]]) -> float | None:
    """Seconds of a round: the median of the last ones. A fact's time counts from the start of its server."""
    from atoll.core.effects import number

    took, before = [], 0.0
    for fact in facts:
        at = number(fact, "time") or 0.0
        if fact["what"] == "round":
            took.append(at - before)
        if fact["what"] in ("start", "resume", "round"):
            before = at
    return statistics.median(took[-LAST:]) if took else None


def _parties(facts: list[dict[str, object]], said: Mapping[str, Any], live: bool) -> dict[str, PartyStatus]:
    """Who was ever there: connected now or not, and how many seconds ago it was last heard of."""
    found: dict[str, PartyStatus] = {
        str(fact["party"]): {"connected": False, "seen": None} for fact in facts if fact["what"] == "joined"
    }
    old = 0.0
    if "time" in said:
        old = max(0.0, (datetime.now(UTC) - datetime.fromisoformat(said["time"])).total_seconds())
    for name, party in said.get("parties", {}).items():
        seen = None if party["silent"] is None else round(party["silent"] + old, 1)
        found[name] = {"connected": live and party["connected"], "seen": seen}
    return found


def _refused(facts: list[dict[str, object]]) -> dict[str, str]:
    """Who did not take part in the end, by its own policy, and why."""
    found: dict[str, str] = {}
    for fact in facts:
        if fact["what"] == "refused":
            found[str(fact["party"])] = str(fact["why"])
        elif fact["what"] == "joined":
            found.pop(str(fact["party"]), None)
    return found


def _rejected(facts: list[dict[str, object]]) -> dict[str, Rejections]:
    found: dict[str, Rejections] = {}
    for fact in facts:
        if fact["what"] == "rejected":
            name = str(fact["party"])
            found[name] = {"count": found[name]["count"] + 1 if name in found else 1, "last": str(fact["why"])}
    return found


def in_words(said: RunStatus) -> Iterator[str]:
    """Say a status in lines for people."""
    connected = sum(party["connected"] for party in said["parties"].values())
    left = "" if said["seconds_left"] is None else f", about {lasts(said['seconds_left'])} to go"
    among = f"; needed and not there: {', '.join(said['awaited'])}" if said["awaited"] else ""
    there = f" for parties ({connected} of {said['needed']} are there{among})" if said["needed"] else ""
    why = f"; {said['reason']}" if said["reason"] else ""
    done = f"{said['round']} of {said['rounds']} round{'s' * (said['rounds'] != 1)} done"
    yield f"{said['state']}{there}: {done}{left}{why}"
    for question in said["questions"]:
        late = ", ".join(question["late"]) or "nobody"
        since = f"{question['asked']} parties asked {lasts(question['seconds'])} ago"
        yield f"  round {question['round']}: {since}, no answer yet from {late}"
    for name, party in said["parties"].items():
        seen = "left" if party["seen"] is None else f"last seen {lasts(party['seen'])} ago"
        yield f"  {name}: {'connected' if party['connected'] else seen}"
    for name in said["untold"]:
        yield f"  {name}: was not reached yet to be told that the run has ended"
    for name, why in said["refused"].items():
        yield f"  refused by {name}: {why}"
    for name, bad in said["rejected"].items():
        yield f"  rejected: {bad['count']} of {name}, the last: {bad['last']}"
    for sentence in said["damaged"]:
        yield f"  {sentence}"
    if said["epsilon"] is not None:
        from atoll.privacy.account import in_epsilon

        yield f"  ε {in_epsilon(said['epsilon'])} so far"


def lasts(seconds: float) -> str:
    """A length of time as people say it."""
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}s"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"
