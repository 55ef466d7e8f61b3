"""Cross-device scale: populations of 1K to 1M parties, cohorts of 1,000 and 10,000; a thousand parties × the CNN.

    python bench/scale.py [population] [folding]

Each case runs in a process of its own. Memory is the peak, over the main process and its workers, of resident memory
that is backed by no file, shared pages counted once: pages of a mapped data file belong to the system's cache.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

TURNS = 5


def private(pid: int) -> float:
    """MB of memory of a process and its children that is backed by no file; a page that several share counts once."""
    total = 0
    for one in [pid, *children(pid)]:
        try:
            for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon", "Pss_Shmem")):
                    total += int(line.split()[1])
        except OSError:
            continue
    return total / 1024


def children(pid: int) -> list[int]:
    try:
        return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Peak:
    """The highest memory seen while it watches."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self._stop = pid, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            self.most = max(self.most, private(self.pid))

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def case(kind: str, folder: str, cohort: int, rounds: int) -> None:
    """In the child: run one case and print its rounds."""
    import atoll

    if kind == "population":
        data = atoll.data.Federated.open(folder)
        model, batch = atoll.models.softmax(), 10
    else:
        mnist = atoll.data.load("mnist") if kind == "folding" else None
        assert mnist is not None
        data = atoll.data.pooled(mnist.split(100, seed=0), 2000, 10, seed=0)
        model, batch = atoll.models.cnn(), 10
    job = atoll.Job(atoll.FedAvg(model, 1, batch, 0.1), atoll.Count(cohort), rounds=rounds, eval_every=rounds)
    ends: list[float] = []
    run = atoll.simulate(job, data, sinks=(lambda note: ends.append(time.time()) if note.what == "round" else None,))
    accuracy = run.curve("test.accuracy")[1][-1]
    print(json.dumps({"rounds": np.diff(ends).tolist(), "accuracy": accuracy}))


def command(kind: str, folder: str, cohort: int, rounds: int) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--case", kind, folder, str(cohort), str(rounds)]


def record(*given: Any) -> dict[str, Any]:
    done = subprocess.run(command(*given), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def timed(*given: Any) -> float:
    """Return the median seconds of a round."""
    return float(np.median(record(*given)["rounds"]))


def measured(*given: Any) -> tuple[float, float, float]:
    """Run a case twice, for its time and for its memory: looking at the memory of a process slows it down."""
    found = record(*given)
    with subprocess.Popen(command(*given), stdout=subprocess.PIPE, text=True) as process, Peak(process.pid) as peak:
        process.communicate()
    return float(np.median(found["rounds"])), peak.most, found["accuracy"]


def population() -> None:
    import atoll

    print("| parties | cohort | s / round | parties / s | peak memory, MB | accuracy |\n|---|---|---|---|---|---|")
    most: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        where = {parties: str(Path(folder, str(parties))) for parties in (1_000, 10_000, 100_000, 1_000_000)}
        for parties, place in where.items():
            atoll.data.synthetic(parties, 0.0, 0.0, samples=20, spread=0.3, iid=True, folder=place)
            for cohort in (1000, 10_000) if parties > 1000 else (1000,):
                seconds, memory, accuracy = measured("population", place, cohort, 60 if cohort == 1000 else 12)
                most.setdefault(parties, memory)
                speed = f"{seconds:.4f} | {cohort / seconds:,.0f}"
                print(f"| {parties:,} | {cohort:,} | {speed} | {memory:.0f} | {accuracy:.3f} |", flush=True)
        few, many = where[1_000], where[1_000_000]
        ratios = [timed("population", many, 1000, 100) / timed("population", few, 1000, 100) for _ in range(TURNS)]
    turns = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(
        f"1M against 1K: time {np.median(ratios):.2f}× ({TURNS} turns: {turns}), memory "
        f"{most[1_000_000] / most[1_000]:.2f}×, {most[1_000_000] / 1000:.2f} GB"
    )


def folding() -> None:
    seconds, memory, _ = measured("folding", "-", 1000, 2)
    what = "1,000 parties × the CNN (1,663,370 parameters)"
    print(f"{what}: {seconds:.1f} s a round, peak {memory / 1000:.2f} GB")


def main() -> None:
    if "--case" in sys.argv:
        kind, folder, cohort, rounds = sys.argv[2:]
        case(kind, folder, int(cohort), int(rounds))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["population", "folding"])
    for what in parser.parse_args().what:
        {"population": population, "folding": folding}[what]()


if __name__ == "__main__":
    main()
