"""Plant faults in a copy of the project, one at a time, and see whether the tests that are mapped to the file notice.

    python tools/seed_faults.py                       200 faults, chosen by seed 1; an interrupted run goes on where it stopped
    python tools/seed_faults.py --faults 40 --seed 7 --only 'gpulab/timing/*'
    python tools/seed_faults.py --report              what the last run of this seed found, the missed ones with their change

Kinds: a wrong constant, a comparison or a sign turned, swapped arguments or axes, a dead callback, a missing synchronise, an empty result,
a dropped statement, turned logic; in notebooks also an emptied cell. The copy's tests run by this very Python, with the copy first on the
path; first the unchanged copy must pass. A fault that changes nothing that could be seen counts as missed until somebody says why.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import fnmatch
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".gpulab"
_LEFT_OUT = (".git", ".venv", ".gpulab", "my-notebooks", "__pycache__", ".*_cache", ".hypothesis", "node_modules")
_WAITS = re.compile(r"synchroni[sz]e|block_until_ready|^wait$|wait_|barrier|^join$", re.IGNORECASE)
_LISTENS = re.compile(r"^(observe|on_click|on_msg|on_change|on_submit|link|dlink|jslink|connect|add_done_callback)$")
_EMPTY = {ast.Tuple: "()", ast.List: "[]", ast.Dict: "{}", ast.JoinedStr: "''", ast.ListComp: "[]", ast.DictComp: "{}"}
# Swapped arguments would change nothing, or only what is refused at once.
_SYMMETRIC = ("isinstance", "issubclass", "max", "min", "print", "zip")
_TURNS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div))
_TURNED = {one: other for pair in _TURNS for one, other in (pair, pair[::-1])}


class Fault(NamedTuple):
    """One change: its kind, the file, the line, what was there and is now, and the file's whole new text."""

    kind: str
    path: str
    line: int
    what: str
    text: str


Change = tuple[str, ast.AST, str]  # kind, the node, and what takes its place


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else ""


def _with(node: Any, edit: Callable[[Any], None]) -> str:
    changed = copy.deepcopy(node)
    edit(changed)
    text = ast.unparse(changed)
    return f"({text})" if isinstance(changed, (ast.BinOp, ast.Compare, ast.BoolOp)) else text


def _constants(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in (float("inf"), 0.0):
        yield "wrong constant", node, f"({node.value + 1})" if isinstance(node.value, int) else f"({node.value * 1.1!r})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "wrong constant", node, str(not node.value)


def _operators(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _TURNED:
        yield "comparison turned", node, _with(node, lambda n: n.ops.__setitem__(0, _TURNED[type(n.ops[0])]()))
    if isinstance(node, ast.BinOp) and type(node.op) in _TURNED and not any(_is_text_or_list(inside) for inside in ast.walk(node)):
        yield "sign turned", node, _with(node, lambda n: setattr(n, "op", _TURNED[type(n.op)]()))
    if isinstance(node, ast.BoolOp):
        yield "logic turned", node, _with(node, lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And()))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "logic turned", node, f"({ast.unparse(node.operand)})"


def _is_text_or_list(node: ast.AST) -> bool:
    return isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple)) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _calls(node: ast.AST) -> Iterator[Change]:
    if not isinstance(node, ast.Call):
        return
    plain = len(node.args) >= 2 and not any(isinstance(one, ast.Starred) for one in node.args)
    if plain and _name(node) not in _SYMMETRIC and ast.dump(node.args[0]) != ast.dump(node.args[1]):
        yield "swapped arguments", node, _with(node, lambda n: n.args.__setitem__(slice(0, 2), [n.args[1], n.args[0]]))
    for k, keyword in enumerate(node.keywords):
        if keyword.arg in ("axis", "dim") and isinstance(keyword.value, (ast.Constant, ast.UnaryOp)):
            other = 1 if ast.unparse(keyword.value) == "0" else 0
            yield "swapped axis", node, _with(node, lambda n, k=k, other=other: setattr(n.keywords[k], "value", ast.Constant(other)))


def _statements(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = _name(node.value)
        kind = "missing synchronise" if _WAITS.search(name) else "dead callback" if _LISTENS.match(name) else "dropped statement"
        yield kind, node, "pass"
    elif isinstance(node, (ast.AugAssign, ast.Raise)) or _is_stored_elsewhere(node):
        yield "dropped statement", node, "pass"
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "empty result", node, f"return {_EMPTY.get(type(node.value), 'None')}"


def _is_stored_elsewhere(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript))


def _splice(text: str, node: Any, new: str) -> str:
    lines = text.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    raw = text.encode()
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    return (raw[:begin] + new.encode() + raw[end:]).decode()


def _of_no_use(tree: ast.AST) -> set[int]:
    """What changes nothing that runs: annotations, type checks, dunder lists, and the inside of f-strings, whose places are not told."""
    left: set[int] = set()
    for node in ast.walk(tree):
        part: ast.AST | None = None
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            part = node.annotation
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            part = node.returns
        elif isinstance(node, ast.JoinedStr) or _never_runs(node):
            part = node
        if part is not None:
            left |= {id(inside) for inside in ast.walk(part)}
    return left


def _never_runs(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return re.search("TYPE_CHECKING|__main__", ast.dump(node.test)) is not None
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.startswith("__")


def faults_of(path: str, text: str) -> Iterator[Fault]:
    """Return every fault that can be planted in a file of Python."""
    tree = ast.parse(text)
    skipped, whole = _of_no_use(tree), ast.dump(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for find in (_constants, _operators, _calls, _statements):
            for kind, where, new in find(node):
                changed = _splice(text, where, new)
                try:
                    same = ast.dump(ast.parse(changed)) == whole
                except SyntaxError:
                    continue
                if not same:
                    yield Fault(kind, path, where.lineno, f"{ast.unparse(where)[:60]} -> {new[:60]}", changed)  # type: ignore[attr-defined]


def faults_of_notebook(path: str, text: str) -> Iterator[Fault]:
    """Return every fault of a notebook's code cells, and each cell emptied."""
    notebook = json.loads(text)
    for k, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.lstrip().startswith("%"):
            continue
        try:
            found = [*faults_of(path, source), Fault("empty cell", path, 1, f"{source.splitlines()[0][:60]} ...", "")]
        except SyntaxError:  # a magic
            continue
        for fault in found:
            changed = copy.deepcopy(notebook)
            changed["cells"][k]["source"] = fault.text.splitlines(keepends=True)
            yield fault._replace(what=f"cell {cell['id']}: {fault.what}", text=json.dumps(changed, indent=1, ensure_ascii=False) + "\n")


def mapped(path: str, root: Path) -> list[str]:
    """Return what pytest is given for a file: its doctests, the tests of its name, then those of its folder; the nearest first."""
    parts = Path(path).with_suffix("").parts
    if parts[0] == "notebooks":
        lessons = sorted(str(p.relative_to(root)) for p in (root / "tests" / "notebooks").glob("test_*.py"))
        return [*lessons, path, "-k", f"{parts[-1][:2]} or form"]
    stem = (parts[-2] if parts[-1] == "__init__" else parts[-1]).strip("_")
    folder, tests = parts[1] if len(parts) > 2 else "", root / "tests"
    named = {p for p in tests.glob(f"**/test_*{stem}*.py") if "browser" not in p.parts}
    if re.match(r"nb\d\d", stem):
        named = {tests / "notebooks" / "test_solutions.py"}
    found = sorted(str(p.relative_to(root)) for p in named)
    if folder and (tests / folder).is_dir():
        found += [str(p.relative_to(root)) for p in sorted((tests / folder).glob("test_*.py")) if p not in named]
    return [path, *found]


def candidates(only: str) -> dict[str, dict[str, list[Fault]]]:
    """Return the faults of each kind by file."""
    found: dict[str, dict[str, list[Fault]]] = {}
    listed = subprocess.run(("git", "ls-files", "gpulab", "notebooks"), cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    for path in listed.splitlines():
        if not fnmatch.fnmatch(path, only) or Path(path).suffix not in (".py", ".ipynb"):
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        for fault in (faults_of if path.endswith(".py") else faults_of_notebook)(path, text):
            found.setdefault(fault.kind, {}).setdefault(path, []).append(fault)
    return found


def choose(found: dict[str, dict[str, list[Fault]]], count: int, seed: int) -> list[Fault]:
    """Return faults: a kind at random, then a file that has it, then the place, so that rare kinds and small files get their share."""
    pick, chosen = random.Random(seed), []
    left = {kind: {path: list(faults) for path, faults in files.items()} for kind, files in found.items()}
    while left and len(chosen) < count:
        kind = pick.choice(sorted(left))
        path = pick.choice(sorted(left[kind]))
        chosen.append(left[kind][path].pop(pick.randrange(len(left[kind][path]))))
        if not left[kind][path]:
            del left[kind][path]
        if not left[kind]:
            del left[kind]
    return chosen


def run_tests(tree: Path, tests: list[str], seconds: float) -> tuple[str, float]:
    """Return "passed", "failed" or "timed out" of the mapped tests in a copy, and how long that took."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not browser and not gpu", "--doctest-modules"]
    command += ["--nbval-lax", "--nbval-cell-timeout=120", "--timeout", "300", *tests]
    environment = dict(os.environ, PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
    begin = time.monotonic()
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)
    return "timed out" if code is None else "passed" if code == 0 else "failed", time.monotonic() - begin


def _report(state: dict[str, Any]) -> None:
    done = list(state.values())
    missed = [one for one in done if one["outcome"] == "passed"]
    kinds = sorted({one["kind"] for one in done})
    for kind in kinds:
        of_kind = [one for one in done if one["kind"] == kind]
        print(f"  {kind:20} {sum(one['outcome'] != 'passed' for one in of_kind):4} of {len(of_kind):4} caught")
    for one in missed:
        print(f"\nmissed: {one['kind']} in {one['path']}:{one['line']} ({one['what']})\n{one['change']}", end="")
    if done:
        print(f"\n{len(done) - len(missed)} of {len(done)} faults caught ({100 * (1 - len(missed) / len(done)):.1f} %)")


def main() -> int:
    """Run from the command line; return 1 where fewer than 95 % were caught."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="*", help="a pattern of files, such as 'gpulab/timing/*'")
    parser.add_argument("--seconds", type=float, default=600.0, help="a run that takes longer has noticed")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    path = STATE / f"faults-{options.seed}.json"
    state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if options.report:
        _report(state)
        return 0
    STATE.mkdir(exist_ok=True)
    chosen = choose(candidates(options.only), options.faults, options.seed)
    clean: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(prefix="gpulab-faults-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        for number, fault in enumerate(chosen, 1):
            key = f"{fault.path}:{fault.line}:{fault.kind}:{fault.what}"
            if key in state:
                continue
            place, tests = tree / fault.path, mapped(fault.path, tree)
            before = place.read_text(encoding="utf-8")
            if fault.path not in clean:  # else a test that fails anyway would count as having noticed
                clean[fault.path] = run_tests(tree, tests, options.seconds)[0] == "passed"
            if not clean[fault.path]:
                print(f"{number}: the tests of {fault.path} do not pass as they are; left out", flush=True)
                continue
            place.write_text(fault.text, encoding="utf-8")
            outcome, seconds = run_tests(tree, tests, options.seconds)
            place.write_text(before, encoding="utf-8")
            change = "".join(difflib.unified_diff(before.splitlines(True), fault.text.splitlines(True), n=1))
            state[key] = {**fault._asdict(), "text": "", "outcome": outcome, "seconds": round(seconds), "change": change}
            path.write_text(json.dumps(state, indent=1), encoding="utf-8")
            print(
                f"{number} of {len(chosen)}: {outcome:9} {seconds:4.0f} s  {fault.kind} in {fault.path}:{fault.line} ({fault.what})",
                flush=True,
            )
    _report(state)
    caught = sum(one["outcome"] != "passed" for one in state.values())
    return 0 if caught >= 0.95 * len(state) else 1


if __name__ == "__main__":
    sys.exit(main())
