"""The quorum that a job asks for: by the names that parties have, and refused where no round could reach it."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.core.errors import Mismatch, nearest
from atoll.job.job import Job
from atoll.programs.quorum import Quorum


def quorum_of(job: Job, numbers: Mapping[str, int]) -> Quorum:
    """Return the quorum of a job between real parties, which have these names."""
    for name in job.required:
        if name not in numbers:
            raise Mismatch(f"required: {name} is not in the roster, so add its line; {nearest(name, numbers)}")
    return Quorum(job.min_parties or 1, frozenset(numbers[name] for name in job.required))


def check_quorum(job: Job, parties: int) -> None:
    """Refuse a quorum that the select or the combine cannot reach."""
    if job.channel.combine.staleness is not None and (job.min_parties is not None or job.required):
        raise Mismatch("min_parties and required: a buffered update waits for nobody; set buffer_size instead")
    expected = job.select.expected(parties)
    if job.min_parties is not None and expected < job.min_parties:
        remedy = "select more, or lower min_parties"
        raise Mismatch(f"min_parties = {job.min_parties}, and the select counts on {expected} of {parties}: {remedy}")
    if job.required and job.select.sampling(parties).kind != "none":
        names = ", ".join(job.required)
        raise Mismatch(f'required: every round needs {names}, and this select leaves parties out: write select = "all"')


def in_words(job: Job) -> str | None:
    """Say what a round needs to count; None where a job asks for nothing."""
    if job.min_parties is None and not job.required:
        return None
    among = f", those of {', '.join(job.required)} among them" if job.required else ""
    fewest = job.min_parties or 1
    answers = f"{fewest:,} answer{'s' if fewest > 1 else ''}"
    return f"a round counts with at least {answers}{among}; between real parties the run waits for them"
