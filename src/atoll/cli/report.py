"""`atoll report`: write a run's HTML report again."""

from __future__ import annotations

import sys
from pathlib import Path


def report_run(folder: Path) -> None:
    """Write report.html into a run folder, from its facts."""
    from atoll.journal import read
    from atoll.journal.read import NoRun
    from atoll.report.page import write

    record = read(folder)
    about = next((f for f in record.facts if f["what"] == "start"), None)
    if about is None:
        found = f" ({'; '.join(record.damaged)})" if record.damaged else ""
        raise NoRun(f"{folder}/facts.jsonl has no start{found}: resume the run, or run the job again")
    for sentence in record.damaged:
        sys.stderr.write(f"atoll: {sentence}\n")
    sys.stdout.write(f"{write(folder / 'report.html', about, record.facts)}\n")
