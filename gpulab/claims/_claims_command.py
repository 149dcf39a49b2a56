"""``gpulab claims``: the ledger on the command line, or as a page of Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulab.claims.verdicts import Claim, Finding, Ledger

_HEAD = """# The claim ledger

What has been published about GPU acceleration, and what recorded machines show about it. `gpulab
claims --out docs/claims.md` wrote this page; no verdict is written by hand, and every verdict
needs a recording.

A claim is read as a ratio of two recorded times (the column "read as"; "A / B" is the time of A
divided by the time of B). The interval of a ratio joins the 95 % intervals of both times at their
least favorable ends. A case agrees where its whole interval lies inside the promised range, and
contradicts where all of it lies outside; "more than 1x" is contradicted by a gain that is
certainly below 2 %. A promise for each case **holds** where none contradicts and at least half
agree, **fails** where none agrees and at least half contradict, and **holds partly** where some
agree and some contradict. A promise of an average is treated as one case, the geometric mean of
all. A promise of the best case ("up to") holds where one case reaches it, holds partly where at
least one case gains, and fails where every case contradicts. Where the intervals do not decide,
the verdict is **not decided**. Claims are about the hardware of their time: one that fails here
may be true on the hardware for which it was made.
"""


def add_parser(subparsers: Any) -> None:
    """Add the subcommand to the command line's parser."""
    parser = subparsers.add_parser(
        "claims",
        help="compare published claims with recorded machines",
        description="Compare published claims about GPU acceleration with recorded machines, and "
        "write the ledger as a page.",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the page to write (Markdown); without it, one line per claim is printed",
    )
    parser.add_argument(
        "--recording",
        nargs="+",
        metavar="FILE",
        help="recordings to use (default: those that `gpulab recordings` lists)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``gpulab claims``; return the exit code."""
    from gpulab import recordings
    from gpulab._files import write_atomically
    from gpulab._validate import expanded
    from gpulab.claims import ledger
    from gpulab.errors import InputError

    chosen = (
        [recordings.read(name) for name in arguments.recording] if arguments.recording else None
    )
    judged = ledger(chosen)
    if not arguments.out:
        for finding in judged.findings:
            print(
                f"{finding.verdict!s:16} {finding.claim.key:22} {finding.recording or '-':22} "
                f"{finding.summary}"
            )
        print(repr(judged))
        return 0
    target = expanded("claims", arguments.out)
    try:
        write_atomically(target, _page(judged).encode())
    except OSError as error:
        raise InputError(
            f"claims: {target} cannot be written ({error.strerror or error}); expected a writable "
            "folder. Pass --out with another file."
        ) from error
    print(f"{judged!r} in {target}")
    return 0


def _page(ledger: Ledger) -> str:
    """Return the ledger as a page of Markdown."""
    claims = {finding.claim.key: finding.claim for finding in ledger.findings}
    counts = ", ".join(f"{count} {verdict}" for verdict, count in ledger.counts().items() if count)
    verdicts = f"{len(ledger.findings)} verdicts (one for each machine that a claim applies to)"
    machines = dict.fromkeys(
        f"- `{one.recording}`: {one.evidence.sentence}"
        for one in ledger.findings
        if one.evidence is not None
    )
    parts = [_HEAD, f"{len(claims)} claims, {verdicts}: {counts}.\n"]
    parts.append("\n".join(machines or ["No machine is recorded yet."]) + "\n")
    for theme in dict.fromkeys(claim.theme for claim in claims.values()):
        parts.append(f"## {theme}\n")
        parts.append("| claim | read as | promised | what the recordings show |\n|---|---|---|---|")
        parts.append(
            "\n".join(
                _row(claim, ledger.of(claim.key))
                for claim in claims.values()
                if claim.theme == theme
            )
            + "\n"
        )
    parts.append("## Sources\n")
    sources = {claim.source.key: claim.source for claim in claims.values()}
    parts += [
        f"- {source.authors}: [{source.title}]({source.url})"
        f"{'' if source.year is None else f', {source.year}'}"
        for source in sources.values()
    ]
    return "\n".join(parts) + "\n"


def _row(claim: Claim, findings: Sequence[Finding]) -> str:
    verdicts = "<br>".join(_verdict(finding) for finding in findings)
    source = f"[{claim.source.title}]({claim.source.url}), {claim.where}"
    return f"| {claim.sentence} <br> {source} | {claim.reading} | {claim.promised} | {verdicts} |"


def _verdict(finding: Finding) -> str:
    if not finding.comparisons:
        machine = f"`{finding.recording}`" if finding.recording else "no machine of this kind"
        return f"{finding.verdict} ({machine})"
    return f"**{finding.verdict}** (`{finding.recording}`): {finding.summary}"
