"""This tree against release 0.1 from its commit: `python bench/release.py [2nn cnn … import help first] [--pairs 15]`.

Both run the same thing in turns, each in a process of its own, from the same environment. The ratio of the two of a
pair is one observation; the interval holds the median ratio with 95 % confidence, by the ranks of the observations.
`--bits` compares the final parameters of the jobs in tests/golden/release_0_1 instead.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from functools import partial
from math import comb
from pathlib import Path

import numpy as np
from startup import ATOLL, timed

HERE = Path(__file__).resolve().parent
COMMIT = "4cea28d"  # release 0.1
JOBS = HERE.parent / "tests" / "golden" / "release_0_1"
ROUNDS = {"2nn": 40, "cnn": 3, "lstm": 5, "softmax": 80, "tiny": 80}  # of one process
PARTIES = {"1K": 1_000, "1M": 1_000_000}
SYNTHETIC = "import atoll, sys; atoll.data.synthetic(int(sys.argv[1]), 0.0, 0.0, samples=20, spread=0.3, iid=True, folder=sys.argv[2])"  # noqa: E501
OLD = """
import hashlib, json, sys
from atoll.data import build
from atoll.jobfile import parse
from atoll.run import simulate
said = parse(open(sys.argv[1]).read(), "job")
run = simulate(said.job, build(said.data, said.seed), said.seed, workers=0)
print(hashlib.sha256(run.vector.tobytes()).hexdigest())
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "what", nargs="*", default=["2nn", "softmax", "tiny", "lstm", *PARTIES, "import", "help", "first"]
    )
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--bits", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))
        old = Path(folder) / "release"
        subprocess.run(["git", "clone", "-q", str(HERE.parent), str(old)], check=True)
        subprocess.run(["git", "checkout", "-q", COMMIT], cwd=old, check=True)
        if args.bits:
            compare_bits(old)
        for what in [] if args.bits else args.what:
            seconds = partial(measured, what, Path(folder))
            for root in (old, HERE.parent):  # compiled code is kept on disk: no pair pays for it
                seconds(root)
            pairs = []
            for k in range(args.pairs):
                roots = [old, HERE.parent][:: 1 if k % 2 else -1]
                found = {root: seconds(root) for root in roots}
                pairs.append((found[HERE.parent], found[old]))
            print(told(what, pairs), flush=True)


def measured(what: str, folder: Path, root: Path) -> float:
    """Run one tree once; return the median seconds of its rounds, or the seconds that somebody waits."""
    if what in ROUNDS:
        return median_round(root, "run_atoll.py", what, "--rounds", str(ROUNDS[what]))
    if what in PARTIES:
        place = folder / f"{root.name}-{what}"
        if not place.exists():
            subprocess.run([sys.executable, "-c", SYNTHETIC, str(PARTIES[what]), str(place)], env=of(root), check=True)
        return median_round(root, "scale.py", "--case", "population", str(place), "1000", "100")
    path = {"PYTHONPATH": of(root)["PYTHONPATH"]}
    first = [*ATOLL, "run", "--rounds", "1", "--out", str(folder / "runs")]
    return {
        "import": partial(timed, [sys.executable, "-c", "import atoll"]),
        "help": partial(timed, [*ATOLL, "--help"]),
        "first": partial(timed, first, "round 1/"),
    }[what](**path)


def of(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root / "src")}


def median_round(root: Path, script: str, *options: str) -> float:
    command = [sys.executable, str(root / "bench" / script), *options]
    done = subprocess.run(command, env=of(root), capture_output=True, text=True, check=True, cwd=root)
    return statistics.median(json.loads(done.stdout.splitlines()[-1])["rounds"])


def told(what: str, pairs: list[tuple[float, float]]) -> str:
    ratios, n = sorted(new / old for new, old in pairs), len(pairs)
    below = 0  # ranks cut off at each end: fewer than 2.5 % of all medians lie beyond them
    while sum(comb(n, k) for k in range(below + 1)) / 2**n < 0.025:
        below += 1
    low, high = ratios[max(below - 1, 0)], ratios[n - max(below, 1)]
    new, old = (statistics.median(column) for column in zip(*pairs, strict=True))
    return (f"{what}: {statistics.median(ratios):.3f} × the time of 0.1 ({low:.3f} to {high:.3f}; "
            f"median of {n} pairs; {new:.4f} s against {old:.4f} s)")  # fmt: skip


def compare_bits(old: Path) -> None:
    from atoll.data import build
    from atoll.job.file import from_table
    from atoll.job.migrate import migrate
    from atoll.runtimes.run import simulate

    equal = 0
    jobs = sorted(JOBS.glob("*.toml"))
    for path in jobs:
        done = subprocess.run([sys.executable, "-c", OLD, str(path)], env=of(old), capture_output=True, text=True,
                              check=True)  # fmt: skip
        said = from_table(migrate(tomllib.loads(path.read_text())))
        job = replace(said.job, train_loss=False)  # which 0.1 did not tell
        run = simulate(job, build(said.data, said.seed), said.seed, workers=0)
        same = hashlib.sha256(np.asarray(run.vector).tobytes()).hexdigest() == done.stdout.strip()
        equal += same
        print(f"{path.stem}: {'equal bits' if same else 'OTHER bits'}", flush=True)
    print(f"{equal} of {len(jobs)} jobs have the bits of release 0.1")


if __name__ == "__main__":
    main()
