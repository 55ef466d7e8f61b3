"""However a run ends, its worker processes end with it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import psutil
import pytest
from test_run_parts import all_gone, end, no_hang, start, until, workers_of  # noqa: F401


def busy(cwd: Path) -> tuple[int, list[psutil.Process], object]:
    (cwd / "said").unlink(missing_ok=True)
    process = start(cwd, "run", "digits", "--set", "method.model.hidden=[400]", "--workers", "2", "--rounds", "100000")
    try:
        until(lambda: _round(cwd) >= 2 or process.poll() is not None)
        assert process.poll() is None, (cwd / "said").read_text()
        workers = workers_of(process.pid)
    except BaseException:
        process.kill()
        raise
    return process.pid, workers, process


def _round(cwd: Path) -> int:
    return max((int(n) for n in re.findall(r"^round (\d+)/", (cwd / "said").read_text(), re.M)), default=0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_run(number: signal.Signals, tmp_path: Path) -> None:
    _, workers, process = busy(tmp_path)
    assert len(workers) == 2
    code = end(process, number)  # type: ignore[arg-type]
    assert all_gone(workers, 5)
    said = (tmp_path / "said").read_text()
    (folder,) = (tmp_path / "runs").iterdir()
    if number is signal.SIGINT:
        assert f"atoll run --resume runs/{folder.name}" in said
        assert "Traceback" not in said
        assert list((folder / "checkpoints").glob("*.safetensors"))
        assert code == 130
    else:
        assert code != 0
