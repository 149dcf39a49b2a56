"""10.6: find the copies in a TensorFlow 1 loop."""

# %% exercise
id = "10.6"
title = "find the copies in a TensorFlow 1 loop"
answer_name = "train"
live = True

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
import numpy as np
from gpulab.errors import InputError, kind_of, shown
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_bytes

# A small imitation of a TensorFlow 1 session that counts the fed and fetched bytes; it does not need TensorFlow. Its model is linear and
# learns the sum of a row's numbers. step and loss use the fed data; step_kept and loss_kept use the data that load stored.
_RATE = 0.1


@dataclass(frozen=True, eq=False)
class Node:
    """One node of the graph: a placeholder, an operation or a value."""

    name: str
    compute: Callable[["_State", np.ndarray | None], Any] | None = None
    is_value: bool = False
    reads: tuple[str, ...] = ()  # names of the state on the device that this node uses: "data", "weights"
    writes: str = ""

    def __repr__(self) -> str:
        return f"<{self.name}>"


class _State:
    """The data that stays on the device between runs."""

    def __init__(self) -> None:
        self.weights: np.ndarray | None = None
        self.kept: np.ndarray | None = None


class OldModel:
    """The graph: ``x``, ``load``, ``step``, ``loss``, ``step_kept``, ``loss_kept`` and ``weights``.

    Parameters
    ----------
    shape : (int, int)
        Shape of the data: rows, columns.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = tuple(shape)
        self.x = Node("x, a placeholder")
        fed, kept = ("weights",), ("weights", "data")
        self.load = Node("load", self._load, writes="data")
        self.step = Node("step", lambda state, x: self._step(state, self._fed(x)), False, fed, "weights")
        self.loss = Node("loss", lambda state, x: self._loss(state, self._fed(x)), True, fed)
        self.step_kept = Node("step_kept", lambda state, x: self._step(state, self._kept(state)), False, kept, "weights")
        self.loss_kept = Node("loss_kept", lambda state, x: self._loss(state, self._kept(state)), True, kept)
        self.weights = Node("weights", lambda state, x: self._weights(state).copy(), True, fed)

    def _load(self, state: _State, fed: np.ndarray | None) -> None:
        state.kept = self._fed(fed).copy()

    def _fed(self, fed: np.ndarray | None) -> np.ndarray:
        if fed is None:
            raise InputError(
                "run: a value for the placeholder x is missing; expected it in feed_dict. Pass feed_dict={model.x: x}, or use loaded data."
            )
        return fed

    def _kept(self, state: _State) -> np.ndarray:
        if state.kept is None:
            raise InputError("run: nothing was loaded; expected loaded data. Call session.run(model.load, feed_dict={model.x: x}) once.")
        return state.kept

    def _weights(self, state: _State) -> np.ndarray:
        return np.zeros(self.shape[1], dtype=np.float32) if state.weights is None else state.weights

    def _error(self, state: _State, x: np.ndarray) -> np.ndarray:
        error: np.ndarray = x @ self._weights(state) - x.sum(axis=1)
        return error

    def _step(self, state: _State, x: np.ndarray) -> None:
        state.weights = (self._weights(state) - _RATE * 2 * x.T @ self._error(state, x) / len(x)).astype(np.float32)

    def _loss(self, state: _State, x: np.ndarray) -> np.float32:
        return np.float32(np.mean(self._error(state, x) ** 2))


class OldSession:
    """``run(fetches, feed_dict)`` as in ``tf.compat.v1.Session``, with counters.

    Attributes
    ----------
    runs, steps : int
        How many runs and training steps were made.
    fed_bytes, fetched_bytes : int
    fetched_names : list of str
        Names of the fetched values, in the order in which they were fetched.
    """

    def __init__(self) -> None:
        self.runs = self.steps = self.fed_bytes = self.fetched_bytes = 0
        self.fetched_names: list[str] = []
        self._state = _State()

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Send the fed data, compute the nodes, and fetch their values.

        Parameters
        ----------
        fetches : Node or list of Node
        feed_dict : mapping of Node to ndarray, optional

        Returns
        -------
        ndarray, None or list
            The value of the node, or None for an operation; a list of these if ``fetches`` is a list.

        Raises
        ------
        InputError
            If something cannot be fetched or fed, if data that is needed is missing, or if one node changes state that another one
            reads: in TensorFlow, only the graph determines an order within one run.
        """
        several = isinstance(fetches, (list, tuple))
        nodes = list(fetches) if several else [fetches]
        wrong = next((node for node in nodes if not isinstance(node, Node) or node.compute is None), None)
        if wrong is not None or not nodes:
            raise InputError(f"run: {shown(wrong)} cannot be fetched; expected an operation or a value such as model.loss. Pass one.")
        race = next(((one, other) for one in nodes for other in nodes if one is not other and one.writes in other.reads), None)
        if race is not None:
            raise InputError(
                f"run: the order of {race[0].name} and {race[1].name} in one run is undefined; expected two runs. "
                f"Run {race[0].name}, then fetch {race[1].name}."
            )
        fed = self._feed(feed_dict)
        self.runs += 1
        found = {node: self._one(node, fed) for node in dict.fromkeys(nodes)}  # a node that is fetched twice is computed once
        return [found[node] for node in nodes] if several else found[nodes[0]]

    def _feed(self, feed_dict: Mapping[Any, Any] | None) -> np.ndarray | None:
        if feed_dict is None or len(feed_dict) == 0:
            return None
        if not isinstance(feed_dict, Mapping) or len(feed_dict) != 1:
            raise InputError(f"run: feed_dict={shown(feed_dict)}; expected one placeholder and its value. Pass feed_dict={{model.x: x}}.")
        ((node, value),) = feed_dict.items()
        if not isinstance(node, Node) or node.compute is not None or not isinstance(value, np.ndarray) or value.ndim != 2:
            raise InputError(
                f"run: {shown(node)} was fed {kind_of(value)}; expected the placeholder and a NumPy array of rows and columns. "
                "Pass feed_dict={model.x: x}."
            )
        self.fed_bytes += value.nbytes
        return value.copy()  # this copy stands for the one on the device

    def _one(self, node: Node, fed: np.ndarray | None) -> Any:
        assert node.compute is not None
        value = node.compute(self._state, fed)
        self.steps += node.writes == "weights"
        if not node.is_value:
            return None
        self.fetched_bytes += value.nbytes
        self.fetched_names.append(node.name)
        return value


_STEPS = 20
_OTHER_STEPS = 7  # refuses an answer that has the number of steps written into it


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
        when = " Is it the loss after the last step?" if after.steps == steps else ""
        raise Refused(f"You made {after.steps} of {steps} steps, and your loss is {found:.6g}; the loop ends with {expected:.6g}.{when}")
    if after.fed_bytes > x.nbytes:
        raise Refused(
            f"{bill}: the data ({format_bytes(x.nbytes)}) is still sent {after.fed_bytes / x.nbytes:.0f} times. Store it once with model.load, "
            "and run the operations that use what is stored."
        )
    if model.weights.name in after.fetched_names:
        raise Refused(f"{bill}: the weights are not needed in main memory. A run copies back everything that it is asked for.")
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

# %% wrong: the weights are not needed in main memory
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
