"""The long runs, outside continuous integration; an interrupted soak resumes. A step that passed is
not run again before ``--again``, even if the code has changed since.

    python tools/soak.py            run the steps that have not passed yet
    python tools/soak.py --again    run everything from the start
    python tools/soak.py --list     list the steps and their outcomes
    python tools/soak.py course     run only the steps whose name begins with "course"

Steps: every benchmark in full, and kills and skipped collectives on four ranks too; the long forms
of the tests, with many more examples; the whole course, each notebook from top to bottom, twenty
times in a row; the browser tests five times in a row; and the tests with the newest versions of all
dependencies (tools/newest.py). If a turn of the course or of the browser fails, the turns before it
do not count and are run again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from run_benchmarks import benchmarks

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".gpulab" / "soak.json"
_PYTEST = (sys.executable, "-m", "pytest", "-q")
_COURSES = 20
_BROWSERS = 5

Step = tuple[str, tuple[tuple[str, ...], ...]]


def steps() -> list[Step]:
    """Return each step's name and its commands."""
    notebooks = tuple(
        str(p.relative_to(ROOT)) for p in sorted((ROOT / "notebooks").glob("*.ipynb"))
    )
    found: list[Step] = [
        (f"benchmark {path.stem}", ((sys.executable, str(path)),)) for path in benchmarks()
    ]
    four = ("--ranks", "4", "--seed", "1", "--kills", "54")
    found.append(
        ("failures on four ranks", ((sys.executable, "benchmarks/parallel_failures.py", *four),))
    )
    found.append(
        (
            "many examples",
            ((*_PYTEST, "-m", "not browser", "--soak", "--hypothesis-profile=soak", "tests"),),
        )
    )
    course = (*_PYTEST, "--nbval-lax", "--nbval-cell-timeout=120", *notebooks)
    found += [(f"course {turn} of {_COURSES}", (course,)) for turn in range(1, _COURSES + 1)]
    found += [
        (f"browser {turn} of {_BROWSERS}", ((*_PYTEST, "-m", "browser", "tests/browser"),))
        for turn in range(1, _BROWSERS + 1)
    ]
    found.append(("newest dependencies", ((sys.executable, "tools/newest.py"),)))
    return found


def read_state() -> dict[str, dict[str, object]]:
    """Return the outcome of each step that has run; empty if there is none or it cannot be read."""
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write_state(state: dict[str, dict[str, object]]) -> None:
    STATE.parent.mkdir(exist_ok=True)
    part = STATE.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    part.replace(STATE)


def main(arguments: list[str]) -> int:
    """Run the steps that have not passed; return 1 if a step failed."""
    # with it set, each of thousands of kernels and ranks would compile all of gpulab again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["GPULAB_REQUIRE_BROWSER"] = "1"  # a step that only skipped its tests has not passed
    begins = tuple(word for word in arguments if not word.startswith("-")) or ("",)
    every = dict(steps())
    chosen = [step for step in every.items() if step[0].startswith(begins)]
    if not chosen:
        print(
            f"soak: no step begins with {' or '.join(begins)}; --list names them.", file=sys.stderr
        )
        return 2
    state = {
        name: one
        for name, one in read_state().items()
        if name in every and ("--again" not in arguments or not name.startswith(begins))
    }
    for name, commands in chosen:
        if "--list" in arguments:
            print(f"{name}: {state.get(name, 'not run yet')}")
            continue
        if state.get(name, {}).get("passed"):
            continue
        print(f"\n== {name}", flush=True)
        start = time.monotonic()
        passed = all(
            subprocess.run(command, cwd=ROOT, check=False).returncode == 0 for command in commands
        )
        if not passed and " of " in name:  # the turns must pass in a row
            series = name.partition(" ")[0]
            state = {each: one for each, one in state.items() if not each.startswith(f"{series} ")}
        state[name] = {"passed": passed, "seconds": round(time.monotonic() - start)}
        _write_state(state)
    failed = [name for name, outcome in state.items() if not outcome["passed"]]
    print(
        f"\n{len(state) - len(failed)} steps passed"
        + (f"; failed: {', '.join(failed)} (run again to repeat them)" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
