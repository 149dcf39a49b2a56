"""Count the cost of a model, and compare models by bytes on disk, FLOPs, time and accuracy, with
the reasons why a smaller model is not faster.

Parameters and FLOPs are counted layer by layer, while the model runs once. A multiply and an add
are two FLOP. Layers with weights, attention and other matrix products are counted; norms,
activations and sums are left out, as in PyTorch's ``FlopCounterMode``. A stored zero is multiplied
and counts; a zero that is not stored does not.

A recipe leads from a trained network to a light one. Its order preserves accuracy: remove channels,
fine-tune; set weights to zero, fine-tune; then share or quantize the remaining weights, with
quantization-aware training where there are few bits. Trained networks are kept, so that ten recipes
train the first network only once.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from gpulab import _validate, devices, memory, networks, timing, training
from gpulab.compression import _storage, compressed_layers
from gpulab.compression._compress import prune, quantize, quantize_aware, share_weights, to_sparse
from gpulab.compression.compressed_layers import Shipped, Sparse, finish
from gpulab.compression.weighed_models import Cost, WeighedModel, Weighing
from gpulab.errors import InputError, StoppedError, message_of, shown
from gpulab.evidence import Evidence, Note
from gpulab.memory.step_memory import uncompiled
from gpulab.results import Result, Table
from gpulab.training import backend_switches
from gpulab.training.data_tasks import SEED
from gpulab.units import format_bytes_per_second, format_flops_per_second, format_seconds, plural


def count(model: Any, *inputs: Any, label: str | None = None) -> Cost:
    """Run a model once and return the cost of each of its layers.

    Parameters
    ----------
    model : torch.nn.Module
        ``finish`` is applied first (to masks, for instance), so that the shipped model is counted.
    *inputs : tensor
        A batch, on the model's device; the first dimension of the first tensor is the number of
        items.
    label : str, optional

    Returns
    -------
    Cost
        Evidence MODELLED; a note names operators of other libraries (``torch.library``), whose
        products are not counted.

    Raises
    ------
    InputError
        If the model does not run on these inputs.

    Examples
    --------
    >>> import torch
    >>> from gpulab import compression, networks
    >>> compression.count(networks.mlp(64, 32, 10, depth=1), torch.zeros(5, 64)).flops
    23680
    """
    done = finish(compressed_layers.module("count", model))
    counter = _Counter(done)  # its hooks stay on this copy, which is used only here
    with (
        devices.guard("count: the model", "it to run on these inputs. Try model(x) first."),
        uncompiled(),
        torch.no_grad(),
        # any function mode keeps PyTorch's attention layer from its fused path, whose products no
        # counter sees
        BaseTorchFunctionMode(),
        counter.products,
        counter,
    ):
        done(*inputs)
    batch = int(inputs[0].shape[0]) if inputs and getattr(inputs[0], "dim", lambda: 0)() else 1
    which = (
        "one operator was"
        if len(counter.unknown) == 1
        else f"{len(counter.unknown)} operators were"
    )
    sentence = (
        f"{which} not counted: {', '.join(counter.unknown)}. Register a formula with "
        "torch.utils.flop_counter.register_flop_formula."
    )
    return Cost(
        label=label if label is not None else type(model).__name__,
        batch=batch,
        layers=counter.rows,
        other_flops=counter.products.get_total_flops() - counter.within,
        parameters=stored_weights(done),
        notes=(Note("skipped", sentence),) if counter.unknown else (),
        evidence=Evidence.modelled(
            "a multiply and an add are two operations; norms, activations and sums are left out",
            "the shapes of each layer's weight and outputs",
        ),
    )


def stored_weights(model: Any) -> int:
    """Return how many weights are stored: parameters, and the integers or values in compressed
    layers that replaced others.
    """
    parameters: int = sum(p.numel() for p in model.parameters())
    return parameters + sum(m.stored for m in model.modules() if isinstance(m, Shipped))


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that sees every operator, with PyTorch's counter of matrix products, and with hooks
    that count layers with weights by themselves.

    Attributes
    ----------
    rows : dict
        As ``Cost.layers``.
    within : int
        FLOP that PyTorch's counter saw inside of these layers, which would otherwise count twice.
    unknown : dict of str
        Operators whose products no counter sees.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows: dict[str, tuple[str, int, int]] = {}
        self.within = 0
        self.unknown: dict[str, None] = {}
        self.products = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
        self.begun: list[int] = []  # FLOP seen before each layer that is running
        for name, each in model.named_modules():
            if isinstance(each, (torch.nn.Linear, torch.nn.Conv2d, torch.nn.RNNBase, Shipped)):
                each.register_forward_pre_hook(
                    lambda *_: self.begun.append(self.products.get_total_flops())
                )
                each.register_forward_hook(self._leave(name), always_call=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note its name if no counter sees its products."""
        known = _NAMESPACES if self.begun else _NAMESPACES[:-3]
        if func.namespace not in known and func.overloadpacket not in flop_registry:
            self.unknown[func._schema.name] = None
        return func(*args, **(kwargs or {}))

    def _leave(self, name: str) -> Any:
        def leave(layer: Any, _: Any, output: Any) -> None:
            begun = self.begun.pop()
            if not self.begun:  # of a layer inside another one, the outer one's cover all
                self.within += self.products.get_total_flops() - begun
            if output is None:  # the layer raised
                return
            kind, parameters, flops = _cost(layer, output)
            _, _, before = self.rows.get(name, ("", 0, 0))
            self.rows[name] = kind, parameters, before + flops

        return leave


def _cost(layer: Any, output: Any) -> tuple[str, int, int]:
    """Return a layer's kind, parameters and FLOP: two for each stored weight, at each position of
    the output.
    """
    # an LSTM is one operator on a CPU, and so are LSTM, GRU and RNN in cuDNN: no product is visible
    # inside
    if isinstance(layer, torch.nn.RNNBase):
        steps = output[0].data  # for a packed sequence, the tensor in it
        read = sum(
            getattr(layer, weight).numel()
            for weight in layer._flat_weights_names
            if weight.startswith("weight")
        )
        flops = 2 * (steps.numel() // steps.shape[-1]) * read
        return "recurrent", sum(p.numel() for p in layer.parameters()), flops
    shipped = isinstance(layer, Shipped)
    shape = layer.weight_shape if shipped else tuple(layer.weight.shape)
    stored = layer.stored if shipped else layer.weight.numel()
    flops = 2 * (output.numel() // shape[0]) * stored
    bias = 0 if layer.bias is None else layer.bias.numel()
    groups = getattr(layer, "groups", 1)
    if not (layer.convolution if shipped else hasattr(layer, "groups")):
        kind = "linear"
    elif groups == 1:
        kind = "convolution"
    else:
        kind = "depthwise" if groups == shape[0] else f"{groups} groups"
    return f"{kind}, {layer.form}" if shipped else kind, stored + bias, flops


# Namespaces whose operators are counted, or multiply no matrices. The last three are known only
# inside of layers, whose FLOP are counted from their weights.
_NAMESPACES = (
    "aten",
    "prim",
    "prims",
    "profiler",
    "c10d",
    "_c10d_functional",
    "torchao",
    "quantized",
    "onednn",
)
_ATEN = torch.ops.aten
# FLOP from the arguments' shapes, for operators for which FlopCounterMode has no formula, or none
# for fewer key heads than query heads.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys((_ATEN.mv, _ATEN.dot, _ATEN.vdot), lambda left, *_, **__: 2 * math.prod(left)),
    _ATEN.addmv: lambda _, left, *__, **___: 2 * math.prod(left),
    _ATEN.addbmm: lambda _, left, right, **__: 2 * math.prod(left) * right[-1],
    _ATEN._trilinear: lambda left, weight, *_, **__: 2 * math.prod(left[:-1]) * math.prod(weight),
    **dict.fromkeys(
        (
            _ATEN._scaled_dot_product_flash_attention_for_cpu,
            _ATEN._scaled_dot_product_flash_attention,
            _ATEN._scaled_dot_product_efficient_attention,
            _ATEN._scaled_dot_product_cudnn_attention,
            _ATEN._scaled_dot_product_fused_attention_overrideable,
            _ATEN._scaled_dot_product_attention_math_for_mps,
        ),
        lambda q, k, v, *_, **__: 2 * k[-2] * (math.prod(q) + math.prod(q[:-1]) * v[-1]),
    ),
}


Progress = Callable[[float, str], None]
Models = Any  # a module, several (one per seed), or a mapping from label to either

# A function from the bytes moved to the best rate measured for that size in the device's memory, in
# bytes per second; None where no rate is known.
_Roof = Callable[[int], float | None]

# A share of zeros up to this is not worth an explanation: training leaves some by chance.
_MANY = 0.05
# The time of one item as a share of a batch's time. From the first value on, the batch's own work
# is the smaller part; above the second, the measurement was disturbed and shows nothing.
_STARTING, _DISTURBED = 0.5, 1.2
# If FLOPs fell by this factor more than the time did, that needs an explanation.
_MORE = 1.3
# A share of the memory's best rate: below it, moving bytes is a small part of the time.
_MEMORY = 0.3


@_validate.arguments(progress=_validate.hook)
def weigh(
    models: Models,
    on: Any = None,
    *,
    inputs: Any = None,
    device: Any = None,
    batch_size: int = 64,
    deadline: float = 0.5,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> Weighing:
    """Return size on disk, FLOPs, measured time and accuracy of models, side by side.

    Parameters
    ----------
    models : module, sequence of modules, or mapping of str to either
        ``finish`` is applied to each first (masks become plain zeros, and so on). Several modules
        under one label are the same recipe with different seeds: the accuracy is over all of them,
        the time is the first one's, and the size is that of the largest file. All labels get the
        same batch and take turns, call by call; the first label is the baseline.
    on : str or Task, optional
        The task whose test set gives the accuracy and the inputs.
    inputs : tensor, optional
        A batch for the timing, in place of the test set's first ``batch_size`` items; required
        without a task.
    device : optional
        The device on which copies of the models are timed and tested; None takes the first model's
        device.
    batch_size : int
    deadline : float
        Seconds of sampling for each model and each of the two batch sizes.
    progress, stop, clock : callable, optional
        As for ``gl.measure``.

    Returns
    -------
    Weighing
        Evidence MEASURED.

    Raises
    ------
    InputError
        If there are no models, or one does not take the inputs.
    DeviceError, StoppedError
        As for ``gl.measure``.

    Notes
    -----
    If the FLOPs fell but the time did not, the device's memory bandwidth is measured once per
    process (``gl.devices.ceilings``): memory is named as the cause only if the model's traffic
    comes near that rate.

    Examples
    --------
    Models under one label are one recipe with several seeds; the largest file counts:

    >>> import torch
    >>> from gpulab import compression, networks
    >>> model, x = networks.mlp(64, 32, 10), torch.zeros(4, 64)
    >>> models = {"two seeds": [compression.prune(model, 0.9), model]}
    >>> found = compression.weigh(models, inputs=x, deadline=0.01).models[0]
    >>> found.file_bytes == compression.size_on_disk(model)
    True
    """
    named = _named(models)
    job = training.task(on) if on is not None else None
    first_model = next(iter(named.values()))[0]
    held = next(iter((*first_model.parameters(), *first_model.buffers())), None)
    own = "cpu" if held is None else str(held.device)
    where = devices.find(own if device is None else device)
    batch = _inputs(job, inputs, batch_size).to(str(where))
    finished = {
        label: [finish(each).to(str(where)) for each in several] for label, several in named.items()
    }
    progress(0.02, "counting and testing")
    flops = {label: float(count(several[0], batch).flops) for label, several in finished.items()}
    accuracies = {
        label: tuple(training.evaluate(each, job) for each in several) if job is not None else ()
        for label, several in finished.items()
    }
    runs = {label: _runner(several[0]) for label, several in finished.items()}
    race = functools.partial(
        timing.compare, runs, devices=[str(where)], deadline=deadline, stop=stop, clock=clock
    )
    many = race(batch, progress=part(progress, 0.1, 0.6))
    one = race(batch[:1], progress=part(progress, 0.6, 1.0))

    # measured once per process, only where it is needed, and only with the usual clock
    def roof(nbytes: int) -> float | None:
        return devices.ceilings(where, stop=stop).bandwidth(nbytes) if clock is None else None

    weighed: list[WeighedModel] = []
    for (label, models_of_label), row, single in zip(
        named.items(), many.rows, one.rows, strict=True
    ):
        model = finished[label][0]
        operators, moved_bytes = _traffic(runs[label], batch)
        m, s = row.measurement, single.measurement
        unexplained = WeighedModel(
            label=label,
            file_bytes=max(_storage.size_on_disk(each) for each in finished[label]),
            parameters=stored_weights(model),
            # CSR layers store no zeros; dense layers beside them do
            zeros=sum(
                int((w == 0).sum()) for each, w in _weights(model) if not isinstance(each, Sparse)
            ),
            forms=_forms(models_of_label[0], model),
            flops_per_item=flops[label] / len(batch),
            operators=operators,
            moved_bytes=moved_bytes,
            median_seconds=m.median_seconds,
            interval_seconds=m.interval_seconds,
            single_seconds=s.median_seconds,
            single_interval_seconds=s.interval_seconds,
            speedup=row.speedup,
            speedup_interval=row.speedup_interval,
            accuracies=accuracies[label],
            reasons=(),
            evidence=Evidence.measured(
                m.environment.device, len(m.samples_seconds), m.environment.date
            ),
        )
        pair = (*weighed, unexplained)[0], unexplained
        reasons = _reasons(_Beside(*pair, len(batch), _zero_share(model), roof))
        weighed.append(dataclasses.replace(unexplained, reasons=reasons))
    return Weighing(
        job.name if job is not None else "",
        where.name,
        len(batch),
        tuple(weighed),
        (*_broken(accuracies), *_notes_of(many.rows)),
        many.evidence,
        many.rows[0].measurement.environment,
    )


def _broken(accuracies: Mapping[str, tuple[training.Accuracy, ...]]) -> tuple[Note, ...]:
    """Return a note on the models whose loss on the test set is not finite, which an accuracy does
    not show.
    """
    labels = [
        label
        for label, several in accuracies.items()
        if any(not math.isfinite(each.loss) for each in several)
    ]
    sentence = (
        f"{', '.join(labels)}: the loss on the test is infinite or nan, so the accuracy shows "
        "nothing. Train with a smaller learning rate or another seed."
    )
    return (Note("diverged", sentence),) if labels else ()


def _notes_of(rows: Any) -> tuple[Note, ...]:
    """Return one note per code, with the labels of its models: otherwise six models on a busy
    machine would repeat it six times.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for row, note in [
        (each, note) for each in rows for note in each.measurement.notes if note.code != "too-short"
    ]:
        found.setdefault(note.code, []).append((row.name, note.sentence))
    return tuple(
        Note(code, f"{', '.join(dict.fromkeys(name for name, _ in each))}: {each[0][1]}")
        for code, each in found.items()
    )


def _named(models: Models) -> dict[str, list[Any]]:
    given = models if isinstance(models, Mapping) else {"the model": models}
    named = {}
    for label, each in given.items():
        several = (
            list(each)
            if isinstance(each, Iterable)
            and not hasattr(each, "forward")
            and not isinstance(each, str)
            else [each]
        )
        named[str(label)] = [compressed_layers.module("weigh", one) for one in several]
    if not named or not all(named.values()):
        raise InputError(
            "weigh: there are no models; expected at least one. Pass for example {'dense': model}."
        )
    return named


def _inputs(job: Any, inputs: Any, batch_size: Any) -> Any:
    if inputs is not None:
        if not isinstance(inputs, torch.Tensor) or inputs.dim() == 0 or not len(inputs):
            raise InputError(
                f"weigh: inputs is {shown(inputs)}; expected a tensor of items. Pass a batch, such "
                "as x[:64]."
            )
        return inputs
    if job is None:
        raise InputError(
            "weigh: neither a task nor inputs; expected one of them. Pass on='digits-cnn', or "
            "inputs=x."
        )
    return job.test[slice(0, _validate.whole("weigh", "batch_size", batch_size, 1, 1 << 20))][0]


def _runner(model: Any) -> Callable[[Any], None]:
    """Return a function that runs a model and returns None: the timing must not compare the outputs
    of different models.
    """

    def run(x: Any) -> None:
        with torch.no_grad():
            model(x)

    return run


def part(report: Progress, begin: float, end: float, prefix: str = "") -> Progress:
    """Return a progress function for a part of the work: it maps the part's fractions to a range of
    the whole.
    """
    before = f"{prefix}: " if prefix else ""
    return lambda fraction, text: report(begin + (end - begin) * fraction, before + text)


def _traffic(run: Callable[[Any], None], x: Any) -> tuple[int | None, int | None]:
    """Return the number of operators and the bytes that they move; None and None if a tensor's
    storage cannot be read (a library's own tensor types).
    """
    try:
        seen = memory.traffic(run, x)
    except Exception:
        return None, None
    return len(seen.operators), seen.nbytes


def _weights(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each linear and convolutional layer with its weight as plain numbers: a tensor of a
    library's own type (2:4, torchao) is converted, since it has no operator that counts zeros.
    """
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d, Shipped)):
            weight: Any = layer.weight
            weight = weight.detach()
            if type(weight) is not torch.Tensor:
                semi_structured = "SemiStructured" in type(weight).__name__
                weight = weight.to_dense() if semi_structured else weight.dequantize()
            yield layer, weight


def _zero_share(model: Any) -> float:
    """Return the share of zeros in the weights of linear and convolutional layers."""
    weights = [weight for _, weight in _weights(model)]
    return sum(int((w == 0).sum()) for w in weights) / (sum(w.numel() for w in weights) or 1)


def _forms(model: Any, finished: Any) -> tuple[str, ...]:
    """Return how the layers of a model are stored and computed."""
    kinds = {
        compressed_layers.Integer: "integers",
        compressed_layers.Quantized: "integers in float",
        compressed_layers.Sparse: "csr",
    }
    own = [kinds[type(each)] for each in finished.modules() if type(each) in kinds]
    weights = [m.weight.data for m in finished.modules() if isinstance(m, torch.nn.Linear)]
    packed = [
        "2:4" if "SemiStructured" in type(weight).__name__ else "torchao"
        for weight in weights
        if type(weight) is not torch.Tensor
    ]
    codebooks = [m for m in model.modules() if isinstance(m, compressed_layers.Codebook)]
    is_dense = not packed and "csr" not in own and _zero_share(finished) > _MANY
    found = [*own, *packed, *("shared" for _ in codebooks)]
    return tuple(dict.fromkeys([*found, "dense zeros"] if is_dense else found))


class _Beside(NamedTuple):
    """A model and the first one, with the other facts from which the reasons are derived."""

    first: WeighedModel
    one: WeighedModel
    batch: int
    zero_share: float
    roof: _Roof

    @property
    def flops_ratio(self) -> float:
        """The first model's FLOPs divided by this model's."""
        one = self.one.flops_per_item
        return self.first.flops_per_item / one if one else 1.0


def _reasons(pair: _Beside) -> tuple[Note, ...]:
    """Return why a model is not faster than the first, or is faster by less than its FLOPs fell; an
    empty tuple if the speed-up has no interval.
    """
    one = pair.one
    if one.speedup is None or one.speedup_interval is None:
        return ()
    found = [] if one.faster == "faster" else _of_forms(pair)
    if "csr" not in one.forms and pair.flops_ratio > _MORE * max(one.speedup, 1 / _MORE):
        found.append(_of_work(pair))
    elif one.faster != "faster" and not found:
        found.append(_of_same_work(pair))
    return tuple(found)


# form, code, why a model with it is not faster
_FORM_REASONS = (
    (
        "shared",
        "unpacked",
        "Its shared weights are unpacked when the model is loaded; the products are the same as "
        "before.",
    ),
    (
        "integers in float",
        "converted",
        "Its integers are turned into float32 at every call, which is extra work; no integer "
        "instruction is used.",
    ),
    (
        "csr",
        "indices",
        "CSR reads an index with every weight and accesses memory irregularly, and a convolution "
        "is laid out as a matrix first.",
    ),
    (
        "integers",
        "rounding",
        "Every layer must round its inputs to integers first; layers this small do not recover "
        "that time.",
    ),
    (
        "torchao",
        "no instructions",
        "Without torch.compile, torchao converts the weights before each product; it is written "
        "for torch.compile and GPUs.",
    ),
)


def _of_forms(pair: _Beside) -> list[Note]:
    one, notes = pair.one, list[Note]()
    if "dense zeros" in one.forms:
        text = (
            f"{pair.zero_share:.0%} of its weights are zero, but they are stored like any other "
            "number, and each zero is multiplied."
        )
        if starting := _starting(pair):
            text += f" And {starting}, so fewer products would hardly change the time."
        notes.append(Note("dense zeros", text))
    notes += [Note(code, text) for form, code, text in _FORM_REASONS if form in one.forms]
    if "integers" in one.forms and compressed_layers.activation_bits() < 8:
        text = (
            "PyTorch reports no AVX-512 VNNI instructions on this CPU; these multiply 8-bit "
            "numbers and sum the products in fours."
        )
        notes.append(Note("no instructions", text))
    return notes


def _of_work(pair: _Beside) -> Note:
    """Return why the time fell less than the FLOPs: starting operators, moving bytes, or small
    products.
    """
    took = f"to 1/{pair.one.speedup:.3g}" if pair.one.faster == "faster" else "did not"
    less = f"Its FLOPs fell to 1/{pair.flops_ratio:.3g}, its time {took}"
    if starting := _starting(pair):
        return Note("starting", f"{less}: {starting}, not of arithmetic.")
    memory = _of_memory(pair)
    return Note(
        "memory" if memory else "rate",
        f"{less}: {_rates(pair)}{memory or ' Smaller products often reach a lower rate.'}",
    )


def _starting(pair: _Beside) -> str:
    """Return words for the case that a single item takes most of a batch's time, else "": then
    what both must do takes most of the time. For small layers that is starting the operators, for
    large ones reading the weights.
    """
    whole, single, operators = (
        pair.one.median_seconds,
        pair.one.single_seconds,
        pair.one.operators,
    )
    if pair.batch == 1 or not _STARTING * whole <= single <= _DISTURBED * whole:
        return ""
    return (
        f"{pair.batch} items take {format_seconds(whole)} and a single one takes "
        f"{format_seconds(single)}: most of that is the time of starting "
        f"{plural(operators, 'operator') if operators else 'operators'} and of reading the weights"
    )


def _of_same_work(pair: _Beside) -> Note:
    """Return why a model with about as many FLOPs, or more, takes as long or longer."""
    ratio, before, now = pair.flops_ratio, pair.first.operators, pair.one.operators
    work = (
        "about as many FLOPs" if 1 / _MORE < ratio < _MORE else f"{1 / ratio:.3g} times the FLOPs"
    )
    parts = f" in {now} operators, not {before}" if before and now and now > before else ""
    return Note("elsewhere", f"It needs {work}{parts}: {_rates(pair)}{_of_memory(pair)}")


def _rates(pair: _Beside) -> str:
    reached, before = (
        format_flops_per_second(each.flops_per_item * pair.batch / each.median_seconds)
        for each in (pair.one, pair.first)
    )
    return f"it reaches {reached}, the first model {before}."


def _of_memory(pair: _Beside) -> str:
    """Return a sentence if memory takes a large part of the time, else "": the model moves more
    bytes per FLOP than the first, at a large share of the memory's best rate.
    """
    first, one = pair.first, pair.one
    if not first.moved_bytes or not one.moved_bytes:
        return ""
    a, b = (each.flops_per_item * pair.batch / (each.moved_bytes or 1) for each in (first, one))
    best = pair.roof(one.moved_bytes) if b < a / _MORE else None
    rate = one.moved_bytes / one.median_seconds
    if best is None or rate < _MEMORY * best:
        return ""
    return (
        f" Its operators do {b:.3g} FLOP for each byte that they move (the first model's {a:.3g}), "
        f"at {format_bytes_per_second(rate)}; the best rate measured for the device's memory is "
        f"{format_bytes_per_second(best)}, so memory takes a large part of the time."
    )


# -------------------------------------------------------------------------------------------------
# Recipes from a trained network to a light one, and what a device can do with a lighter model.


# number of inputs: hundreds are enough for a range (Krishnamoorthi, arXiv:1806.08342, section 3.1)
_CALIBRATION = 256
# With this many bits or fewer, rounding after training loses much accuracy that training with
# rounding keeps (ibid., section 4).
_FEW_BITS = 4

Stop = Callable[[], bool]


@dataclass(frozen=True)
class Recipe:
    """The steps applied to a task's network, in this order; the defaults do nothing.

    Attributes
    ----------
    network : str
        "as it is" takes the task's own network; for images, "resnext" (grouped convolutions) or
        "mobilenet" (depthwise convolutions) replace it.
    channels : float
        The share of channels to remove.
    zeros : float
        The share of weights to set to zero.
    values : int
        Number of different weights in each layer (k-means); 0 leaves the weights as they are.
    bits : int
        Of a weight, 2 to 8; 32 leaves float32.
    weights : str
        With fewer bits: a scale "per-channel" or "per-tensor".
    activations : str or None
        With fewer bits: None, "dynamic" or "static" (calibrated on training inputs).
    compute : str
        "dense" as usual, "csr" multiplies only the nonzero weights, "integer" uses 8-bit CPU
        kernels.
    fine_tune : float
        Training after each step that costs accuracy, as a share of the task's epochs; 0 for none.
    """

    network: str = "as it is"
    channels: float = 0.0
    zeros: float = 0.0
    values: int = 0
    bits: int = 32
    weights: str = "per-channel"
    activations: str | None = None
    compute: str = "dense"
    fine_tune: float = 0.5

    def __post_init__(self) -> None:
        _validate.word("Recipe", "network", self.network, ("as it is", "resnext", "mobilenet"))
        _validate.word("Recipe", "compute", self.compute, ("dense", "csr", "integer"))
        for name in ("channels", "zeros"):
            compressed_layers.share("Recipe", name, getattr(self, name))
        _validate.within("Recipe", "fine_tune", self.fine_tune, 0, 10)
        for name, left, low, high in (("values", 0, 2, 256), ("bits", 32, 2, 8)):
            given = getattr(self, name)
            as_it_is = _validate.is_whole(given) and given == left
            object.__setattr__(
                self, name, left if as_it_is else _validate.whole("Recipe", name, given, low, high)
            )
        contradictions = (
            (
                self.values and self.bits != 32,
                f"values={self.values} and bits={self.bits}; expected one of the two. Leave one "
                "out.",
            ),
            (
                self.compute == "csr" and self.bits != 32,
                f"compute='csr' and bits={self.bits}; expected float32 weights for CSR. Leave bits "
                "out.",
            ),
            (
                self.compute == "integer" and (self.bits != 8 or self.activations != "dynamic"),
                f"compute='integer' with bits={self.bits} and activations={self.activations!r}; "
                "expected bits=8 and activations='dynamic'. Pass these.",
            ),
        )
        for holds, sentence in contradictions:
            if holds:
                raise InputError(f"Recipe: {sentence}")

    @property
    def label(self) -> str:
        """The recipe in a few words; recipes with the same label do the same."""
        tensor = ", one scale per tensor" if self.weights == "per-tensor" else ""
        inputs = f", {self.activations} inputs" if self.activations else ""
        loses = self.channels or self.zeros or self.values or self.bits <= _FEW_BITS
        tuned = (
            f"fine-tuned for {self.fine_tune:g}x the epochs" if self.fine_tune else "not fine-tuned"
        )
        parts = (
            (self.network != "as it is", self.network),
            (self.channels, f"{100 * self.channels:.6g}% of channels removed"),
            (self.zeros, f"{100 * self.zeros:.6g}% zeros"),
            (self.values, f"{self.values} values"),
            (self.bits != 32, f"{self.bits} bits{tensor}{inputs}"),
            (self.compute == "csr", "CSR"),
            (self.compute == "integer", "integer kernels"),
            (loses and self.fine_tune != Recipe.fine_tune, tuned),
        )
        return ", ".join(words for holds, words in parts if holds) or "as trained"

    def __repr__(self) -> str:
        return f"<recipe: {self.label}>"


@_validate.arguments(progress=_validate.hook, stop=_validate.hook)
def diet(
    task: Any,
    recipes: Iterable[Recipe],
    *,
    seeds: Iterable[int] = (0,),
    device: Any = None,
    batch_size: int = 64,
    deadline: float = 0.5,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
) -> Weighing:
    """Apply recipes to a task's network and compare the results with the network as trained.

    Parameters
    ----------
    task : str or Task
    recipes : iterable of Recipe
    seeds : iterable of int
        Each recipe is applied for each seed: with other initial weights and another order of the
        data.
    device : optional
        The device on which the models are trained and timed; None takes the best one available.
    batch_size, deadline, progress, stop
        As for ``weigh``.

    Returns
    -------
    Weighing
        Its first model is the network as trained, for the task's epochs. Fine-tuning comes on top
        of them, so a recipe that fine-tunes has trained for longer, and a note says so.

    Raises
    ------
    InputError
        If there are no recipes or seeds, a seed is invalid, or a recipe does not fit the task.
    StoppedError
        If ``stop`` returned True before there was a model to weigh.
    """
    job = training.task(task)
    wanted = [
        Recipe(),
        *(
            _validate.instance("diet", "recipe", one, Recipe, "a Recipe. Pass one.")
            for one in _validate.items(
                "diet", "recipes", recipes, "[compression.Recipe(zeros=0.9)]"
            )
        ),
    ]
    numbers = dict.fromkeys(
        SEED("diet", "seed", seed)
        for seed in _validate.items("diet", "seeds", seeds, "seeds=(0, 1, 2)")
    )
    # a recipe or a seed that is listed twice must not count as a second seed
    wanted = list({each.label: each for each in wanted}.values())
    models: dict[str, list[Any]] = {}
    steps = len(wanted) * len(numbers)
    for number, (recipe, seed) in enumerate(
        (recipe, seed) for recipe in wanted for seed in numbers
    ):
        models.setdefault(recipe.label, []).append(
            cook(
                recipe,
                job,
                seed,
                device=device,
                stop=stop,
                progress=part(
                    progress,
                    0.7 * number / steps,
                    0.7 * (number + 1) / steps,
                    f"{recipe.label}, seed {seed}",
                ),
            )
        )
    found = weigh(
        models,
        job,
        device=device,
        batch_size=batch_size,
        deadline=deadline,
        progress=part(progress, 0.7, 1.0, ""),
        stop=stop,
    )
    # a recipe that fine-tunes has another label without fine-tuning
    if {dataclasses.replace(one, fine_tune=0).label for one in wanted} == {*models}:
        return found
    sentence = (
        f"the network as trained had {plural(job.epochs, 'epoch')}, and recipes that fine-tune had "
        "more, which alone can change the accuracy. Do not take a small difference as the effect "
        "of a recipe."
    )
    return dataclasses.replace(found, notes=(Note("trained-longer", sentence), *found.notes))


@_validate.arguments(progress=_validate.hook, stop=_validate.hook)
def cook(
    recipe: Recipe,
    task: Any,
    seed: int = 0,
    *,
    device: Any = None,
    progress: Progress | Any = _validate.LEFT_OUT,
    stop: Stop | Any = _validate.LEFT_OUT,
) -> Any:
    """Train a task's network and apply the recipe.

    After each training the running averages of batch norms are computed anew from the training data
    (``torch.optim.swa_utils.update_bn``).

    Parameters
    ----------
    recipe : Recipe
    task : str or Task
    seed : int
    device, progress, stop : optional
        As for ``training.fit``.

    Returns
    -------
    torch.nn.Module
        A model to pass to ``weigh``, or to change further.

    Raises
    ------
    InputError
        If the seed is invalid, or the recipe does not fit the task: a network for images with text,
        or no channel that can be removed.
    StoppedError
        If ``stop`` returned True before the end.
    """
    job, seed, where = training.task(task), SEED("cook", "seed", seed), devices.find(device)

    def tune(model: Any, what: str) -> Any:
        if recipe.fine_tune:
            _train(
                job,
                model,
                seed,
                where,
                stop,
                lambda fraction, _: progress(fraction, f"fine-tuning {what}"),
                epochs=max(1, round(recipe.fine_tune * job.epochs)),
            )
        return model

    with backend_switches.threads(1, where):
        model = _trained(job, recipe.network, seed, where, progress, stop)
        if recipe.channels:
            model = tune(prune(model, recipe.channels, structured=True), "the remaining channels")
        if recipe.zeros:
            model = tune(prune(model, recipe.zeros), "the remaining weights")
        if recipe.values:
            model = tune(share_weights(model, recipe.values), "the shared values")
        if recipe.bits != 32:
            model = _quantized(recipe, job, model, tune)
        return to_sparse(model) if recipe.compute == "csr" else model


def _quantized(recipe: Recipe, job: Any, model: Any, tune: Callable[[Any, str], Any]) -> Any:
    scheme: dict[str, Any] = {
        "weights": recipe.weights,
        "activations": recipe.activations,
        "bits": recipe.bits,
    }
    if recipe.bits <= _FEW_BITS and recipe.fine_tune:
        return tune(quantize_aware(model, **scheme), "with rounding")
    if recipe.activations == "static":
        return quantize(
            model,
            calibration=job.train[slice(0, _CALIBRATION)][0].to(next(model.parameters()).device),
            **scheme,
        )
    return quantize(
        model, arithmetic="integer" if recipe.compute == "integer" else "float", **scheme
    )


# The trained networks by task (the task itself: another one may have the same name), then by
# device, network and seed. A task that nothing else refers to is dropped, with its data and
# networks.
_models: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def _trained(
    job: Any, network: str, seed: int, device: devices.Device, report: Progress, stop: Stop
) -> Any:
    """Return a copy of the task's trained network, which is trained once."""
    kept, key = _models.setdefault(job, {}), (device, network, seed)
    if key not in kept:
        model = _built(job, network, seed)
        _train(job, model, seed, device, stop, lambda f, _: report(f, "training"))
        kept[key] = model
    return copy.deepcopy(kept[key])


def _built(job: Any, network: str, seed: int) -> Any:
    if network == "as it is":
        return job.make_model(seed)
    sample = job.test[slice(0, 1)][0]
    if sample.dim() != 4:
        raise InputError(
            f"diet: network={network!r} for {job.name}, whose items are not images; expected 'as "
            "it is'. Leave network out."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if network == "resnext":
            return networks.resnext(sample.shape[1], 10, width=24, groups=4)
        return networks.mobilenet(sample.shape[1], 10, width=8)


def _train(
    job: Any,
    model: Any,
    seed: int,
    device: devices.Device,
    stop: Stop,
    report: Progress,
    *,
    epochs: int | None = None,
) -> None:
    result = training.fit(
        job, model=model, device=device, epochs=epochs, seed=seed, progress=report, stop=stop
    )
    if result.ended != "finished":
        raise StoppedError(
            f"diet: training {job.name} ended early ({result.ended}), so there is nothing to "
            f"weigh. {'Pass another seed' if result.ended == 'diverged' else 'Run it again'}."
        )
    job.renew_norms(model)


@dataclass(frozen=True)
class Support(Result):
    """The forms of lighter models that a device can run.

    Attributes
    ----------
    device : str
    abilities : mapping of str to (bool, str)
        For each form of a lighter model: whether it works, and a sentence on its advantage, or on
        why it cannot run and what to use instead.
    evidence : Evidence
        MEASURED: each was tried.
    """

    device: str
    abilities: Mapping[str, tuple[bool, str]]
    evidence: Evidence

    def __repr__(self) -> str:
        there = ", ".join(name for name, (works, _) in self.abilities.items() if works)
        return f"<{self.device}: {there}>"

    def table(self) -> Table:
        """Return one row per form."""
        return (self.device, "runs here", ""), [
            (name, "yes" if works else "no", sentence)
            for name, (works, sentence) in self.abilities.items()
        ]


def support(device: Any = None) -> Support:
    """Try each form of a lighter model on a device.

    Parameters
    ----------
    device : optional
        None takes the best one available.

    Raises
    ------
    DeviceError
        If the machine has no such device.
    """
    where = devices.find(device)
    place, bits = str(where), compressed_layers.activation_bits()
    no_pairs = compressed_layers.two_four_refusal(place)
    inputs = (
        "Inputs have 8 bits."
        if bits == 8
        else "Inputs have 7 bits: PyTorch reports no AVX-512 VNNI on this CPU, and without it "
        "16-bit sums of 8-bit inputs would overflow."
    )
    abilities = {
        "zeros in CSR": _tried(
            "Multiplies only what is not zero; pays off above a share of zeros that depends on the "
            "device, so measure it.",
            place,
            lambda model: to_sparse(prune(model, 0.9)),
        ),
        "2:4 zeros": (
            False,
            f"{no_pairs} The zeros still reduce the file to little more than half its size.",
        )
        if no_pairs
        else _tried(
            "Half of the products, in half precision, where the pattern is two zeros in four.",
            place,
            lambda model: to_sparse(prune(model, pattern="2:4"), "2:4"),
            torch.float16,
        ),
        "8-bit weights, float32 arithmetic": _tried(
            "A quarter of the bytes; every call converts the weights to float32.", place, quantize
        ),
    }
    for kind in ("linear layers", "convolutions"):
        refused = compressed_layers.refusal(place, kind == "convolutions")
        sentence = f"{refused[:1].upper()}{refused[1:]}" or f"Integer products. {inputs}"
        abilities[f"8-bit kernels, {kind}"] = not refused, sentence
    for activations, name, good in (
        (None, "torchao, 8-bit weights", "Linear layers; a quarter of the bytes."),
        ("dynamic", "torchao, 8-bit weights and inputs", "Linear layers; integer products."),
    ):
        change = functools.partial(quantize, activations=activations, arithmetic="torchao")
        abilities[name] = _tried(good, place, change)
    return Support(where.name, abilities, Evidence.measured(where.name))


def _tried(
    good: str, place: str, change: Callable[[Any], Any], dtype: torch.dtype = torch.float32
) -> tuple[bool, str]:
    """Try a change on a layer whose sizes suit every kernel (multiples of 32, with more than 16
    rows). Return whether it works, with ``good`` or the error's message.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model = torch.nn.Sequential(torch.nn.Linear(64, 64, device="cpu")).to(place, dtype)
            # the sum waits for the device: a kernel that fails does so here
            float(change(model)(torch.ones(32, 64, dtype=dtype, device=place)).float().sum())
    except Exception as error:  # the question is whether this device refuses
        return False, f"{message_of(error)}."
    return True, good
