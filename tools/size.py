"""Count the project's code independently of formatting, and hold it to the budget.

    python tools/size.py              a line for each tree; exit code 1 where one is larger than its
                                      budget
    python tools/size.py gpulab       the folders of one tree, the largest first

It counts the statements (docstrings are none) and the expressions of the syntax tree, so shorter
names, longer lines and fewer comments gain nothing. The course's content (``gpulab/course``) is
data and is not counted.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREES = ("gpulab", "tests", "tools", "benchmarks")


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def measured(folder: Path) -> Counter[str]:
    """Return the files, statements and expressions of the Python below a folder."""
    found: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        if "course" not in path.relative_to(folder).parts:
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            found["files"] += 1
            found["statements"] += sum(
                isinstance(node, ast.stmt) and not _is_docstring(node) for node in nodes
            )
            found["expressions"] += sum(isinstance(node, ast.expr) for node in nodes)
    return found


def main(arguments: list[str]) -> int:
    """Print the sizes; return 1 where a budget is exceeded."""
    if arguments:
        parts = {
            path.name: measured(path) for path in (ROOT / arguments[0]).iterdir() if path.is_dir()
        }
        for name, size in sorted(parts.items(), key=lambda item: -item[1]["statements"]):
            print(
                f"{name:16} {size['files']:5} files {size['statements']:8,} statements "
                f"{size['expressions']:9,} expressions"
            )
        return 0
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "gpulab"
    ]["size"]
    exceeded = []
    for name in TREES:
        size, budget = measured(ROOT / name), budgets.get(name, {})
        parts = [
            f"{size[kind]:,} {kind}" + (f" of {budget[kind]:,}" if kind in budget else "")
            for kind in size
        ]
        print(f"{name:12}{', '.join(parts)}")
        exceeded += [
            f"{name}: {size[kind]:,} {kind}, the budget is {most:,}"
            for kind, most in budget.items()
            if size[kind] > most
        ]
    for line in exceeded:
        print(
            f"size: {line}. Remove what nobody needs, or say in the commit why the budget must "
            "rise.",
            file=sys.stderr,
        )
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
