"""What every `run_<rival>.py` shares: its arguments, its clock and the one JSON line it ends with."""

import argparse
import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path


def _age() -> float:
    """Seconds since this process was started, imports of the interpreter included."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


START = time.perf_counter() - _age()


def arguments(rival: str, threads: dict[str, int]) -> argparse.Namespace:
    """WORKLOAD --rounds N --threads T; `threads` names the workloads and the fastest setting of each."""
    parser = argparse.ArgumentParser(description=f"seconds per federated round of {rival}")
    parser.add_argument("workload", choices=threads)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after one that warms up")
    parser.add_argument("--threads", type=int, help="operator threads; the fastest known setting when left out")
    given = parser.parse_args()
    given.threads = given.threads or threads[given.workload]
    return given


class Clock:
    """Seconds from the start of the process to the end of the first round, then of each further round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def tick(self) -> None:
        """A round is over and its result is in memory."""
        self.ends.append(time.perf_counter())

    @property
    def startup(self) -> float:
        return self.ends[0] - START

    @property
    def rounds(self) -> list[float]:
        return [after - before for before, after in pairwise(self.ends)]


def report(rival: str, version: str, given: argparse.Namespace, clock: Clock, accuracy: float | None) -> None:
    """Print the line that `measure` reads."""
    line = {
        "rival": rival,
        "version": version,
        "workload": given.workload,
        "startup": round(clock.startup, 3),
        "rounds": [round(seconds, 4) for seconds in clock.rounds],
        "threads": given.threads,
        "accuracy": None if accuracy is None else round(accuracy, 4),
    }
    print(json.dumps(line), file=sys.__stdout__, flush=True)
