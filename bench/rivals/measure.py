"""Run the rivals one after the other on the same workload and compare seconds per federated round.

    python bench/rivals/measure.py 2nn [--rivals pfl,fedjax] [--rounds 5]

Each rival runs in its own process and environment (`environments.py` makes them), with its fastest thread setting. One
that is not installed, fails or takes too long yields a record with an error, and the others go on.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from environments import REQUIREMENTS, python_of  # noqa: E402

RIVALS = {
    "2nn": ("torch", "fluke", "fedjax", "fedlab", "pfl", "flower"),
    "cnn": ("torch", "fluke", "fedjax", "fedlab", "pfl", "flower"),
    "lstm": ("torch",),
    "softmax": ("torch",),
    "tiny": ("torch",),
}
LIMIT = 15 * 60  # seconds for one rival


def measure(workload: str, rivals: Sequence[str] | None = None, rounds: int = 5) -> list[dict]:
    """One record per rival: what its script printed, or {"rival", "workload", "error"}."""
    return [_one(rival, workload, rounds) for rival in rivals or RIVALS[workload]]


def _one(rival: str, workload: str, rounds: int) -> dict:
    failure = {"rival": rival, "workload": workload}
    python = python_of(rival)
    if python is None:
        return failure | {"error": f"not installed: python bench/rivals/environments.py {rival}"}
    command = [str(python), str(HERE / f"run_{rival}.py"), workload, "--rounds", str(rounds)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and the workers it started
            return failure | {"error": f"no result after {LIMIT} seconds"}
    lines = err.strip().splitlines() or [f"ended with code {process.returncode} and said nothing"]
    try:
        return json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return failure | {"error": lines[-1]}


def table(records: Sequence[dict]) -> str:
    """Medians, the fastest first; errors last."""
    heads = "".join(f"{head:>9}" for head in ("s/round", "best", "worst", "startup", "threads", "accuracy"))
    lines = [f"{'rival':8} {'version':12}{heads}"]
    fine = [record for record in records if "error" not in record]
    for record in sorted(fine, key=lambda record: statistics.median(record["rounds"])):
        times = record["rounds"]
        accuracy = "-" if record["accuracy"] is None else f"{record['accuracy']:.4f}"
        lines.append(
            f"{record['rival']:8} {record['version']:12} {statistics.median(times):8.3f} {min(times):8.3f}"
            f" {max(times):8.3f} {record['startup']:8.1f} {record['threads']:8} {accuracy:>8}"
        )
    lines += [f"{record['rival']:8} {record['error']}" for record in records if "error" in record]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds per federated round of each rival")
    parser.add_argument("workload", choices=RIVALS)
    parser.add_argument("--rivals", help=f"comma-separated, of {','.join(REQUIREMENTS)}")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    records = measure(given.workload, given.rivals.split(",") if given.rivals else None, given.rounds)
    print(table(records))


if __name__ == "__main__":
    main()
