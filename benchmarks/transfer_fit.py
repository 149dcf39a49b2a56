"""How well the alpha-beta fit recovers links whose truth is known, compared with a plain fit, an
oracle and the literature.

    python benchmarks/transfer_fit.py           # 1,000 links of each kind, about two minutes
    python benchmarks/transfer_fit.py --quick   # 100 of each

Each link is swept over 21 sizes from 1 KiB to 1 GiB with 5 % relative noise on each call. A point
of a sweep is a median of calls: of 9 calls in the first block of the table, and of a single call in
the second, which is harder than any real sweep. A last table shows how often a knee is found in
sweeps of fewer sizes over the same range, with medians of 9 calls. The oracle knows the shape and
the place of the knee and solves for the rest by weighted least squares. ``holds`` is the share of
new measurements, at 10 sizes of each link that the fit has not seen, that lie in the 95 % interval
of ``predict``. The plain fit is a straight line by ordinary least squares, as textbooks have it:
the largest copies decide it, so it finds no latency. The weighted fit is the same line with all
relative errors equal, which finds latencies, but no bandwidth beyond a knee. ``truth held by`` is
the share of links whose true latency and bandwidth lie in the fit's 95 % intervals of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "transfer"))
from links import KINDS, SIZES, TrueLink

from gpulab import transfer

NOISE = 0.05
LITERATURE = (
    ("Boyer, Meng and Kumaran 2013, alpha-beta", "8 %"),
    ("lambda model 2020, piecewise", "1.6 to 4.5 %"),
)


def oracle(link: TrueLink, y: np.ndarray) -> tuple[float, float]:
    """Return latency and bandwidth by weighted least squares with the shape and the knee given."""
    beyond = SIZES - link.knee
    columns = [np.ones(len(SIZES)), SIZES, np.maximum(beyond, 0.0), beyond > 0]
    width = {"line": 2, "slower": 3, "faster": 3, "jump": 4}[link.kind]
    weight = 1 / link.seconds(SIZES)
    a = np.stack(columns[:width], axis=1) * weight[:, None]
    size = np.linalg.norm(a, axis=0)
    b = np.linalg.lstsq(a / size, y * weight, rcond=None)[0] / size
    return float(b[0]), float(1 / b[1:3].sum())


def plain(y: np.ndarray, weights: np.ndarray | None = None) -> tuple[float, float]:
    """Return latency and bandwidth of a straight line by least squares."""
    slope, intercept = np.polyfit(SIZES / SIZES[-1], y, 1, w=weights)
    return float(intercept), float(SIZES[-1] / slope)


def trial(kind: str, count: int, calls: int) -> dict[str, float]:
    """Return the shares and errors over ``count`` links of one kind."""
    ours, best, usual, weighted, covered, held, true = [], [], [], [], [], [], []
    inside = []
    for seed in range(count):
        link = TrueLink(seed, kind)
        y = link.measured(SIZES, NOISE, calls)
        f = transfer.fit(SIZES, y)
        truth = np.array([link.latency, link.bandwidth])
        ours.append(np.array([f.latency_seconds, f.bandwidth_bytes_per_second]) / truth - 1)
        intervals = (f.latency_interval_seconds, f.bandwidth_interval_bytes_per_second)
        inside.append(
            [low <= one <= high for one, (low, high) in zip(truth, intervals, strict=True)]
        )
        best.append(np.array(oracle(link, y)) / truth - 1)
        usual.append(np.array(plain(y)) / truth - 1)
        weighted.append(np.array(plain(y, 1 / y)) / truth - 1)
        x = link.unseen_sizes(10)
        new = link.measured(x, NOISE, calls)
        low, expected, high = f.predict(x)
        covered.append(np.mean((new >= low) & (new <= high)))
        held.append(f.held_out_error)
        true.append(np.mean(np.abs(expected / new - 1)))
    found, known, straight, even = (np.abs(np.array(e)) for e in (ours, best, usual, weighted))
    return {
        "latency": np.mean(found[:, 0] < 0.10),
        "bandwidth": np.mean(found[:, 1] < 0.03),
        "cover": np.mean(covered),
        "oracle latency": np.mean(known[:, 0] < 0.10),
        "oracle bandwidth": np.mean(known[:, 1] < 0.03),
        "plain latency": np.mean(straight[:, 0] < 0.10),
        "plain bandwidth": np.mean(straight[:, 1] < 0.03),
        "weighted latency": np.mean(even[:, 0] < 0.10),
        "weighted bandwidth": np.mean(even[:, 1] < 0.03),
        "latency inside": np.mean(inside, axis=0)[0],
        "bandwidth inside": np.mean(inside, axis=0)[1],
        "held out": np.mean(held),
        "unseen": np.mean(true),
        "median latency": np.median(found[:, 0]),
        "median bandwidth": np.median(found[:, 1]),
    }


def knees(kind: str, points: int, count: int) -> float:
    """Return the share of ``count`` links of one kind in which the fit finds a knee, swept over
    ``points`` sizes.
    """
    x = np.geomspace(SIZES[0], SIZES[-1], points)
    found = [
        transfer.fit(x, TrueLink(seed, kind).measured(x, NOISE, 9)).knees_bytes
        for seed in range(count)
    ]
    return sum(map(bool, found)) / count


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 links of each kind")
    parser.add_argument("--links", type=int, default=1000, help="links of each kind")
    arguments = parser.parse_args()
    count = 100 if arguments.quick else arguments.links
    for calls in (9, 1):
        print(
            f"\n{count} links of each kind, {NOISE:.0%} noise a call, each point the median of "
            f"{calls} call{'s' if calls > 1 else ''}"
        )
        print(
            "          latency within 10 %              bandwidth within 3 %             95 % "
            "interval  median error       held-out  error on      truth held by interval of"
        )
        print(
            "knee      ours   oracle plain  weighted  ours   oracle plain  weighted  holds     "
            "     latency bandwidth  error     unseen sizes  latency  bandwidth"
        )
        for kind in KINDS:
            r = trial(kind, count, calls)
            print(
                f"{'none' if kind == 'line' else kind:8}  {r['latency']:6.1%} "
                f"{r['oracle latency']:6.1%} {r['plain latency']:6.1%} {r['weighted latency']:6.1%}"
                f"    {r['bandwidth']:6.1%} {r['oracle bandwidth']:6.1%} "
                f"{r['plain bandwidth']:6.1%} {r['weighted bandwidth']:6.1%}    {r['cover']:6.1%}  "
                f"       {r['median latency']:6.2%}  {r['median bandwidth']:6.2%}    "
                f"{r['held out']:6.2%}    {r['unseen']:6.2%}        {r['latency inside']:6.1%}   "
                f"{r['bandwidth inside']:6.1%}",
                flush=True,
            )
    print("\nsizes     a knee is found:" + "".join(f"{kind:>9}" for kind in KINDS))
    for points in (7, 8, 9, 10, 12, 15, 21):
        shares = "".join(f"{knees(kind, points, count):9.1%}" for kind in KINDS)
        print(f"{points:<26}{shares}", flush=True)
    print("\nPublished mean errors of transfer models on real links:")
    for name, error in LITERATURE:
        print(f"  {name}: {error}")


if __name__ == "__main__":
    main()
