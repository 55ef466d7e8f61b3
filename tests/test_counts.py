"""The counts of tests/counts.py find what they are about, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from counts import COUNTS, Module, code_lines, main

PROBING, ANY, LONG, COLLISIONS, SENTENCES, CORE = (count.places for count in COUNTS)


def module(text: str, file: str = "core/a.py") -> Module:
    return Module(file, text, ast.parse(text))


@pytest.mark.parametrize(("text", "found"), [
    ('hasattr(part, "talk")', 1), ('getattr(part, "model", None)', 1), ('getattr(part, "model")', 0),
    ("getattr(part, name, None)", 1), ('hasattr(os, "sched_getaffinity")', 0), ("hasattr(part, name)", 1),
    ('"talk" in dir(part)', 1), ('vars(part).get("talk")', 1), ('part.__dict__["talk"]', 1),
    ('inspect.getattr_static(part, "talk")', 1), ("with suppress(AttributeError): part.talk", 1),
    ("with suppress(OSError): part.talk", 0), ("try: part.talk\nexcept (KeyError, AttributeError): pass", 1),
    ("try: part.talk\nexcept OSError: pass", 0),
])  # fmt: skip
def test_probing(text: str, found: int) -> None:
    assert len(list(PROBING([module(text)]))) == found


@pytest.mark.parametrize(("text", "found"), [
    ("from typing import Any\n", 0), ("x: typing.Any\n", 1),
    ("def f(x: Any) -> Any: ...\n", 1), ("Array = np.ndarray[Any, Any]\n", 0),
    ('"""Any word."""\n', 0), ("def f(\n    x: Any,\n    y: dict[str, Any],\n): ...\n", 2),
])  # fmt: skip
def test_lines_with_any(text: str, found: int) -> None:
    assert len(list(ANY([module(text)]))) == found


def test_code_lines_have_neither_comments_nor_docstrings_nor_blanks() -> None:
    text = (
        '"""What\nlives here."""\n\n# why\nx = (\n    1  # one\n)\n\n\ndef f():\n    """Do."""\n    return """a\nb"""\n'
    )
    assert sorted(code_lines(module(text))) == [5, 6, 7, 10, 12, 13]


@pytest.mark.parametrize(("lines", "found"), [(39, 0), (40, 1)])
def test_long_functions(lines: int, found: int) -> None:
    body = "".join(f"    x = {k}\n\n    # why\n" for k in range(lines))
    assert len(list(LONG([module(f"def f():\n    '''Do.'''\n{body}")]))) == found


def test_collisions_are_of_public_types_in_two_modules() -> None:
    first = module("class Plan: ...\nclass _Own: ...\nT = TypeVar('T')\nMOST = 1\nFacts = Mapping[str, int]\n")
    assert not list(COLLISIONS([first]))
    assert not list(COLLISIONS([first, module("class _Own: ...\nT = TypeVar('T')\nMOST = 2\n", "core/b.py")]))
    both = list(COLLISIONS([first, module("Plan = int\nclass Facts: ...\n", "core/b.py")]))
    assert [(place.file, place.what) for place in both] == [
        ("core/b.py", "Facts, also in core/a.py"),
        ("core/b.py", "Plan, also in core/a.py"),
    ]


@pytest.mark.parametrize(("text", "found"), [
    ('"say hello first" in str(reason)', 1), ('"late" in words', 0), ('"two words" in ("two words", "b")', 0),
    ('text.startswith("failed to connect")', 1), ('text.startswith("ray://")', 0),
    ('re.search(r"delta: ([^;]+)", s)', 1),
    ('re.fullmatch(r"[a-z0-9]+", s)', 0), ('FIRST = "say hello first"\nFIRST not in str(e)', 1),
    ('AWAY = ("Endpoint closing",)\nany(w in said for w in AWAY)', 1),
    ('x = {"two words": 1}\nfor w in x: s.replace(w, "")', 1),
    ('path.replace("the file")', 1), ('f"{a} is b"', 0), ('raise E("one whole sentence")', 0),
])  # fmt: skip
def test_sentences_that_code_looks_for(text: str, found: int) -> None:
    assert len(list(SENTENCES([module(text)]))) == found


def test_a_sentence_of_another_module_is_found() -> None:
    there = module('FIRST = "say hello first"\n', "job/there.py")
    here = module("from atoll.job.there import FIRST\nstr(error).endswith(FIRST)\n", "job/here.py")
    assert [place.file for place in SENTENCES([there, here])] == ["job/here.py"]


def test_the_core_is_counted_by_its_code() -> None:
    assert len(list(CORE([module("x = 1\n# why\ny = 2\n"), module("z = 3\n", "data/a.py")]))) == 2


def test_it_runs_as_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).with_name("counts.py")
    done = subprocess.run([sys.executable, str(script), "--report", "-v"], capture_output=True, text=True, check=True)
    assert sum("(limit" in line for line in done.stdout.splitlines()) == len(COUNTS)
    assert main(["--report"]) == 0
    assert capsys.readouterr().out.count("too many") == done.stdout.count("too many")
