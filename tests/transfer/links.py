"""Synthetic links with a known truth, for the fit's tests and its benchmark."""

import numpy as np

SIZES = 2.0 ** np.arange(10, 31)  # 1 KiB to 1 GiB, as a sweep
KINDS = ("line", "slower", "faster", "jump")


class TrueLink:
    """A link with latency, bandwidth and at most one knee, drawn from a seed.

    Latency 1 to 20 us, rates 3 to 300 GB/s, knee at 16 KiB to 64 MiB. "slower" and "faster" bend
    there (the rate beyond is 0.4 to 0.8 of the one before, or the inverse); "jump" also adds 0.3
    to 1.5 latencies, as a change of protocol does.
    """

    def __init__(self, seed, kind):
        rng = np.random.default_rng([seed, KINDS.index(kind)])
        self.kind = kind
        self.latency = 10 ** rng.uniform(-6, -4.7)
        first = 10 ** rng.uniform(9.5, 11.5)
        self.knee = 2 ** rng.uniform(14, 26)
        change = {
            "line": 1.0,
            "slower": rng.uniform(0.4, 0.8),
            "faster": 1 / rng.uniform(0.4, 0.8),
            "jump": rng.uniform(0.4, 0.8),
        }[kind]
        self.first, self.bandwidth = first, first * change
        self.step = rng.uniform(0.3, 1.5) * self.latency if kind == "jump" else 0.0
        self.rng = rng

    def seconds(self, nbytes):
        """Return the true seconds of a copy."""
        x = np.asarray(nbytes, dtype=float)
        below = self.latency + np.minimum(x, self.knee) / self.first
        return below + (x > self.knee) * self.step + np.maximum(x - self.knee, 0) / self.bandwidth

    def measured(self, nbytes, noise=0.05, calls=1):
        """Return the median seconds of ``calls`` copies, each with this relative noise."""
        scatter = 1 + noise * self.rng.standard_normal((calls, len(nbytes)))
        return self.seconds(nbytes) * np.median(scatter, axis=0)

    def unseen_sizes(self, count):
        """Return random sizes within the sweep's range, uniform on the log scale."""
        return 2 ** self.rng.uniform(10, 30, count)
