"""Seconds a federated round: Atoll against every rival, side by side in one run, as ratios.

    python bench/rivals/environments.py          # once: the rivals, each in its own environment
    python bench/rounds.py [2nn cnn lstm softmax tiny] [--rounds 10] [--repeat 2] [--rivals fedjax] [--markdown FILE]

Atoll and the rivals take turns, `--repeat` times; a figure is the median over all steady rounds. The last columns say
which fraction of this machine's GEMM rate the round's arithmetic is, and where the rest of Atoll's time goes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "rivals"))

from measure import RIVALS, measure  # noqa: E402
from products import operations  # noqa: E402

STEPS = {"2nn": 600, "cnn": 600, "lstm": 60, "softmax": 600, "tiny": 2500}


def gemm() -> float:
    """This machine's float32 GEMM rate with all cores, operations a second."""
    a = np.random.default_rng(0).random((2048, 2048), np.float32)
    best = 0.0
    for _ in range(8):
        began = time.perf_counter()
        a @ a
        best = max(best, 2 * 2048**3 / (time.perf_counter() - began))
    return best


def atoll(workload: str, backend: str, rounds: int) -> dict:
    command = [sys.executable, str(HERE / "run_atoll.py"), workload, "--backend", backend, "--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"rival": f"atoll ({backend})", "workload": workload, "error": done.stderr.strip()[-300:]}


def turns(workload: str, rounds: int, repeat: int, only: list[str]) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for turn in range(repeat):
        records = [atoll(workload, backend, rounds) for backend in ("jax", "torch")]
        rivals = [name for name in RIVALS[workload] if name in only or not only]
        records += measure(workload, rivals, max(3, rounds // 3) if workload in ("cnn", "lstm") else rounds)
        for record in records:
            found.setdefault(record["rival"], []).append(record)
            seconds = statistics.median(record["rounds"]) if "rounds" in record else float("nan")
            said = record.get("error", "")
            print(f"  turn {turn + 1}: {workload} {record['rival']:<14} {seconds:8.4f} s {said}", flush=True)
    return found


def products(workload: str) -> float:
    """Seconds of the products of one step, on one core."""
    command = [sys.executable, str(HERE / "products.py"), workload]
    alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=alone).stdout)[workload]


def summary(workload: str, found: dict[str, list[dict]], rate: float) -> list[str]:
    medians, starts = {}, {}
    for rival, records in found.items():
        rounds = [s for r in records for s in r.get("rounds", ())]
        if rounds:
            medians[rival] = statistics.median(rounds)
            starts[rival] = statistics.median([r["startup"] for r in records if "startup" in r])
    ours = min((name for name in medians if name.startswith("atoll")), key=lambda name: medians[name])
    flops = operations(workload) * STEPS[workload]
    lines = []
    for rival, seconds in sorted(medians.items(), key=lambda item: item[1]):
        ratio = seconds / medians[ours]
        share = f"{100 * flops / seconds / rate:.0f} %"
        lines.append(f"| {workload} | {rival} | {seconds:.4f} | {ratio:.2f}× | {starts[rival]:.1f} | {share} |")
    best = min((s for name, s in medians.items() if not name.startswith("atoll")), default=float("nan"))
    work = statistics.median([r["work"] for r in found[ours] if "work" in r])
    alone = products(workload) * STEPS[workload] / (os.cpu_count() or 1)
    lines.append(
        f"| {workload} | **fastest rival / Atoll** | | **{best / medians[ours]:.2f}×** "
        f"| | {100 * work / medians[ours]:.0f} % of Atoll's round is local training; its products alone would take "
        f"{100 * alone / medians[ours]:.0f} % |"
    )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["2nn", "cnn", "lstm", "softmax", "tiny"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--rivals", nargs="+", default=[], help="these only")
    args = parser.parse_args()
    rate = gemm()
    head = [f"GEMM rate of this machine: {rate / 1e9:.0f} GFLOP/s (float32, all cores)", ""]
    head += ["| workload | who | s / round | against Atoll | start-up, s | of GEMM rate |", "|---|---|---|---|---|---|"]
    for workload in args.workloads:
        head += summary(workload, turns(workload, args.rounds, args.repeat, args.rivals), rate)
    text = "\n".join(head)
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
