"""`atoll compare`: is it worth federating?"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def compare_job(job: str, overrides: list[str], out: Path | None) -> None:
    """Print the comparison of a job file, and write its figures."""
    from atoll.data import build
    from atoll.decide.compare import compare
    from atoll.job.file import load

    said = load(job, overrides)
    tty = sys.stderr.isatty()

    def progress(words: str) -> None:
        sys.stderr.write(f"\r\x1b[K{words}" if tty else f"{words}\n")
        sys.stderr.flush()

    found = compare(said.job, build(said.data, said.seed), said.seed, progress=progress)
    sys.stderr.write("\r\x1b[K" if tty else "")
    sys.stdout.write(f"{found}\n")
    if out:
        out.write_text(json.dumps(found.figures(), indent=1), encoding="utf-8")
