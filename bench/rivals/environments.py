"""One virtual environment per rival, from PyPI by package name, so that each is measured as its authors ship it.

    python bench/rivals/environments.py [name …]

An environment is made once: a stamp holds the requirement list it was made from, and the same list is not installed
again. PyTorch is installed first and by its exact version wherever it is needed; a looser pin pulls gigabytes of CUDA.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".environments"
TORCH = "torch==2.13.0"

# Each inner list is one `pip install`; naming torch again keeps the resolver from replacing it.
REQUIREMENTS: dict[str, list[list[str]]] = {
    "flower": [[TORCH], ["flwr[simulation]==1.41.0", TORCH]],
    "pfl": [[TORCH], ["pfl[pytorch]==0.6.0", TORCH]],
    "fedjax": [["fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3"]],
    "fluke": [[TORCH], ["fluke-fl==0.8.1", TORCH]],
    "fedlab": [[TORCH], ["fedlab==1.3.0", TORCH]],
    "torch": [[TORCH, "numpy"]],
    "phe": [["phe==1.5.0", "gmpy2==2.3.2"]],
}


def python_of(name: str) -> Path | None:
    """The interpreter of a finished environment; None when there is none (or it was made from another list)."""
    python = HOME / name / "bin" / "python"
    return python if python.exists() and _stamp(name) == REQUIREMENTS[name] else None


def make(name: str) -> str:
    """Make one environment and say in one line what happened."""
    if python_of(name):
        return f"{name}: ready"
    folder = HOME / name
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    for requirement in REQUIREMENTS[name]:
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            return f"{name}: failed at {' '.join(requirement)}: {reason}"
    (folder / "requirements.json").write_text(json.dumps(REQUIREMENTS[name]))
    return f"{name}: made"


def _stamp(name: str) -> list[list[str]] | None:
    stamp = HOME / name / "requirements.json"
    return json.loads(stamp.read_text()) if stamp.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(description="make the rivals' virtual environments")
    parser.add_argument("names", nargs="*", metavar="name", help=f"any of {', '.join(REQUIREMENTS)}; all when none")
    names = parser.parse_args().names or list(REQUIREMENTS)
    if unknown := [name for name in names if name not in REQUIREMENTS]:
        parser.error(f"no environment is called {', '.join(unknown)}; there are {', '.join(REQUIREMENTS)}")
    failed = False
    for name in names:
        line = make(name)
        failed |= ": failed" in line
        print(line, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
