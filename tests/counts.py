"""Counts of what must not grow in src/atoll: `python tests/counts.py`. It exits with 1 if one is above its limit.

`--report` only prints, `-v` also names the places.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "atoll"
LONG = 40  # code lines of a function

# Probing of things that are no parts: where, of what, and why nothing else will do.
PROBES = {
    ("cli/app.py", "format_message"): "typer's errors: some versions of it carry a copy of click",
    ("cli/__init__.py", "exit_code"): "typer's errors, as above",
    ("cli/logs.py", "event"): "fields that logging adds to a record",
    ("cli/logs.py", "facts"): "fields that logging adds to a record",
    ("cli/logs.py", "ndim"): "numbers of NumPy's among facts; help is instant without NumPy",
    ("runtimes/network/transport.py", "*"): "functions that only glibc has",
    ("runtimes/local/process.py", "mallopt"): "functions that only glibc has",
    ("*", "sched_getaffinity"): "functions that only Linux has",
    ("data/federated.py", "MADV_RANDOM"): "constants that only some systems have",
    ("runtimes/local/shared.py", "memfd_create"): "functions that only Linux has",
    ("runtimes/local/pool.py", "_backends"): "a private field of JAX's that later versions may not have",
    ("runtimes/network/messages/trees.py", "__array__"): "arrays of whatever library",
    ("core/question.py", "__array__"): "arrays of whatever library",
    ("runtimes/local/arena.py", "memfd_create"): "functions that only Linux has",
    ("runtimes/local/arena.py", "posix_fallocate"): "functions that only some systems have",
    ("core/given.py", "__value__"): "aliases made by Python's `type` statement, which Python 3.11 has no class for",
    ("core/given.py", "*"): "what a user gives is held against a protocol once, to refuse it in a sentence",
    ("job/catalogue.py", "__qualname__"): "functions of a user's own",
    ("job/catalogue.py", "*"): "names of a module of a user's own, which may not be imported to find them",
    ("job/parts.py", "*"): "names of a module of a user's own",
    ("runtimes/local/process.py", "*"): "what a started process would find of the script that started it",
    ("testing.py", "*"): "whether a class is a frozen dataclass",
    ("models/optimiser.py", "*"): "functions of Optax's",
    ("models/adapters.py", "running_mean"): "layers of PyTorch's",
}
# Sentences that are read because nothing else says it.
SENTENCES = {
    ("cli/overhear.py", "Handshake failed"): "gRPC tells of connections that it turned away in its log only",
    ("cli/overhear.py", "certificate has expired"): "as above",
    ("cli/overhear.py", "not yet valid"): "as above",
    ("report/page.py", "in process"): "the name of a fact, as journals have it",
}


class Place(NamedTuple):
    """One thing that counts: the file below src/atoll, its line, what is there."""

    file: str
    line: int
    what: str


class Module(NamedTuple):
    """A file of src/atoll."""

    file: str
    text: str
    tree: ast.Module


def modules() -> list[Module]:
    found = ((str(p.relative_to(SOURCE)), p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py")))
    return [Module(file, text, ast.parse(text)) for file, text in found]


def probing(all_: list[Module]) -> Iterator[Place]:
    """Questions whether a thing has a member: hasattr, getattr with a default, dir, vars, AttributeError caught."""
    for module in all_:
        for node in ast.walk(module.tree):
            name = _probed(node)
            if name is not None and not {(module.file, name), ("*", name)} & PROBES.keys():
                yield Place(module.file, node.lineno, ast.unparse(node).partition("\n")[0])


def _probed(node: ast.AST) -> str | None:
    """Return the member that is asked for, "*" if that is not written there; None: this asks for none."""
    match node:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, member]):
            return _name(member)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, member, _]):
            return _name(member)
        case ast.Call(func=ast.Name(id="dir" | "vars") | ast.Attribute(attr="getattr_static")):
            return "*"
        case ast.Attribute(attr="__dict__"):
            return "*"
        case ast.ExceptHandler(type=ast.expr() as kind) if "AttributeError" in ast.unparse(kind):
            return "*"
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=kinds):
            return "*" if any("AttributeError" in ast.unparse(kind) for kind in kinds) else None
    return None


def _name(member: ast.expr) -> str:
    return str(member.value) if isinstance(member, ast.Constant) else "*"


def anything(all_: list[Module]) -> Iterator[Place]:
    """Lines that say Any, but for the types of arrays."""
    for module in all_:
        arrays = {
            id(inner)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("np.ndarray", "NDArray", "np.dtype")
            for inner in ast.walk(node)
        }
        lines = {
            node.lineno
            for node in ast.walk(module.tree)
            if ast.unparse(node) in ("Any", "typing.Any") and isinstance(node, ast.expr) and id(node) not in arrays
        }
        text = module.text.splitlines()
        yield from (Place(module.file, line, text[line - 1].strip()) for line in sorted(lines))


def code_lines(module: Module) -> set[int]:
    """Return the numbers of lines with code: not blank, no comment, no docstring."""
    silent = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in silent:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                found -= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def long_functions(all_: list[Module]) -> Iterator[Place]:
    """Functions of more code lines than LONG, with their signatures."""
    for module in all_:
        code = code_lines(module)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = len(code & set(range(node.lineno, (node.end_lineno or node.lineno) + 1)))
                if size > LONG:
                    yield Place(module.file, node.lineno, f"{node.name}: {size} lines")


def types(module: Module) -> Iterator[tuple[str, int]]:
    """Public classes and aliases of types that a module defines."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node.lineno
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        variable = isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")
        for target in targets:
            if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z][a-z]\w*", target.id) and not variable:
                yield target.id, node.lineno


def collisions(all_: list[Module]) -> Iterator[Place]:
    """Names of public types that more than one module defines: each place but the first."""
    found: dict[str, list[Place]] = defaultdict(list)
    for module in all_:
        for name, line in types(module):
            found[name].append(Place(module.file, line, name))
    for name in sorted(found):
        files = {place.file for place in found[name]}
        if len(files) > 1:
            first, *others = found[name]
            yield from (place._replace(what=f"{name}, also in {first.file}") for place in others)


def sentences(all_: list[Module]) -> Iterator[Place]:
    """Texts of two words or more that code looks for: with `in`, ==, startswith, replace and such, or by a pattern."""
    known = {module.file: _constants(module.tree) for module in all_}
    for module in all_:
        texts = _imported(module.tree, known) | known[module.file]
        for node in ast.walk(module.tree):
            for text in _looked_for(node, texts):
                if _wordy(text) and (module.file, text) not in SENTENCES:
                    yield Place(module.file, node.lineno, repr(text))


def _constants(tree: ast.Module) -> dict[str, list[str]]:
    """Return the texts that names stand for: constants of the module, and what goes through them one by one."""
    found: dict[str, list[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = list(_texts(node.value, found))
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.comprehension):
            target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
            many = next((n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name) and n.id in found), "")
            if isinstance(target, ast.Name) and found.get(many):
                found.setdefault(target.id, []).extend(found[many])
    return found


def _imported(tree: ast.Module, known: dict[str, dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return the texts that imported names stand for."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("atoll."):
            path = (node.module or "").removeprefix("atoll.").replace(".", "/")
            there = known.get(f"{path}.py", {}) | known.get(f"{path}/__init__.py", {})
            found |= {alias.asname or alias.name: there[alias.name] for alias in node.names if alias.name in there}
    return found


def _looked_for(node: ast.AST, texts: dict[str, list[str]]) -> Iterator[str]:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        # A word in a list of words is no sentence that is searched.
        listed = isinstance(node.comparators[0], ast.Tuple | ast.List | ast.Set | ast.Dict)
        yield from () if listed else _texts(node.left, texts)
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        yield from (text for side in (node.left, *node.comparators) for text in _texts(side, texts))
    if isinstance(node, ast.MatchValue):
        yield from _texts(node.value, texts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        method, on_re = node.func.attr, ast.unparse(node.func.value) == "re"
        parts = ("startswith", "endswith", "removeprefix", "removesuffix", "find", "index", "partition", "rpartition")
        patterns = ("search", "match", "fullmatch", "compile", "findall", "finditer", "sub", "split")
        if method in (*parts, "replace", "count") or (on_re and method in patterns):
            yield from _texts(node.args[0], texts)


def _texts(node: ast.expr, texts: dict[str, list[str]]) -> Iterator[str]:
    match node:
        case ast.Constant(value=str()):
            yield node.value
        case ast.Name():
            yield from texts.get(node.id, ())
        case ast.Tuple() | ast.List():
            for part in node.elts:
                yield from _texts(part, texts)
        case ast.Dict():
            for key in node.keys:
                yield from _texts(key, texts) if key else ()


def _wordy(text: str) -> bool:
    """Whether a text or pattern holds two English words side by side, or a word and a colon as sentences have them."""
    plain = re.sub(r"\\.|\[[^\]]*\]", "_", text)
    return bool(re.search(r"[A-Za-z]{2,}[,:;]? [A-Za-z(]", plain))


def core(all_: list[Module]) -> Iterator[Place]:
    """Code lines of the core."""
    for module in all_:
        if module.file.startswith("core/"):
            yield from (Place(module.file, line, "") for line in sorted(code_lines(module)))


class Count(NamedTuple):
    """A count, and the most that it may be."""

    words: str
    limit: int
    places: Callable[[list[Module]], Iterator[Place]]


COUNTS = (
    Count("probing of parts (hasattr, getattr with a default)", 0, probing),
    Count("lines with Any, outside array code", 212, anything),
    Count(f"functions of more than {LONG} code lines", 10, long_functions),
    Count("public type names that collide", 0, collisions),
    Count("English sentences that code looks for", 0, sentences),
    Count("code lines of core/", 1199, core),
)


def main(options: list[str]) -> int:
    """Print all counts; return 1 if one is above its limit and it matters."""
    all_, above = modules(), 0
    for count in COUNTS:
        places = list(count.places(all_))
        mark = "" if len(places) <= count.limit else "  too many"
        above += bool(mark)
        sys.stdout.write(f"{len(places):5,} (limit {count.limit:,}) {count.words}{mark}\n")
        if "-v" in options and count.places is not core:
            sys.stdout.writelines(f"      src/atoll/{p.file}:{p.line} {p.what}\n" for p in places)
    return int(bool(above) and "--report" not in options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
