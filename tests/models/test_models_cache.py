"""Compiled code is kept on disk: a second process compiles nothing that a first has compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = """
import json
import jax
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
import atoll
data = atoll.data.load("digits").split(5, seed=0)
method = atoll.fedadam(atoll.models.mlp((8,)), optimiser=atoll.optimiser("sgd", momentum=0.9))
atoll.simulate(atoll.Job(method, atoll.All(), rounds=2), data, workers=0)
print(json.dumps([seen.count(f"/jax/compilation_cache/cache_{what}") for what in ("hits", "misses")]))
"""


def run(folder: Path) -> tuple[list[int], set[str]]:
    """Return what was found on disk and what was not, and the names of what is there afterwards."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    told: dict[str, Any] = {"env": {**inherited, "XDG_CACHE_HOME": str(folder)}, "cwd": folder}
    done = subprocess.run([sys.executable, "-c", SCRIPT], **told, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), {p.name for p in (folder / "atoll" / "xla").rglob("*-cache")}


def test_a_second_process_compiles_nothing_anew(tmp_path: Path) -> None:
    (_, compiled), kept = run(tmp_path)
    assert compiled > 5
    assert len(kept) == compiled
    (found, compiled_again), kept_then = run(tmp_path)
    assert compiled_again == 0
    assert found >= compiled
    assert kept_then == kept
