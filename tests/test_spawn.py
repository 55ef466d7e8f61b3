"""Tests leave no process behind, also when they fail, and their processes can be interrupted."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

import spawn

HERE = Path(__file__).parent

# Each starts a parent that starts a child, and tells of both before the test fails.
FAILING = """
import subprocess, sys, time
from pathlib import Path
import pytest, spawn

TREE = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);" \\
    "print(p.pid, flush=True); time.sleep(600)"

def tell(*pids):
    with Path("pids").open("a") as file:
        file.write("".join(f"{pid}\\n" for pid in pids))

def sleep():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path("spawned").write_text(str(child.pid))
    time.sleep(600)

def test_started():
    process = spawn.start([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True)
    tell(process.pid, process.stdout.readline())
    assert False

def test_within():
    with spawn.start([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True) as process:
        tell(process.pid, process.stdout.readline())
        assert False

def test_run():
    both = "print(p.pid, os.getpid(), file=open('pids', 'a'), flush=True); time.sleep(600)"
    spawn.run([sys.executable, "-c", "import os;" + TREE.split("print")[0] + both], timeout=3)

def test_left_by_a_dead_parent():
    process = spawn.start([sys.executable, "-c", TREE], stdout=subprocess.PIPE, text=True)
    tell(process.pid, process.stdout.readline())
    process.kill()
    process.wait()
    assert False

def test_function():
    process = spawn.process(sleep)
    while not Path("spawned").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    tell(process.pid, Path("spawned").read_text())
    assert False

@pytest.fixture
def broken():
    tell(spawn.start([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
    raise ValueError("no")

def test_fixture(broken):
    pass
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def pytest_of(file: Path, text: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest on a file, with the part of conftest that concerns processes."""
    file.write_text(text)
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    words = ["-q", "-p", "spawn", "-p", "no:cacheprovider", "--rootdir", str(file.parent), file.name]
    shell = ["sh", "-c", f'{before}exec "$@"', "sh", sys.executable, "-m", "pytest", *words]
    how = {"cwd": file.parent, "env": {**os.environ, "PYTHONPATH": paths}, "timeout": 100}
    return subprocess.run(shell, **how, capture_output=True, text=True, check=False)


def test_a_test_that_fails_leaves_no_process(tmp_path: Path) -> None:
    done = pytest_of(tmp_path / "test_failing.py", FAILING)
    assert "5 failed, 1 error" in done.stdout, done.stdout
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    assert len(set(pids)) == 11
    end = time.monotonic() + 10  # a killed child of a killed parent is reaped by the system, which may take a moment
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


INTERRUPTED = """
import signal, sys
import spawn

SCRIPT = "import signal, time; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"

def says():
    import signal
    open("says", "w").write(str(signal.getsignal(signal.SIGINT) is signal.default_int_handler))

def test_children_can_be_interrupted():
    assert spawn.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True).stdout == "True\\n"
    spawn.process(says).join()
    assert open("says").read() == "True"
    signal.raise_signal(signal.SIGINT)  # this process stays deaf
"""


def test_processes_can_be_interrupted_where_pytest_was_started_with_sigint_ignored(tmp_path: Path) -> None:
    done = pytest_of(tmp_path / "test_interrupted.py", INTERRUPTED, before="trap '' INT; ")
    assert "1 passed" in done.stdout, done.stdout


def test_a_started_process_is_interrupted() -> None:
    process = spawn.start([sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"], **pipes())
    assert process.stdout
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT


def pipes() -> dict[str, int]:
    return {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_processes_are_started_by_one_module_only() -> None:
    """The mutation check runs without conftest, and forks on purpose."""
    found = {}
    for path in set(HERE.rglob("*.py")) - {HERE / name for name in ("spawn.py", "test_spawn.py", "crypto/mutate.py")}:
        calls = [ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        ends = (".Popen", ".fork", "context.Process", "multiprocessing.Process", "get_context('spawn').Process")
        found[path.name] = [call for call in calls if call.endswith(ends)]
    assert {name: calls for name, calls in found.items() if calls} == {}
