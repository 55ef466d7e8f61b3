"""How long a person waits: imports, help, the first finished round, the whole default job; cold and warm compile cache.

python bench/startup.py [--repeat 3]

Bytecode is on disk, as it is after an install, whatever the environment says of it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ATOLL = [sys.executable, "-c", "from atoll.cli import main; main()"]


def timed(command: list[str], until: str | None = None, **environment: str) -> float:
    """Seconds until the process ends, or until a line of its output starts with `until`."""
    env = {**os.environ, **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if until and line.startswith(until):
                took = time.perf_counter() - began
                process.kill()
                return took
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat

    def row(what: str, measure: object) -> None:
        times = [measure() for _ in range(repeat)]  # type: ignore[operator]
        print(f"| {what} | {statistics.median(times):.2f} s |", flush=True)

    print("| what | median |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(folder, "bytecode"))
        out, warm = str(Path(folder, "runs")), str(Path(folder, "warm"))
        run = [*ATOLL, "run", "--out", out]
        first = [*run, "--rounds", "1"]
        number = iter(range(1000))
        cold = lambda: {"XDG_CACHE_HOME": str(Path(folder, f"cold{next(number)}"))}  # noqa: E731
        timed(first, **cold())  # writes the bytecode
        row("import atoll", lambda: timed([sys.executable, "-c", "import atoll"]))
        row("atoll --help", lambda: timed([*ATOLL, "--help"]))
        row("atoll run to its first finished round, cold cache", lambda: timed(first, "round 1/", **cold()))
        timed(first, XDG_CACHE_HOME=warm)
        row("the same, warm cache", lambda: timed(first, "round 1/", XDG_CACHE_HOME=warm))
        row("atoll run (default job) to its end, cold cache", lambda: timed(run, **cold()))


if __name__ == "__main__":
    main()
