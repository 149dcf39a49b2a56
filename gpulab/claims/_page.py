"""The ledger as a page of Markdown: ``docs/claims.md``."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.claims.results import Claim, Finding, Ledger, Source, Verdict

_HEAD = """# The claim ledger

What has been published about GPU acceleration, and what recorded machines show about it. `gpulab claims --out docs/claims.md` wrote
this page; no verdict is written by hand, and every verdict needs a recording.

A claim is read as a ratio of two recorded times (the column "read as"; "A / B" is the time of A divided by the time of B). The interval of
a ratio joins the 95 % intervals of both times at their least favorable ends. A case agrees where its whole interval lies inside the
promised range, and contradicts where all of it lies outside; "more than 1x" is contradicted by a gain that is certainly below 2 %. A
promise for each case **holds** where none contradicts and at least half agree, **fails** where none agrees and at least half contradict,
and **holds partly** where some agree and some contradict. A promise of an average is treated as one case, the geometric mean of all. A
promise of the best case ("up to") holds where one case reaches it, holds partly where at least one case gains, and fails where every case
contradicts. Where the intervals do not decide, the verdict is **not decided**. Claims are about the hardware of their time: one that fails
here may be true on the hardware for which it was made.
"""


def page(ledger: Ledger) -> str:
    """Return the page."""
    claims = {finding.claim.key: finding.claim for finding in ledger.findings}
    counts = ", ".join(f"{count} {verdict}" for verdict, count in ledger.counts().items() if count)
    verdicts = f"{len(ledger.findings)} verdicts (one for each machine that a claim applies to)"
    parts = [_HEAD, f"{len(claims)} claims, {verdicts}: {counts}.\n", _machines(ledger)]
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
    parts.append("\n".join(_source(source) for source in sources.values()))
    return "\n".join(parts) + "\n"


def _machines(ledger: Ledger) -> str:
    seen = dict.fromkeys(
        f"- `{one.recording}`: {one.evidence.sentence}"
        for one in ledger.findings
        if one.evidence is not None
    )
    return "\n".join(seen or ["No machine is recorded yet."]) + "\n"


def _row(claim: Claim, findings: Sequence[Finding]) -> str:
    said = "<br>".join(_said(finding) for finding in findings)
    source = f"[{claim.source.title}]({claim.source.url}), {claim.where}"
    return f"| {claim.sentence} <br> {source} | {claim.reading} | {claim.promised} | {said} |"


def _said(finding: Finding) -> str:
    if finding.verdict is Verdict.MISSING:
        return f"{Verdict.MISSING}" + (
            f" (`{finding.recording}`)" if finding.recording else " (no machine of this kind)"
        )
    return f"**{finding.verdict}** (`{finding.recording}`): {finding.summary}"


def _source(source: Source) -> str:
    year = "" if source.year is None else f", {source.year}"
    return f"- {source.authors}: [{source.title}]({source.url}){year}"
