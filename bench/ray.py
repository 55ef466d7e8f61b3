"""A job on Ray: time to the first round, seconds a round with one and two actors; the same with processes.

python bench/ray.py [--rounds 6] [--hidden 800]
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path


def case(where: str, workers: int, rounds: int, hidden: int) -> None:
    """In the child: run one case; print the seconds to the first round and those of each round after."""
    began = time.perf_counter()
    import atoll

    data = atoll.data.build({"use": "digits", "clients": 40, "by": "iid", "test": 0.2}, 0)
    method = atoll.FedAvg(atoll.models.mlp((hidden, hidden)), epochs=5)
    job = atoll.Job(method, atoll.All(), rounds=rounds, every=rounds)
    train = {"ray": atoll.on_ray, "processes": atoll.simulate}[where]
    ends: list[float] = []
    sink = lambda note: ends.append(time.perf_counter()) if note.what == "round" else None  # noqa: E731
    train(job, data, workers=workers, sinks=(sink,))
    rounds_after = [b - a for a, b in itertools.pairwise(ends)]
    print(json.dumps({"first": ends[0] - began, "rounds": rounds_after, "end": time.perf_counter() - ends[-1]}))


def measured(where: str, workers: int, rounds: int, hidden: int) -> dict[str, float]:
    # -P: this folder must not be searched, or this file would be what `import ray` finds.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--case", where]
    numbers = [str(workers), str(rounds), str(hidden)]
    done = subprocess.run(command + numbers, stdout=subprocess.PIPE, text=True, check=True)
    record = json.loads(done.stdout.splitlines()[-1])
    return {"first": record["first"], "round": statistics.median(record["rounds"]), "end": record["end"]}


def main() -> None:
    if "--case" in sys.argv:
        where, *numbers = sys.argv[2:]
        case(where, *map(int, numbers))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=800)
    options = parser.parse_args()
    measured("processes", 1, 2, options.hidden)  # compiled code is kept on disk: nobody pays for it below
    print("| where | workers | to the first round, s | s / round | speed-up | to end, s |\n|---|---|---|---|---|---|")
    for where in ("ray", "processes"):
        alone: float | None = None
        for workers in (1, 2):
            found = measured(where, workers, options.rounds, options.hidden)
            alone = alone or found["round"]
            speed = f"{found['round']:.3f} | {alone / found['round']:.2f}×"
            print(f"| {where} | {workers} | {found['first']:.1f} | {speed} | {found['end']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
