"""What a program with roles would ask, cost and reveal, in plain words, before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from atoll.combine.each import network_sees
from atoll.core.method import DataSummary
from atoll.core.program import Agreed
from atoll.core.question import Layout, Leaf, Question
from atoll.core.world import World
from atoll.job.roles import RoleJob
from atoll.programs.roles import HELLO, declared, on_wire, runtime_questions
from atoll.report.draw import About
from atoll.report.layout import as_table
from atoll.report.units import count, in_bytes

_FORM = {
    "nothing": "nothing of its data leaves",
    "sealed": "sealed for another role",
    "masked": "masked",
    "noised": "with noise of its own",
    "plain": "readable by the hub",
}
GUESS = 1_000  # rows that a role is taken to have whose data is not known
GUESS_PARTIES = 10  # that are taken to play a role for many whose data is not known


def guessed(job: RoleJob, known: Mapping[str, DataSummary]) -> Agreed:
    """Say what roles might bring: what is known of some, the same number of rows and one column of the others."""
    rows = max((summary.samples for summary in known.values()), default=0) or GUESS
    column = Layout({"x": Leaf("float64", (1,)), "y": Leaf("float64", ())})
    guess = DataSummary(rows, column, "real", 0, ("x",))
    several = guess._replace(parties=GUESS_PARTIES)
    roles = job.program.roles
    return Agreed({name: known.get(name, several if roles[name].many else guess) for name in roles}, job.rounds)


def explain_roles(
    job: RoleJob, known: Mapping[str, DataSummary], only: str | None = None, *, world: World | None = None
) -> str:
    """Say what a program with roles would ask, cost and reveal.

    Args:
        job: the job.
        known: by role, what it brings; sizes of other roles are guessed.
        only: the role to explain; default: all.
        world: simulated (the default) or real.
    """
    agreed = guessed(job, known)
    questions = declared(job.program, agreed)
    purpose = (inspect.getdoc(type(job.program)) or "").split("\n")[0]
    shown = [role for role in job.program.roles if only in (None, role)]
    blocks = [(f"job {job.name}", [f"{type(job.program).__name__}: {purpose}", count(job.rounds, "round")])]
    blocks += [_role(job, role, known, list(questions.values())) for role in shown]
    if not all(role.many for role in job.program.roles.values()):
        words = runtime_questions(job.roles)[HELLO].reveals
        blocks.append(("before the first question", [f"{who}: {what}, of each role" for who, what in words.items()]))
    place = World.simulated(job.seed) if world is None else world
    seen = {**job.program.seen(), "network": network_sees(place)}
    blocks.append(("who sees what", [f"{who}: {what}" for who, what in seen.items()]))
    return "\n\n".join(f"{title}\n" + "\n".join(f"  {line}" for line in lines) for title, lines in blocks)


def _role(
    job: RoleJob, role: str, known: Mapping[str, DataSummary], questions: list[Question]
) -> tuple[str, list[str]]:
    about, lines = job.program.roles[role], list[str]()
    if role in known and about.many:
        summary = known[role]
        lines.append(f"{summary.parties:,} parties bring {summary.samples:,} rows; sizes below are of one of them")
    elif role in known and about.holds != "nothing":
        summary = known[role]
        lines.append(f"brings {summary.samples:,} rows of {', '.join(summary.names) or 'labels only'}")
    elif about.holds != "nothing":
        lines.append(f"brings {about.holds}; sizes below are of {GUESS:,} rows and a column where they are not known")
    up = down = 0
    for question in (q for q in questions if role in q.roles):
        travels = on_wire(question, axis=True)
        sent, received = travels.answers.max_bytes, _body(travels)
        up, down = up + sent * question.times, down + received * question.times
        told = "; ".join(f"{who} {_learn(who)} {what}" for who, what in question.reveals.items())
        often = f", {question.times} times a round" if question.times > 1 else ""
        what = f": {told}" if told else ""
        form = _FORM[question.exposure] if question.contributes else "nothing of its data leaves"
        if about.many and question.contributes and question.exposure == "plain":
            form = "readable by whom it is sent to"
        lines.append(f"{question.name} ({form}; {in_bytes(received)} in, {in_bytes(sent)} out{often}){what}")
    lines.append(f"a round moves at most {in_bytes(up)} from it and {in_bytes(down)} to it")
    return f"role {role} ({job.roles[role]}): {about.about}", lines


def _learn(who: str) -> str:
    several = " " in who or who.endswith("s")
    return "learn" if several else "learns"


def section(about: About) -> str:
    """Show who played which role, and with what, as a part of the report; nothing of a job without roles."""
    rows = [
        [
            role,
            f"{one['party']} ({one['parties']:,} parties)" if one.get("parties", 1) > 1 else str(one["party"]),
            str(one["about"]),
            f"{one['rows']:,}" if one["rows"] else "–",
            ", ".join(one["columns"]),
        ]
        for role, one in about.get("roles", {}).items()
    ]
    head = ["role", "party", "what it does", "rows", "columns"]
    return f"<h2>Roles</h2>\n{as_table(head, rows, words=(1, 2, 4))}" if rows else ""


def _body(question: Question) -> int:
    """Bytes of a question without what plain values might take."""
    return Layout({path: leaf for path, leaf in question.asks.leaves.items() if leaf.shape is not None}).max_bytes
