"""Examples run as a reader would run them, and print the numbers they promise."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import spawn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(name: str, tmp_path: Path, *options: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *options]
    done = spawn.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_quick(tmp_path: Path) -> None:
    text = printed("quick", tmp_path)
    found = re.search(r"reached (0\.\d+) in round (\d+) \(target 0\.9\)", text)
    assert found, text
    assert float(found[1]) >= 0.9
    assert int(found[2]) <= 60


def test_drift_is_where_the_closed_form_says(tmp_path: Path) -> None:
    text = printed("drift_quadratic", tmp_path)
    rows = [line.split() for line in text.splitlines() if re.match(r" +\d+ ", line)]
    assert [(int(r[0]), float(r[1])) for r in rows] == [(1, 0.818182), (5, 0.621381), (10, 0.426884), (50, 0.040012)]
    assert all(float(r[3]) < 1e-9 for r in rows)


def test_own_method_is_exact(tmp_path: Path) -> None:
    text = printed("own_method", tmp_path)
    difference = re.search(r"largest difference (\S+)", text)
    score = re.search(r"test r2 (\S+)", text)
    assert difference
    assert float(difference[1]) < 1e-9
    assert score
    assert 0.4 < float(score[1]) < 0.6


@pytest.mark.parametrize("name", ["mcmahan_2017_fedavg", "when_to_federate"])
def test_missing_data_is_said_in_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ATOLL_OFFLINE", "1")
    options = ["--quick"] if name.startswith("mcmahan") else []
    text = printed(name, tmp_path, *options)
    assert text.startswith("skipped: mnist/")
    assert text.count("\n") == 1


def test_compression(tmp_path: Path) -> None:
    assert "TopK" in printed("compress_mnist", tmp_path, "--quick")


def test_rsa_is_not_enough(tmp_path: Path) -> None:
    text = printed("rsa_is_not_enough", tmp_path)
    assert re.search(r"RSA +E\(a\)·E\(b\) decrypts to a\+b +no", text)
    assert re.search(r"Paillier +E\(a\)·E\(b\) decrypts to a\+b +yes", text)


def test_canaries_refute_what_is_not_so(tmp_path: Path) -> None:
    rows = printed("canary_audit", tmp_path).splitlines()[1:]
    assert [row.endswith("not refuted") for row in rows] == [True, False, False] * 2


def test_gossip_keeps_the_mean_and_meets_at_the_rate_of_its_matrix(tmp_path: Path) -> None:
    text = printed("gossip", tmp_path)
    moved = re.search(r"the mean moved by (\S+)", text)
    rate = re.search(r"shrinks by (\S+) a round; the second eigenvalue is (\S+)", text)
    assert moved
    assert float(moved[1]) < 1e-12
    assert rate
    assert abs(float(rate[1]) - float(rate[2])) < 1e-5
