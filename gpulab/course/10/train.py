"""10.6: find the copies in a TensorFlow 1 loop."""

# %% exercise
id = "10.6"
title = "find the copies in a TensorFlow 1 loop"
answer_name = "train"

# %% stub
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    ...  # session.run(what, feed_dict={model.x: x}) or session.run(what)

# %% hint
# Everything in feed_dict is sent in that run. Everything that a run is asked for and that has a
# value is copied back (fetched).

# %% hint
# model.load stores what is fed to model.x on the device; model.step_kept and model.loss_kept use
# what is stored.

# %% hint
# Feed in one run only. The steps need no feed and no fetch, and the loss is needed once.

# %% solution
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})  # the only copy of the data
    for _ in range(steps):
        session.run(model.step_kept)  # an operation: it returns nothing, so nothing is fetched
    return session.run(model.loss_kept)

# %% check
from collections.abc import Callable
from typing import Any
import numpy as np
from gpulab.lessons import checking
from gpulab.lessons._old_session import OldModel, OldSession
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes

_STEPS = 20
_OTHER_STEPS = 7  # so that what was asked for is made, and not a number that is written down


def wasteful(session: Any, model: Any, x: np.ndarray, steps: int) -> Any:
    """Feed the data to each step and to each look at the loss, and fetch the weights to see whether they move."""
    for _ in range(steps):
        session.run(model.step, feed_dict={model.x: x})
        loss, _ = session.run([model.loss, model.weights], feed_dict={model.x: x})
    return loss


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    praise = [_frugal_bill(ask, steps) for steps in (_STEPS, _OTHER_STEPS)]
    return praise[0]


def _frugal_bill(ask: Callable[..., Any], steps: int) -> str:
    x = np.random.default_rng(6).standard_normal((400, 32)).astype(np.float32)
    before, after = OldSession(), OldSession()
    model = OldModel(x.shape)
    expected = float(wasteful(before, model, x.copy(), steps))
    found = checking.number(ask(f"For {steps} steps", after, model, x.copy(), steps), "the loss")
    bill = f"{after.runs} runs, {format_bytes(after.fed_bytes)} fed and {format_bytes(after.fetched_bytes)} fetched"
    if after.runs == 0:
        raise Refused("Your function never called session.run: nothing was trained.")
    if after.steps != steps or abs(found - expected) > 1e-5 * abs(expected):
        raise Refused(f"You made {after.steps} of {steps} steps, and your loss is {found:.6g}; the loop ends with {expected:.6g}.")
    if after.fed_bytes > x.nbytes:
        raise Refused(
            f"{bill}: the data ({format_bytes(x.nbytes)}) is still sent {after.fed_bytes / x.nbytes:.0f} times. Store it once with model.load, "
            "and run the operations that use what is stored."
        )
    if model.weights.name in after.fetched_names:
        raise Refused(f"{bill}: nobody needs the weights in main memory. A run copies back everything that it is asked for.")
    if len(after.fetched_names) > 1:
        raise Refused(
            f"{bill}: the loss is fetched {len(after.fetched_names)} times, and the device waits each time. Fetch it once, at the end."
        )
    return f"{bill}; the loop above: {format_bytes(before.fed_bytes)} fed and {format_bytes(before.fetched_bytes)} fetched."

# %% wrong: still sent 21 times
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    for _ in range(steps):
        session.run(model.step, feed_dict={model.x: x})
    return session.run(model.loss, feed_dict={model.x: x})

# %% wrong: still sent 20 times
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    for _ in range(steps):
        session.run(model.load, feed_dict={model.x: x})
        session.run(model.step_kept)
    return session.run(model.loss_kept)

# %% wrong: nobody needs the weights
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    for _ in range(steps):
        session.run(model.step_kept)
        session.run(model.weights)
    return session.run(model.loss_kept)

# %% wrong: the order of step_kept and weights in one run is undefined
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    for _ in range(steps):
        session.run([model.step_kept, model.weights])
    return session.run(model.loss_kept)

# %% wrong: the order of step_kept and loss_kept in one run is undefined
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    for _ in range(steps):
        loss = session.run([model.step_kept, model.loss_kept])[1]
    return loss

# %% wrong: the order of load and step_kept in one run is undefined
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run([model.load, model.step_kept], feed_dict={model.x: x})
    for _ in range(steps - 1):
        session.run(model.step_kept)
    return session.run(model.loss_kept)

# %% wrong: You made 1 of 20 steps
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    session.run([model.step_kept] * steps)
    return session.run(model.loss_kept)

# %% wrong: the loss is fetched 20 times
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    for _ in range(steps):
        session.run(model.step_kept)
        loss = session.run(model.loss_kept)
    return loss

# %% wrong: the loss is fetched 21 times
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    for _ in range(steps):
        session.run(model.step_kept)
        loss = session.run(model.loss_kept)
    return session.run(model.loss_kept)

# %% wrong: You made 1 of 20 steps
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    session.run(model.step_kept)
    return session.run(model.loss_kept)

# %% wrong: You made 20 of 7 steps
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    session.run(model.load, feed_dict={model.x: x})
    for _ in range(20):
        session.run(model.step_kept)
    return session.run(model.loss_kept)

# %% wrong: nothing was loaded
def train(session, model, x, steps):
    """Make the steps; return the loss after the last one."""
    for _ in range(steps):
        session.run(model.step_kept)
    return session.run(model.loss_kept)

# %% wrong: expects a function
train = 3
