"""What can be planted: every place of a file of Python or of a notebook where a fault can be tried, and the file's text with it."""

from __future__ import annotations

import ast
import copy
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

_WAITS = re.compile(r"synchroni[sz]e|block_until_ready|^wait$|wait_|barrier|^join$", re.IGNORECASE)
_LISTENS = re.compile(r"^(observe|on_click|on_msg|on_change|on_submit|link|dlink|jslink|connect|add_done_callback)$")
_EMPTY = {ast.Tuple: "()", ast.List: "[]", ast.Dict: "{}", ast.JoinedStr: "''", ast.ListComp: "[]", ast.DictComp: "{}"}
# Swapped arguments would change nothing, or only what is refused at once.
_SYMMETRIC = (
    *("isinstance", "issubclass", "max", "min", "print", "suppress", "zip"),
    *("array_equal", "equal", "gcd", "hypot", "logical_and", "logical_or", "maximum", "minimum"),
)
_TURNS = ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div))
_TURNED = {one: other for pair in _TURNS for one, other in (pair, pair[::-1])}


class Fault(NamedTuple):
    """One change: its kind, the file, the line, what was there and is now; the bytes it takes the place of, and in which cell."""

    kind: str
    path: str
    line: int
    what: str
    begin: int
    end: int
    new: str
    cell: int | None = None


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


def _bytes_of(node: Any, starts: list[int]) -> tuple[int, int]:
    return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset


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
    """Return every place of a file of Python where a fault can be tried; ``planted`` tells the few that would change nothing."""
    tree = ast.parse(text)
    skipped = _of_no_use(tree)
    starts = [0, *itertools.accumulate(len(line) for line in text.encode().splitlines(keepends=True))]
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        for find in (_constants, _operators, _calls, _statements):
            for kind, where, new in find(node):
                what = f"{ast.unparse(where)[:60]} -> {new[:60]}"
                yield Fault(kind, path, where.lineno, what, *_bytes_of(where, starts), new)  # type: ignore[attr-defined]


def faults_of_notebook(path: str, text: str) -> Iterator[Fault]:
    """Return every place of a notebook's code cells, and each cell emptied."""
    for k, cell in enumerate(json.loads(text)["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.lstrip().startswith("%"):
            continue
        try:
            found = [*faults_of(path, source), Fault("empty cell", path, 1, source.splitlines()[0][:60], 0, len(source.encode()), "")]
        except SyntaxError:  # a magic
            continue
        for fault in found:
            yield fault._replace(what=f"cell {cell['id']}: {fault.what}", cell=k)


def faults_in(path: str, root: Path) -> list[Fault]:
    """Return the faults of a file of either kind."""
    return list((faults_of if path.endswith(".py") else faults_of_notebook)(path, (root / path).read_text(encoding="utf-8")))


def planted(fault: Fault, text: str) -> str | None:
    """Return the file's text with the fault in it; None where that is no Python or says the same as before."""
    if fault.cell is None:
        return _spliced(fault, text)
    notebook = json.loads(text)
    changed = _spliced(fault, "".join(notebook["cells"][fault.cell]["source"]))
    if changed is None:
        return None
    notebook["cells"][fault.cell]["source"] = changed.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _spliced(fault: Fault, text: str) -> str | None:
    raw = text.encode()
    changed = (raw[: fault.begin] + fault.new.encode() + raw[fault.end :]).decode()
    try:
        same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
    except SyntaxError:
        return None
    return None if same else changed
