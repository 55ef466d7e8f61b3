"""Atoll on one workload: `python bench/run_atoll.py 2nn --rounds 5 [--backend torch]` prints a JSON line.

Everything a user's run does is in the time of a round: draw, broadcast, train, fold, server step, journal, checkpoints
in a run folder. Evaluation is not, as it is not for the rivals.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "rivals"))

BORN = (
    time.time()
    - time.clock_gettime(time.CLOCK_MONOTONIC)
    + float(Path("/proc/self/stat").read_text().split()[21]) / os.sysconf("SC_CLK_TCK")
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workload")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="jax")
    parser.add_argument("--workers", type=int)
    args = parser.parse_args()

    import numpy as np
    from workload import load

    import atoll

    work = load(args.workload)
    models = {
        "2nn": lambda: atoll.models.mlp((200, 200), backend=args.backend),
        "cnn": lambda: atoll.models.cnn(backend=args.backend),
        "lstm": lambda: atoll.models.char_lstm(peephole=False, backend=args.backend),
        "softmax": lambda: atoll.models.softmax(backend=args.backend),
        "tiny": lambda: atoll.models.softmax(backend=args.backend),
    }
    parts = [(np.asarray(x), np.asarray(y)) for x, y in work.data]
    classes = 90 if args.workload == "lstm" else work.classes
    data = atoll.data.federate(parts, test=work.test if args.workload != "lstm" else None, classes=classes)
    method = atoll.FedAvg(models[args.workload](), work.epochs, work.batch, work.lr)
    ends: list[float] = []

    def clock(note: object) -> None:
        if note.what == "round":  # type: ignore[attr-defined]
            ends.append(time.time())

    rounds = args.rounds + 1
    job = atoll.Job(method, atoll.Count(work.cohort), rounds=rounds, eval_every=rounds)
    with tempfile.TemporaryDirectory() as folder:
        run = atoll.simulate(job, data, workers=args.workers, out=folder, sinks=(clock,))
    seconds = np.diff(ends).tolist()
    facts = [f for f in run.facts if f["what"] == "round"]
    accuracy = run.curve("test.accuracy")[1][-1] if data.test is not None else None
    print(
        json.dumps(
            {
                "rival": f"atoll ({args.backend})", "version": atoll.__version__, "workload": args.workload,
                "startup": ends[0] - BORN, "rounds": seconds,
                "threads": f"1 × {args.workers or os.cpu_count()} processes",
                "accuracy": accuracy, "work": float(np.median([f["work"] for f in facts[1:]])),
                "compile": facts[0]["compile"],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
