"""`atoll status` for a party or an edge: what its own folder says of what it gave, to whom, and who is below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

AUDIT = "audit.jsonl"


class PartyState(TypedDict):
    """How a party is doing, in the job that it joined last; of an edge, also who is below it."""

    state: str
    server: str
    job: str
    answers: int
    declined: int
    why: str
    bytes: int
    epsilon: float | None
    last: str
    below: dict[str, bool]


def is_party(folder: Path) -> bool:
    """Whether this is the folder of a party or an edge."""
    return (folder / AUDIT).is_file()


def party_status(folder: Path) -> PartyState:
    """Read the audit of a party; an edge also has facts about its own parties."""
    from atoll.journal.read import facts
    from atoll.runtimes.network.party.audit import lines
    from atoll.runtimes.network.server.disk import is_held

    said: PartyState = {
        "state": "running" if is_held(folder / AUDIT) else "stopped", "server": "", "job": "", "answers": 0,
        "declined": 0, "why": "", "bytes": 0, "epsilon": None, "last": "", "below": {},
    }  # fmt: skip
    for line in lines(folder / AUDIT):
        said["last"] = line["time"]
        if line["what"] == "joined" and line["job"] != said["job"]:
            said |= {"job": line["job"], "answers": 0, "declined": 0, "why": "", "bytes": 0, "epsilon": None}
        said["server"] = line.get("server", said["server"])
        if line.get("job") == said["job"]:
            said["bytes"] += line.get("bytes", 0) + line.get("brought", 0)
            said["answers"] += "sha256" in line
            said["epsilon"] = line.get("epsilon", said["epsilon"])
            if line["what"] == "declined":
                said["declined"], said["why"] = said["declined"] + 1, line["why"]
    for fact in facts(folder / "facts.jsonl")[0]:
        if fact["what"] in ("joined", "left"):
            said["below"][str(fact["party"])] = fact["what"] == "joined"
    return said


def in_words(said: PartyState) -> Iterator[str]:
    """Say the state of a party in lines for people."""
    if not said["job"]:
        yield f"{said['state']}: no job was joined yet" + (f", last at {said['server']}" if said["server"] else "")
        return
    yield (
        f"{said['state']}: {said['answers']} answers to {said['server']}, {said['bytes']:,} bytes in and out, "
        f"last on {said['last'][:19].replace('T', ' ')} UTC"
    )
    yield f"  job {said['job'][:16]}"
    if said["declined"]:
        yield f"  declined {said['declined']}, the last: {said['why']}"
    for name, there in said["below"].items():
        yield f"  {name}: {'came' if there else 'left'}"
    if said["epsilon"] is not None:
        from atoll.privacy.account import in_epsilon

        yield f"  ε {in_epsilon(said['epsilon'])} so far"
