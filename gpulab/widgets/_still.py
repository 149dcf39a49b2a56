"""Wait for a notebook's instruments to finish, so that a static page can be made from their state.

Used by ``gpulab html`` in the kernel that runs the notebook. If an instrument shows nothing before
its button is pressed, the button is pressed once; work that takes too long is stopped, and the
instrument shows what it has by then.
"""

from __future__ import annotations

import time

# Enough for one run of each instrument of the course on two busy cores.
_LONGEST_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_settled: set[str] = set()


def settle(seconds: float = _LONGEST_SECONDS) -> None:
    """Wait for the instruments made since the last call, run those that are empty, and send the
    state of each of their parts.

    Parameters
    ----------
    seconds : float
        The time after which an instrument is stopped.
    """
    from ipywidgets.widgets import widget as registry

    from gpulab.widgets._instrument import Instrument

    for key, each in list(registry._instances.items()):
        if key not in _settled and isinstance(each, Instrument):
            _settled.add(key)
            _wait(each, seconds)
            if not each._picture.outputs and each.result is None and each.actions:
                each.run()
                _wait(each, seconds)
    for each in list(registry._instances.values()):
        # A message that a thread sent after its cell was done is lost to whoever runs the notebook.
        # (An Output's msg_id says where prints go; nbclient stumbles over one that was never set.)
        each.send_state([key for key in each.keys if key != "msg_id"])


def _wait(instrument: object, seconds: float) -> None:
    """Return when no work is running; stop it after ``seconds``."""
    from gpulab.widgets._instrument import Instrument

    assert isinstance(instrument, Instrument)
    end = time.monotonic() + seconds
    while instrument.running:
        if time.monotonic() > end:
            instrument.stop()
            end = float("inf")
        time.sleep(_LOOK_SECONDS)
