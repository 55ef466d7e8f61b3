"""A job on Ray and without it: seconds to the first round, seconds a round, seconds to end.

python bench/ray.py [--rounds 6] [--hidden 800] [--repeat 5]
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CASES = {  # where, workers
    "processes, 1": ("processes", 1),
    "processes, 2": ("processes", 2),
    "Ray, 1 node, 1 actor": ("ray", 1),
    "Ray, 1 node, 2 actors": ("ray", 2),
    "Ray, 2 nodes, 2 actors": ("nodes", 2),
}


@contextlib.contextmanager
def two_nodes() -> Iterator[str]:
    """Start two nodes with a CPU each on this machine, reachable from it only; give their address."""
    from atoll.runtimes.ray.cluster import private

    os.environ |= private()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()


def case(where: str, workers: int, rounds: int, hidden: int) -> None:
    """In the child: run one case; print the seconds to the first round, those of each round after, those to end."""
    import atoll

    data = atoll.data.build({"use": "digits", "clients": 40, "by": "iid", "test": 0.2}, 0)
    method = atoll.FedAvg(atoll.models.mlp((hidden, hidden)), epochs=5)
    job = atoll.Job(method, atoll.All(), rounds=rounds, eval_every=rounds)
    ends: list[float] = []
    sink = lambda note: ends.append(time.perf_counter()) if note.what == "round" else None  # noqa: E731
    with two_nodes() if where == "nodes" else contextlib.nullcontext() as address:
        began = time.perf_counter()
        if where == "processes":
            atoll.simulate(job, data, workers=workers, sinks=(sink,))
        else:
            atoll.on_ray(job, data, workers=workers, address=address, sinks=(sink,))
        over = time.perf_counter()
    each = [b - a for a, b in itertools.pairwise(ends)]
    print(json.dumps({"first": ends[0] - began, "round": statistics.median(each), "end": over - ends[-1]}))


def measured(where: str, workers: int, rounds: int, hidden: int) -> dict[str, float]:
    # -P: this folder must not be searched, or this file would be what `import ray` finds.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--case", where]
    numbers = [str(workers), str(rounds), str(hidden)]
    done = subprocess.run(command + numbers, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def shown(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


def main() -> None:
    if "--case" in sys.argv:
        where, *numbers = sys.argv[2:]
        case(where, *map(int, numbers))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=800)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    measured("processes", 1, 2, options.hidden)  # compiled code is kept on disk: nobody pays for it below
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CASES}
    for _ in range(options.repeat):  # in turn, so that what else the machine does falls on all
        for name, (where, workers) in CASES.items():
            found[name].append(measured(where, workers, options.rounds, options.hidden))
            print(name, found[name][-1], f"load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    print("Medians (least–most), in seconds.\n")
    print("| where | to the first round | a round | speed-up | to end |\n|---|---|---|---|---|")
    alone = {name.partition(",")[0]: rows for name, rows in reversed(found.items()) if CASES[name][1] == 1}
    for name, rows in found.items():
        first, each, end = ([row[key] for row in rows] for key in ("first", "round", "end"))
        base = statistics.median(row["round"] for row in alone[name.partition(",")[0]])
        speed = f"{base / statistics.median(each):.2f} ×"
        print(f"| {name} | {shown(first)} | {shown(each)} | {speed} | {shown(end)} |")


if __name__ == "__main__":
    main()
