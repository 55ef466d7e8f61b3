"""Parts from anywhere: of installed packages by entry point, of one's own by module:Name, nested by type hint."""

from __future__ import annotations

import csv
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atoll
import spawn
from atoll.combine import Each, Mean, Median, Sum, TrimmedMean
from atoll.core.method import Method, Select
from atoll.core.wire import Codec, Combine, Rule, Stage, Wire, as_is, as_was
from atoll.job.catalogue import BadJob, build, entries, name_of, names, table
from atoll.job.file import dumps, from_table, parse, third_party, to_table
from atoll.job.job import Channel, Job
from atoll.job.parts import KINDS, Package, digest, installed
from atoll.journal.sealed import seal
from atoll.methods import Cosine, Exponential, FedAvg, FedSGD
from atoll.methods.schedule import Schedule
from atoll.methods.server import ServerOptimiser
from atoll.models import Model, mlp, optimiser, softmax
from atoll.models.example_dp import ExampleDP
from atoll.models.optimiser import Optimiser
from atoll.runtimes.network.party.policy import BadPolicy, Policy
from atoll.select import All, Count, Oversample, Uniform
from atoll.stages import Average, Clip, Weigh

SOURCE = Path(atoll.__file__).parents[1]
HERE = __name__  # these tests' own parts are found as module:Name

# --- a package of somebody else ---------------------------------------------------------------------------------------

# Each part hands on to one of Atoll's, so that what comes out can be compared to the bit.
PARTS = '''
"""Parts for the tests of Atoll."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.core.method import Select
from atoll.core.wire import Rule, Stage
from atoll.methods import FedAvg, FedSGD
from atoll.methods.schedule import Schedule
from atoll.methods.trained import Trained
from atoll.models import Model
from atoll.models.zoo import Mlp


@dataclass(frozen=True)
class Wrapped(Stage):
    """Do what another stage does."""

    stage: Stage

    def __call__(self, wire):
        return self.stage(wire)


@dataclass(frozen=True)
class MedianOfMeans(Rule):
    """The median of the means of so many groups of rows."""

    groups: int = 1

    def __call__(self, rows):
        return np.median([rows[i :: self.groups].mean(axis=0) for i in range(self.groups)], axis=0).astype(rows.dtype)


@dataclass(frozen=True)
class Same(Select):
    """Select whom another select selects."""

    select: Select

    def expected(self, parties):
        return self.select.expected(parties)

    def asked(self, parties):
        return self.select.asked(parties)

    def pick(self, *given):
        return self.select.pick(*given)


@dataclass(frozen=True)
class Plain(Trained):
    """FedSGD under another name."""

    model: Model
    lr: float | Schedule = 0.1

    @property
    def inner(self):
        return FedSGD(self.model, self.lr)

    @property
    def phases(self):
        return self.inner.phases

    def init(self, *given):
        return self.inner.init(*given)

    def broadcast(self, state):
        return self.inner.broadcast(state)

    def client_update(self, *given):
        return self.inner.client_update(*given)

    def server_update(self, *given):
        return self.inner.server_update(*given)


@dataclass(frozen=True)
class Small:
    """A small network."""

    units: int = 4

    def build(self, shape, outputs):
        return Mlp((self.units,)).build(shape, outputs)


def gentle(model: Model, ease: float = 2.0, **settings) -> FedAvg:
    """FedAvg with a smaller step."""
    return FedAvg(model, lr=0.1 / ease, **settings)
'''

ENTRIES = {
    "stage.wrapped": "{0}:Wrapped",  # the package's own module re-exports it
    "rule.median_of_means": "{0}.parts:MedianOfMeans",
    "select.same": "{0}.parts:Same",
    "method.plain": "{0}.parts:Plain",
    "method.gentle": "{0}.parts:gentle",
    "model.small": "{0}.parts:Small",
}


def install(
    site: Path, name: str = "mypackage", version: str = "1.2", entries: Mapping[str, str] = ENTRIES,
    files: Mapping[str, str] | None = None, direct: Mapping[str, Any] | None = None,
) -> Path:  # fmt: skip
    """Write a package as pip would install it; return its metadata folder."""
    files = files or {"__init__.py": f"from {name}.parts import Wrapped\n", "parts.py": PARTS}
    about = site / f"{name}-{version}.dist-info"
    lines = [f"{point} = {path.format(name)}\n" for point, path in entries.items()]
    written = {site / name / file: text for file, text in files.items()}
    written[about / "METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    written[about / "entry_points.txt"] = "[atoll.parts]\n" + "".join(lines)
    written[about / "INSTALLER"] = "pip\n"
    if direct:
        written[about / "direct_url.json"] = json.dumps(direct)
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with (about / "RECORD").open("w", newline="") as file:
        rows = [path.relative_to(site).as_posix() for path in written]
        csv.writer(file).writerows([row, "sha256=as-pip-writes-it", "9"] for row in (*rows, f"../../bin/{name}"))
        made = (f"{about.name}/RECORD", f"{name}/__pycache__/parts.cpython-311.pyc")
        csv.writer(file).writerows([row, "", ""] for row in made)  # also as pip writes it
    return about


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of installed packages, first on the path of this process."""
    folder = tmp_path / "site"
    folder.mkdir()
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield folder
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {path.name for path in folder.iterdir()}:
            del sys.modules[name]


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(site), str(SOURCE)))}


def python(site: Path, cwd: Path, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return spawn.run(
        [sys.executable, "-c", code, *args], cwd=cwd, env=environment(site), capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip


def cli(site: Path, cwd: Path, *args: str) -> str:
    done = python(site, cwd, "from atoll.cli import main; main()", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(site: Path, cwd: Path, *args: str) -> str:
    done = python(site, cwd, "from atoll.cli import main; main()", *args)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


JOB = """
name = "theirs"
rounds = 4
data = { use = "digits", clients = 6 }
method = { use = "plain", model = { use = "small", units = 3, dtype = "float64" }, lr = { use = "cosine" } }
select = { use = "same", select = { use = "oversample", select = { use = "same", select = "all" } } }
stages = [{ use = "wrapped", stage = { use = "wrapped", stage = { use = "clip", norm = 1.0 } } }, "average"]
combine = { use = "each", rule = "median_of_means" }
"""
SAME = """
name = "theirs"
rounds = 4
data = { use = "digits", clients = 6 }
method = { use = "fedsgd", model = { use = "mlp", hidden = [3], dtype = "float64" }, lr = { use = "cosine" } }
select = { use = "oversample", select = "all" }
stages = [{ use = "clip", norm = 1.0 }, "average"]
combine = { use = "each", rule = "mean" }
"""
STAGE = """
name = "one"
rounds = 2
data = { use = "digits", clients = 3 }
method = { use = "fedavg", model = "softmax" }
stages = [{ use = "wrapped", stage = "weigh" }]
"""


# --- entry points -----------------------------------------------------------------------------------------------------


def folder_of(printed: str) -> Path:
    return Path(re.findall(r"^run +(\S+)$", printed, re.MULTILINE)[0])


@pytest.mark.slow
def test_a_job_of_somebody_elses_parts_runs_resumes_and_ends_as_one_of_our_own(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site)
    (tmp_path / "theirs.toml").write_text(JOB)
    (tmp_path / "same.toml").write_text(SAME)
    shown = cli(site, tmp_path, "explain", "theirs.toml")
    assert "wrapped(" in shown
    done = tmp_path / folder_of(cli(site, tmp_path, "run", "theirs.toml", "--workers", "2"))
    said = (done / "job.toml").read_text()
    assert 'use = "plain"' in said
    assert "mypackage" not in said, "an entry point's name is enough"
    cut = """
import sys
from atoll.data import build
from atoll.job.file import load
from atoll.runtimes.run import simulate

def sink(note):
    if note.what == "round" and note.facts["round"] == 3:
        sys.exit(7)

said = load("theirs.toml")
simulate(said.job, build(said.data, said.seed), said.seed, out="cut", workers=0, sinks=(sink,))
"""
    ended = python(site, tmp_path, cut)
    assert ended.returncode == 7, ended.stderr
    (folder,) = (tmp_path / "cut").iterdir()
    assert not (folder / "model.safetensors").exists()
    assert "ended: all 4 rounds done" in cli(site, tmp_path, "run", "--resume", str(folder))
    whole = tmp_path / folder_of(cli(site, tmp_path, "run", "same.toml"))
    assert (folder / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()
    assert (whole / "model.safetensors").read_bytes() == (done / "model.safetensors").read_bytes()
    shutil.rmtree(site / "mypackage-1.2.dist-info")
    assert "there is no method 'plain'" in refused(site, tmp_path, "run", "--resume", str(folder))
    assert cli(site, tmp_path, "report", str(folder)), "a report imports nothing of a job"


def test_lists_show_parts_with_their_package(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site)
    install(site, "broken", "0.1", {"stop.never": "{0}:Never"}, {"__init__.py": "import nothing_of_that_name\n"})
    shown = cli(site, tmp_path, "list")
    assert re.search(
        r"^  wrapped \(from mypackage 1\.2\) +Do what another stage does\.\n +stage\n", shown, re.MULTILINE
    )
    assert re.search(
        r"^  gentle \(from mypackage 1\.2\) +FedAvg .*\n +model, epochs = 1,.*, ease = 2\.0\n", shown, re.M
    )
    assert re.search(r"^  never \(from broken 0\.1\) +stop: cannot import broken .*nothing_of_that_name", shown, re.M)
    assert shown.splitlines().count("metric") == 1, "a kind is listed once"
    assert "wrapped" not in cli(site, tmp_path, "list", "rule")
    said = cli(site, tmp_path, "parts")
    assert "# mypackage 1.2: stage wrapped, rule median_of_means," in said
    allowed = tomllib.loads(said)["parts"]
    assert set(allowed) == {"mypackage", "broken"}
    Policy.parse(said)


def test_without_packages_there_is_nothing_to_allow(tmp_path: Path) -> None:
    said = cli(tmp_path, tmp_path, "parts")
    assert tomllib.loads(said) == {}
    assert "no installed package" in said


def test_nothing_is_imported_to_find_a_part_and_nothing_is_looked_for_early(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site)
    code = """
import sys
import atoll, atoll.job.file
from atoll.cli import main
try:
    sys.argv = ["atoll", "--help"]
    main()
except SystemExit:
    pass
assert "atoll.job.parts" not in sys.modules
said = atoll.job.file.load("digits")
atoll.job.file.to_table(said.job, said.data, 0)
assert "atoll.job.parts" not in sys.modules, "a job of Atoll's own parts looks for no others"
from atoll.job.catalogue import build, find, names
assert "wrapped" in names("stage")
assert "mypackage" not in sys.modules
build("rule", "median_of_means")
assert "mypackage" in sys.modules
"""
    done = python(site, tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_parts_are_written_by_the_name_of_their_entry_point(site: Path) -> None:
    install(site)
    said = parse(JOB, "theirs")
    again = parse(dumps(to_table(said.job, said.data, said.seed)), "again")
    assert again.job == said.job
    assert name_of(said.job.method) == "plain"
    assert table(said.job.channel.stages[0]) == {
        "use": "wrapped", "stage": {"use": "wrapped", "stage": {"use": "clip", "norm": 1.0, "rate": 0.2}},
    }  # fmt: skip
    assert table(said.job.method)["model"] == {"use": "small", "units": 3, "dtype": "float64"}
    made = build("method", {"use": "gentle", "model": "softmax", "ease": 4.0, "batch": "all"})
    assert made == FedAvg(softmax(), lr=0.025, batch=None)
    with pytest.raises(BadJob, match=r"method.eas: gentle has no such field; did you mean 'ease'\?"):
        build("method", {"use": "gentle", "model": "softmax", "eas": 4.0})
    with pytest.raises(BadJob, match=r"there is no stage 'wraped'; did you mean 'wrapped'\?"):
        build("stage", "wraped")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"stage.clip": "{0}:Wrapped"}, "mypackage 1.2 calls a stage 'clip', which is the name of a stage of Atoll"),
        ({"halve": "{0}:Wrapped"}, 'mypackage 1.2: the entry point "halve" of atoll.parts is not kind.name'),
        ({"stages.halve": "{0}:Wrapped"}, "kinds are method, model,"),
        ({"stage.a:b": "{0}:Wrapped"}, "is not kind.name"),
        ({"stage.halve": "{0}"}, 'the entry point "stage.halve" leads to "mypackage", not to module:Name'),
    ],
)
def test_an_entry_point_that_cannot_be_is_refused(site: Path, entries: Mapping[str, str], words: str) -> None:
    install(site, entries=entries)
    with pytest.raises(BadJob, match=re.escape(words)):
        build("stage", "wrapped")


def test_a_name_that_two_packages_have_is_refused_with_both(site: Path) -> None:
    install(site)
    install(site, "other", "3.0", {"stage.wrapped": "{0}:Wrapped", "rule.wrapped": "{0}:Wrapped"})
    with pytest.raises(
        BadJob, match=r"(mypackage 1\.2 and other 3\.0|other 3\.0 and mypackage 1\.2) both have a stage"
    ):
        build("stage", "wrapped")


def test_every_kind_can_have_parts_of_others(site: Path) -> None:
    install(site, entries={f"{kind}.theirs": "{0}:Wrapped" for kind in KINDS})
    assert all("theirs" in names(kind) for kind in KINDS)
    assert {kind for kind, _ in installed()} == set(KINDS)
    assert "theirs (from mypackage 1.2)" in [name for name, _, _ in entries("metric")]


# --- digests ----------------------------------------------------------------------------------------------------------


def test_a_digest_is_of_the_files_as_they_are(site: Path, tmp_path: Path) -> None:
    about = install(site)
    first = digest("mypackage")
    assert re.fullmatch(r"[0-9a-f]{64}", first)
    twin = tmp_path / "twin"
    install(twin)
    (twin / about.name / "INSTALLER").write_text("uv\n")
    (twin / "mypackage" / "__pycache__").mkdir()
    (twin / "mypackage" / "__pycache__" / "parts.cpython-311.pyc").write_bytes(b"compiled")
    sys.path[0] = str(twin)
    assert digest("mypackage") == first, "who installed it, and what Python compiled, changes nothing"
    sys.path[0] = str(site)
    for file in (site / "mypackage" / "parts.py", about / "entry_points.txt", about / "METADATA"):
        text = file.read_text()
        file.write_text(f"{text}\n")
        assert digest("mypackage") != first
        file.write_text(text)
    assert digest("mypackage") == first
    (site / "mypackage" / "parts.py").rename(site / "mypackage" / "other.py")
    with pytest.raises(BadJob, match=r"mypackage: cannot read mypackage/parts\.py \(No such file.*: install it again"):
        digest("mypackage")


def test_names_and_contents_do_not_run_into_each_other(site: Path) -> None:
    seen = set()
    for files in ({"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"a": "", "b": "c"}):
        shutil.rmtree(site)
        install(site, files={"__init__.py": "", **files})
        seen.add(digest("mypackage"))
    assert len(seen) == 4


@pytest.mark.parametrize("how", ["direct_url", "pth", "finder", "no record", "not installed"])
def test_what_may_change_under_a_digest_has_none(site: Path, how: str) -> None:
    editable = {"url": "file:///src", "dir_info": {"editable": True}}
    about = install(site, direct=editable if how == "direct_url" else None)
    more = {"pth": "_mypackage.pth", "finder": "__editable___mypackage_finder.py"}.get(how)
    if more:
        (site / more).write_text("")
        with (about / "RECORD").open("a") as file:
            file.write(f"{more},,\n")
    if how == "no record":
        (about / "RECORD").unlink()
    if how == "not installed":
        shutil.rmtree(about)
    words = {"no record": "has no list of its files", "not installed": "mypackage is not installed: pip install it"}
    with pytest.raises(BadJob, match=words.get(how, "mypackage is installed as editable, .*: install it with pip")):
        digest("mypackage")


@pytest.mark.parametrize("file", ["parts/__init__.py", "parts.abi3.so", "more/deep.py", "late.pyc"])
def test_a_module_that_is_not_listed_may_not_stand_in_for_one_that_is(site: Path, file: str) -> None:
    install(site)
    install(site, "neighbour", entries={}, files={"more/deep.py": ""})
    allowed, added = digest("mypackage"), site / "mypackage" / file
    added.parent.mkdir(exist_ok=True)
    added.write_text(MARK)  # parts/ would be imported, and parts.py not
    with pytest.raises(BadJob, match=rf"mypackage: .*{re.escape(file)} is not in the list of its files \(RECORD\)"):
        parse(STAGE, "the server's job", local=False, parts={"mypackage": allowed})
    assert "mypackage" not in sys.modules


def test_a_package_that_brings_compiled_modules_has_no_digest(site: Path) -> None:
    about = install(site)
    with (about / "RECORD").open("a") as file:
        file.write("mypackage/__pycache__/__init__.cpython-311.pyc,sha256=of-the-wheel,9\n")
    with pytest.raises(BadJob, match=r"mypackage brings mypackage/__pycache__/__init__\..*in place of its source"):
        digest("mypackage")


@pytest.mark.parametrize(
    ("file", "content"), [("direct_url.json", b"{"), ("direct_url.json", b"[]"), ("RECORD", b"\xff")]
)
def test_notes_of_an_installer_that_cannot_be_read_are_refused(site: Path, file: str, content: bytes) -> None:
    (install(site) / file).write_bytes(content)
    with pytest.raises(BadJob, match="mypackage: what its installer noted cannot be read: install it again"):
        digest("mypackage")


def test_a_job_names_the_packages_of_its_parts(site: Path) -> None:
    install(site)
    install(site, "other", "3.0", {"stage.unused": "{0}:Wrapped"})
    expected = {"mypackage": Package("mypackage", "1.2", digest("mypackage"))}
    assert third_party(parse(JOB, "theirs").job) == expected
    assert third_party(parse(STAGE, "one").job) == expected
    assert third_party(parse(SAME, "ours").job) == {}
    own = Job(FedAvg(softmax()), channel=Channel([Hold((Weigh(),))]))
    with pytest.raises(BadJob, match=f"stages.0: '{HERE}:Hold' .* install it as a package with an entry point"):
        third_party(own)


# --- a text of a peer -------------------------------------------------------------------------------------------------

MARK = "import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n"


def test_a_peers_text_imports_no_module_by_its_name(site: Path) -> None:
    (site / "trap.py").write_text(MARK)
    for use in ("trap:Halve", "os:getcwd", f"{HERE}:Hold"):
        for text in (
            STAGE.replace('use = "wrapped", stage = "weigh"', f'use = "{use}"'),
            STAGE.replace('"fedavg"', f'"{use}"'),
            STAGE.replace('"softmax"', f'"{use}"'),
            STAGE.replace("[{", f'["{use}", {{'),
        ):
            assert use in text
            with pytest.raises(
                BadJob, match=f"'{use}' is imported by a job file of one's own machine only: .*entry point"
            ):
                parse(text, "the server's job", local=False, parts={"trap": "0" * 64})
    assert "trap" not in sys.modules
    assert not (site / "imported").exists()


def test_a_peers_text_imports_a_package_only_if_it_is_allowed_as_it_is(site: Path) -> None:
    install(site, files={"__init__.py": MARK + "from mypackage.parts import Wrapped\n", "parts.py": PARTS})
    marked, found = site / "mypackage" / "imported", digest("mypackage")

    def asked(**parts: str) -> Job:
        return parse(STAGE, "the server's job", local=False, parts=parts).job

    with pytest.raises(BadJob, match=r"stages\.0: the stage 'wrapped' is from mypackage 1\.2, .*add it to parts"):
        parse(STAGE, "the server's job", local=False)
    with pytest.raises(BadJob, match="policy does not allow"):
        asked(other=found)
    with pytest.raises(BadJob, match=f"with the digest {found}, and the policy allows {'0' * 64}: install"):
        asked(mypackage="0" * 64)
    (site / "mypackage" / "parts.py").write_text(PARTS + "\n# changed\n")
    with pytest.raises(BadJob, match="which is installed here with the digest"):
        asked(mypackage=found)
    (site / "mypackage" / "parts.py").write_text(PARTS)
    assert not marked.exists()
    assert "mypackage" not in sys.modules
    assert asked(**{"My.Package".replace(".", ""): found}).channel.stages[0].stage == Weigh()  # type: ignore[attr-defined]
    assert marked.exists()


@pytest.mark.parametrize("how", ["unchecked", "of the source's time", "torn"])
def test_a_compiled_module_that_is_not_its_source_s_is_not_run(site: Path, how: str) -> None:
    install(site)
    source, allowed = site / "mypackage" / "parts.py", {"mypackage": digest("mypackage")}
    planted = source.with_name("planted.py")
    planted.write_text(PARTS + MARK)
    os.utime(planted, (1_700_000_000, 1_700_000_000))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH if how == "unchecked" else None
    cache = Path(py_compile.compile(str(planted), cache_from_source(source), invalidation_mode=mode, doraise=True))
    planted.unlink()
    os.utime(source, (1_700_000_000, 1_700_000_000))
    whole = cache.read_bytes()
    sized = whole[:12] + source.stat().st_size.to_bytes(4, "little") + whole[16:]
    cache.write_bytes({"unchecked": whole, "torn": whole[:50]}.get(how, sized))
    with pytest.raises(BadJob, match=r"mypackage: .*\.pyc is not what mypackage/parts\.py compiles to, .*: delete it"):
        parse(STAGE, "the server's job", local=False, parts=allowed)
    assert "mypackage" not in sys.modules
    py_compile.compile(str(source), doraise=True)  # as Python and pip do
    parse(STAGE, "the server's job", local=False, parts=allowed)
    assert not (source.parent / "imported").exists()


def test_a_folder_that_hides_an_allowed_package_is_not_imported(site: Path, tmp_path: Path) -> None:
    install(site)
    before = tmp_path / "before"
    (before / "mypackage").mkdir(parents=True)
    (before / "mypackage" / "__init__.py").write_text(MARK)
    sys.path.insert(0, str(before))
    with pytest.raises(BadJob, match="mypackage is not one of its own files, so its digest says nothing"):
        parse(STAGE, "the server's job", local=False, parts={"mypackage": digest("mypackage")})
    assert not (before / "mypackage" / "imported").exists()
    assert "mypackage" not in sys.modules


def test_an_entry_point_that_leads_out_of_its_package_is_not_imported(site: Path) -> None:
    install(site, entries={"stage.wrapped": "json.tool:main", "stage.deep": "{0}.nothing:Wrapped"})
    for name in ("wrapped", "deep"):
        with pytest.raises(BadJob, match="is not one of its own files"):
            parse(STAGE.replace("wrapped", name), "it", local=False, parts={"mypackage": digest("mypackage")})
    assert "json.tool" not in sys.modules


def test_a_party_assesses_and_trains_what_its_policy_allows(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    site = tmp_path / "site"
    install(site)
    code = """
import sys
from atoll.job.file import dumps, parse, to_table
from atoll.job.parts import digest
from atoll.runtimes.network.party.assess import assess, worker_of
from atoll.runtimes.network.party.policy import Policy
from atoll.runtimes.network.party.session import Session

text = sys.argv[1]
for allowed in ({}, {"mypackage": digest("mypackage")}):
    session = Session(Policy(data={"use": "digits", "clients": 3, "party": 1}, parts=allowed), text, 1, 3, 10)
    try:
        print(assess(session, "", "").manifest.method, sorted(worker_of(session).handlers))
    except ValueError as error:
        print(type(error).__name__, error, "mypackage" in sys.modules)
"""
    done = python(site, tmp_path, code, STAGE.replace('"fedavg"', '"plain"'))
    assert done.returncode == 0, done.stderr
    no, yes = done.stdout.splitlines()
    assert re.match(r"BadJob the server's job: method: the method 'plain' is from mypackage 1\.2, .* False$", no)
    assert yes.startswith("plain ['train/contribute']")


def test_a_part_of_ones_own_module_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PARTS)
    (tmp_path / "job.toml").write_text(STAGE.replace('"wrapped"', '"mine:Wrapped"'))
    (tmp_path / "roster").write_text("")
    words = refused(tmp_path / "none", tmp_path, "serve", "job.toml", "--roster", "roster", "--insecure")
    assert "stages.0: 'mine:Wrapped' is imported by a job file of one's own machine only" in words
    assert words.endswith("install it as a package with an entry point of atoll.parts, and use its name there")


def test_a_program_of_ones_own_module_is_not_served(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from atoll.programs.vertical import JointMoments\n\nclass Mine(JointMoments): ...\n"
    )
    (tmp_path / "job.toml").write_text('program = "mine:Mine"\n[roles]\nA = "ada"\nB = "ben"\nC = "cleo"\n')
    (tmp_path / "roster").write_text("")
    words = refused(tmp_path / "none", tmp_path, "serve", "job.toml", "--roster", "roster", "--insecure")
    assert "program: 'mine:Mine' is imported by a job file of one's own machine only" in words


def test_what_no_party_could_have_is_not_served_from_python_either(tmp_path: Path) -> None:
    from atoll.runtimes.network.server.serve import serve
    from atoll.runtimes.network.server.serve_roles import serve_roles
    from atoll.runtimes.network.trust.tls import Insecure

    where = {"address": "127.0.0.1:0", "credentials": Insecure("server"), "roster": dict, "folder": tmp_path / "run"}
    own = Job(FedAvg(softmax()), channel=Channel([Hold((Weigh(),))]))
    with pytest.raises(BadJob, match=f"stages.0: '{HERE}:Hold' .* install it as a package with an entry point"):
        serve(own, atoll.data.load("digits").split(3, seed=0), **where)  # type: ignore[arg-type]
    roles = atoll.RoleJob(OwnMoments(), {"A": "ada", "B": "ben", "C": "cleo"})
    with pytest.raises(BadJob, match=f"program: '{HERE}:OwnMoments' .* install it as a package"):
        serve_roles(roles, **where)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("release", ["0.1", "today"])
def test_reports_and_status_import_nothing_that_a_job_names(tmp_path: Path, release: str) -> None:
    shutil.copytree(Path(__file__).parents[1] / "golden" / "release_0_1" / "run", tmp_path / "run")
    (tmp_path / "trap.py").write_text(MARK)
    for file in ("job.toml", "facts.jsonl"):
        text = (tmp_path / "run" / file).read_text()
        (tmp_path / "run" / file).write_text(
            text.replace('"fedavg"', '"trap:FedAvg"').replace("\nevery", "\neval_every")
        )
        assert "trap:FedAvg" in (tmp_path / "run" / file).read_text()
    if release == "today":
        (tmp_path / "run" / "format").write_text("2\n")
        facts = tmp_path / "run" / "facts.jsonl"
        facts.write_text("".join(f"{seal(json.loads(line))}\n" for line in facts.read_text().splitlines()))
    for command in ("report", "status"):
        assert cli(tmp_path, tmp_path, command, "run")
    assert not (tmp_path / "imported").exists()
    refused(tmp_path, tmp_path, "explain", "run/job.toml")
    assert (tmp_path / "imported").exists(), "this trap is one"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('parts = "all"', "parts='all': a table of packages and digests; `atoll parts` prints it"),
        ("parts = { mypackage = 3 }", "parts.mypackage=3: a digest is 64 digits"),
        (f'parts = {{ mypackage = "{"A" * 64}" }}', "a digest is 64 digits of 0-9 and a-f"),
        (f'parts = {{ mypackage = "{"a" * 63}" }}', "a digest is 64 digits"),
        (f'parts = {{ "two\\nlines" = "{"a" * 64}" }}', "is no name of a package"),
        (f'parts = {{ "" = "{"a" * 64}" }}', "is no name of a package"),
    ],
)
def test_a_policy_says_packages_and_digests(text: str, words: str) -> None:
    with pytest.raises(BadPolicy, match=re.escape(words)):
        Policy.parse(text)
    assert Policy.parse(f'parts = {{ "my-package" = "{"0a" * 32}" }}').parts == {"my-package": "0a" * 32}


# --- one's own modules ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_module_beside_the_job_is_found_on_ray(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PARTS)
    (tmp_path / "job.toml").write_text(STAGE.replace('"wrapped"', '"mine:Wrapped"'))
    here = tmp_path / folder_of(cli(tmp_path / "none", tmp_path, "run", "job.toml", "--workers", "0"))
    there = tmp_path / folder_of(cli(tmp_path / "none", tmp_path, "run", "job.toml", "--on", "ray", "--workers", "2"))
    assert (here / "model.safetensors").read_bytes() == (there / "model.safetensors").read_bytes()


def test_a_module_beside_the_job_is_found_by_the_command_its_workers_and_its_resuming(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(PARTS)
    (tmp_path / "job.toml").write_text(STAGE.replace('"wrapped"', '"mine:Wrapped"'))
    script = tmp_path / "elsewhere" / "atoll.py"  # as `atoll` is started: the current folder is not on its path
    script.parent.mkdir()
    script.write_text("import sys\nsys.path.pop(0)\nfrom atoll.cli import main\nmain()\n")
    for args in (("explain", "job.toml"), ("run", "job.toml", "--workers", "2")):
        done = spawn.run(
            [sys.executable, str(script), *args], cwd=tmp_path, env=environment(tmp_path / "none"),
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    folder = tmp_path / folder_of(done.stdout)
    stages = '[{ use = "train_loss", bound = 10.0 }, { use = "mine:Wrapped", stage = { use = "weigh" } }]'
    assert f"stages = {stages}" in (folder / "job.toml").read_text()
    assert "ended: all 2 rounds done" in cli(tmp_path / "none", tmp_path, "run", "--resume", str(folder))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            "nothing_here:Halve",
            "stage: cannot import nothing_here (ModuleNotFoundError: No module named 'nothing_here')",
        ),
        (f"{HERE}:Hodl", f"stage: {HERE} has no 'Hodl'; did you mean 'Hold'?"),
        (f"{HERE}:Loose", f"stage: {HERE}:Loose is no part: write it as a class with @dataclass(frozen=True)"),
        (f"{HERE}:Bare", "is no part"),
        (f"{HERE}:STAGE", "is no part"),
        (f"{HERE}:Hold", f"stage: {HERE}:Hold needs 'stages'"),
        (f"{HERE}:Unreadable", "Unreadable: its type hints are read at run time, and name 'Elsewhere' is not defined"),
    ],
)
def test_a_module_without_such_a_part_is_refused(use: str, words: str) -> None:
    with pytest.raises(BadJob, match=re.escape(words)):
        build("stage", {"use": use})


# --- nested parts, by type hint ---------------------------------------------------------------------------------------


class Bare:
    """Not a record."""


@dataclass
class Loose:
    """Not frozen."""


@dataclass(frozen=True)
class Unreadable:
    part: Elsewhere = None  # type: ignore[name-defined] # noqa: F821 - that is the point


@dataclass(frozen=True)
class Inner:
    """A record that no catalogue knows."""

    rule: Rule = Mean()
    size: int = 1


@dataclass(frozen=True)
class OwnMoments(atoll.JointMoments):
    """A program of these tests' own."""


@dataclass(frozen=True)
class Hold(Stage):
    """Parts in every form that a hint can ask for; no field is called as its kind is."""

    stages: Sequence[Stage]
    many: tuple[Rule, ...] = ()
    pair: tuple[Select, Combine] = (All(), Sum())
    listed: list[Stage | Rule] = field(default_factory=list, hash=False)
    named: Mapping[str, Stage] = field(default_factory=dict, hash=False)
    speed: float | Schedule = 0.1
    net: Model | None = None
    trainer: Method | None = None
    either: Stage | Rule | int = 0
    first: Optimiser | None = None
    last: ServerOptimiser = ServerOptimiser()
    hidden: ExampleDP | None = None
    exact: Clip = Clip(2.0)
    record: Inner = Inner()
    most: int | None = 3
    least: int | None = None
    words: str = "mean"
    derived: int = field(default=7, init=False)

    def __call__(self, wire: Wire) -> tuple[Wire, Codec]:
        return wire, Codec(as_is, as_was)


RULES = st.one_of(st.just(Mean()), st.just(Median()), st.builds(TrimmedMean, st.integers(0, 9)))
LENGTHS = st.floats(1e-3, 1e3)
PLAIN = st.one_of(st.just(Weigh()), st.just(Average()), st.builds(Clip, LENGTHS))
SELECTS = st.recursive(
    st.one_of(st.just(All()), st.builds(Count, st.integers(1, 9)), st.builds(Uniform, st.floats(0, 1))),
    lambda inner: st.builds(Oversample, inner, st.floats(1, 3)),
    max_leaves=3,
)
SCHEDULES = st.one_of(st.builds(Exponential, LENGTHS, LENGTHS), st.builds(Cosine, LENGTHS, st.integers(1, 99)))
OPTIMISERS = st.builds(optimiser, st.just("sgd"), momentum=st.floats(0, 1))
METHODS = st.builds(
    FedAvg, st.sampled_from([softmax(), mlp((3,)), mlp((2, 2), dtype="float64")]), st.integers(1, 3),
    st.none() | st.integers(1, 9), LENGTHS | SCHEDULES, OPTIMISERS, st.builds(ServerOptimiser, OPTIMISERS, LENGTHS),
)  # fmt: skip
HOLDS = st.recursive(
    PLAIN,
    lambda stages: st.builds(
        Hold, st.lists(stages, max_size=2).map(tuple), st.lists(RULES, max_size=2).map(tuple),
        st.tuples(SELECTS, st.builds(Each, RULES) | st.just(Sum())), st.lists(stages | RULES, max_size=2),
        st.dictionaries(st.text(min_size=1, max_size=3).filter(lambda key: key != "use"), stages, max_size=2),
        LENGTHS | SCHEDULES, st.none() | st.just(softmax()), st.none() | METHODS, stages | RULES | st.integers(0, 9),
        st.none() | OPTIMISERS, st.builds(ServerOptimiser, OPTIMISERS, LENGTHS),
        st.none() | st.builds(ExampleDP, LENGTHS, LENGTHS), st.builds(Clip, LENGTHS),
        st.builds(Inner, RULES, st.integers(0, 3)), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9),
        st.sampled_from(["mean", "clip", "all", "x:y"]),
    ),
    max_leaves=3,
)  # fmt: skip


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first method imports what it trains with
@given(METHODS, SELECTS, st.lists(HOLDS, max_size=2), RULES, st.integers(0, 2**31))
def test_a_job_of_nested_parts_survives_the_way_through_a_file(
    method: FedAvg, select: Select, stages: list[Any], rule: Rule, seed: int
) -> None:
    job = Job(method, select, Channel(stages, Each(rule)), rounds=3)
    said = parse(dumps(to_table(job, {"use": "digits"}, seed)), "it")
    assert said.job == job
    assert said.seed == seed
    assert dumps(to_table(said.job, said.data, seed)) == dumps(to_table(job, {"use": "digits"}, seed))


def hold(**fields: Any) -> Any:
    return build("stage", {"use": f"{HERE}:Hold", "stages": [], **fields})


def test_a_hint_says_what_a_table_is_and_a_name_does_not() -> None:
    made = hold(
        stages=["weigh", {"use": "clip", "norm": 1}], many=["median"], pair=["all", "sum"], speed={"use": "cosine"},
        either={"use": "trimmed_mean", "f": 2}, listed=["median", "average"], named={"a": "weigh"}, net="softmax",
        trainer={"use": "fedsgd", "model": "softmax"}, first="adam", last={"use": "sgd", "lr": 0.5},
        hidden="example_dp", exact={"norm": 3.0}, record={"rule": "median"}, most="all", least=2, words="median",
    )  # fmt: skip
    assert made == Hold(
        (Weigh(), Clip(1.0)), (Median(),), (All(), Sum()), [Median(), Average()], {"a": Weigh()}, Cosine(), softmax(),
        FedSGD(softmax()), TrimmedMean(2), optimiser("adam"), ServerOptimiser(lr=0.5), ExampleDP(), Clip(3.0),
        Inner(Median()), None, 2, "median",
    )  # fmt: skip
    assert hold(either=4).either == 4
    assert hold(exact={"use": "clip", "norm": 3.0}).exact == Clip(3.0)
    assert table(hold())["record"]["use"] == f"{HERE}:Inner"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stages": "weigh"}, "stage.stages = 'weigh': a list of tables is needed"),
        ({"stages": ["weigh", "weight"]}, "stage.stages.1: there is no stage 'weight'; did you mean 'weigh'?"),
        ({"stages": [3]}, "stage.stages.0: say which part to use"),
        ({"pair": ["all"]}, "stage.pair: 1 parts are given, and 2 are needed"),
        ({"speed": "cosine"}, "stage.speed = 'cosine': write a number, such as 0.5"),
        ({"speed": {"use": "cosin"}}, "did you mean 'cosine'?"),
        ({"exact": {"use": "weigh"}}, "stage.exact: weigh is given, and clip is needed"),
        ({"exact": 3}, "stage.exact = 3: a table with the fields of Clip is needed"),
        ({"record": {"rule": "medium"}}, "stage.record.rule: there is no rule 'medium'; did you mean 'median'?"),
        ({"record": {"use": "os:getcwd"}}, f"stage.record: os:getcwd is given, and {HERE}:Inner is needed"),
        ({"least": "all"}, "stage.least = 'all': write a whole number, such as 5"),
        ({"derived": 3}, "stage.derived: "),
        ({"first": "adamm"}, "did you mean 'adam'?"),
    ],
)
def test_what_a_hint_does_not_allow_is_refused_with_its_key(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadJob, match=re.escape(words)):
        hold(**fields)


# --- names of release 0.1 ---------------------------------------------------------------------------------------------

BASE = 'data = "digits"\nmethod = { use = "fedavg", model = "softmax" }\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BASE + 'select = { use = "over", select = "all" }', "select: 'over' is called 'oversample' now"),
        (BASE + 'stages = ["tree"]', "stages.0: 'tree' is called 'tree_noise' now"),
        (BASE + 'stop = "still"', "stop.0: 'still' is called 'converged' now"),
        (BASE.replace('"softmax"', '"softmax", private = 1'), "method.private: 'private' is called 'example_dp' now"),
        (BASE + 'stages = [{ use = "weigh", most = 3.0 }]', "stages.0.most: 'most' is called 'max_weight' now"),
        (BASE + 'combine = { use = "secure_sum", least = 3 }', "combine.least: 'least' is called 'min_parties' now"),
        (BASE + "every = 3", "'every' is called 'eval_every' now"),
    ],
)  # fmt: skip
def test_an_old_name_is_refused_with_the_new_one(text: str, words: str) -> None:
    with pytest.raises(BadJob, match=re.escape(words)) as raised:
        from_table(tomllib.loads(text))
    assert str(raised.value).endswith("now; `atoll migrate FILE` rewrites a file")
