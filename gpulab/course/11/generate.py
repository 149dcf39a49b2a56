"""11.19: take it home: generate with a cache."""

# %% exercise
id = "11.19"
title = "take it home: generate with a cache"
answer_name = "generate"
loads = ["torch"]
live = True

# %% stub
import torch


def generate(model, prompt, count, stop=None):
    """Return prompt and up to `count` new tokens; a row that has ended goes on with `stop`."""
    ...  # logits, past = model(tokens, past): only NEW tokens go in; past is None at first

# %% hint
# The prompt goes in once, as a whole, with past=None. From then on only the token that was chosen
# last, of shape (batch, 1). The scores of the next token are those of the last position, logits[:, -1].

# %% hint
# token = logits[:, -1].argmax(-1, keepdim=True); append it to a list; then logits, past = model(token,
# past). At the end, torch.cat([prompt, *chosen], 1). Does the last token still have to go into the model?

# %% hint
# Put it all under @torch.inference_mode(). For stop: done = torch.zeros_like(prompt[:, :1], dtype=torch.bool);
# token = torch.where(done, stop, token); done |= token == stop; end the loop when done.all().

# %% solution
import torch


@torch.inference_mode()
def generate(model, prompt, count, stop=None):
    """Return prompt and up to `count` new tokens; a row that has ended goes on with `stop`."""
    chosen, tokens, past = [], prompt, None
    done = torch.zeros_like(prompt[:, :1], dtype=torch.bool)
    while len(chosen) < count and not done.all():
        logits, past = model(tokens, past)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        if stop is not None:
            tokens = torch.where(done, stop, tokens)
            done |= tokens == stop
        chosen.append(tokens)
    return torch.cat([prompt, *chosen], 1)

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

_TOKENS, _WIDTH = 17, 24


def _network(seed: int) -> Any:
    """Return a small causal network with a cache. Its ``past`` is simply the tokens that it has seen."""
    import torch

    class Network(torch.nn.Module):
        """Scores from the last token, its position and a weighted sum of all tokens so far."""

        def __init__(self) -> None:
            super().__init__()
            generator = torch.Generator().manual_seed(seed)
            table = torch.randn(3, _TOKENS, _WIDTH, generator=generator)
            self.table, self.out = torch.nn.Parameter(table), torch.nn.Parameter(torch.randn(_WIDTH, _TOKENS, generator=generator))
            self.calls: list[tuple[int, int, bool, bool, int]] = []  # new tokens, earlier tokens, gradients enabled, training mode, rows

        def forward(self, tokens: Any, past: Any = None) -> tuple[Any, Any]:
            seen = tokens if past is None else torch.cat([past, tokens], 1)
            self.calls.append((tokens.shape[1], seen.shape[1] - tokens.shape[1], torch.is_grad_enabled(), self.training, len(tokens)))
            place = torch.arange(seen.shape[1])
            mixed = (self.table[0][seen] * torch.cos(0.7 * place)[:, None]).cumsum(1) / (1 + place)[:, None] ** 0.5
            x = torch.tanh(mixed + self.table[1][seen] * 0.6 + self.table[2][place % _TOKENS] * 0.4)
            return (x @ self.out)[:, -tokens.shape[1] :], seen

    return Network().eval()


def _reference(seed: int, prompt: Any, count: int, stop: int | None = None) -> Any:
    import torch

    network, text = _network(seed), prompt
    done = torch.zeros(len(prompt), 1, dtype=torch.bool)
    with torch.no_grad():
        for _ in range(count):
            token = network(text)[0][:, -1].argmax(-1, keepdim=True)
            if stop is not None:
                token = torch.where(done, stop, token)
                done = done | (token == stop)
            text = torch.cat([text, token], 1)
            if bool(done.all()):
                break
    return text


def check(answer: Any) -> str:
    import torch

    ask = checking.in_turn(answer)
    for seed, shape, count in ((1, (1, 6), 12), (2, (3, 4), 15), (3, (2, 1), 1), (4, (1, 5), 0)):
        prompt = torch.randint(0, _TOKENS, shape, generator=torch.Generator().manual_seed(seed))
        said = f"With a prompt of the shape {shape} and count={count}"
        _judge(ask, said, seed, prompt, count, None)
    for seed, shape in ((5, (1, 4)), (6, (3, 5)), (230, (1, 4))):  # the last one stops at the token 0
        prompt = torch.randint(0, _TOKENS, shape, generator=torch.Generator().manual_seed(seed))
        text = _reference(seed, prompt, 12)[:, shape[1] :]
        stop = int(text[0, 3])
        _judge(ask, f"With a prompt of the shape {shape}, count=12 and stop={stop}", seed, prompt, 12, stop)
    return "The same text as without a cache; the prompt goes in once, then one token a step, without gradients, and a row that is done stays done."


def _judge(ask: Any, said: str, seed: int, prompt: Any, count: int, stop: int | None) -> None:
    import torch

    network, given = _network(seed), prompt.clone()
    result = ask(said, network, given, count, stop)
    if not isinstance(result, torch.Tensor) or result.dim() != 2 or len(result) != len(prompt):
        raise Refused(f"{said} your function returned {checking.describe(result)}; the check expects a tensor of {len(prompt)} rows: prompt and new tokens.")
    if not torch.equal(given, prompt):
        raise Refused(f"{said} your function changes the prompt itself. Make a new tensor.")
    if count and not network.calls:
        raise Refused(f"{said} your function never calls the model.")
    if any(call[4] < len(prompt) for call in network.calls):
        raise Refused(f"{said} the model gets fewer than {len(prompt)} rows in a call. Pass all rows together: a step reads the weights once for all of them.")
    _judge_calls(said, network.calls, prompt.shape[1], count)
    right = _reference(seed, prompt, count, stop)
    new, wanted = result[:, prompt.shape[1] :], right[:, prompt.shape[1] :]
    if torch.equal(result.long(), right):
        return
    if torch.equal(result.long(), wanted):
        raise Refused(f"{said} the new tokens are right, but the prompt is missing in front of them.")
    if new.shape[1] == wanted.shape[1] + 1 and torch.equal(new[:, :-1].long(), wanted):
        raise Refused(f"{said} there is one token too many: {new.shape[1]} new ones; {wanted.shape[1]} are right.")
    free = _reference(seed, prompt, count)
    if stop is not None and torch.equal(result.long(), free):
        zero = " 0 is a token like the others: write `if stop is not None`." if stop == 0 else ""
        raise Refused(f"{said} your function goes on after the token {stop}. End when every row has said it.{zero}")
    if stop is not None and torch.equal(new.long(), wanted[:, :-1]):
        raise Refused(f"{said} the token {stop} itself is missing at the end. Append it, then end.")
    if stop is not None and new.shape[1] < wanted.shape[1]:
        raise Refused(f"{said} your function ends after {new.shape[1]} tokens, when the first row is done. The other rows go on: end when all are.")
    if stop is not None and new.shape[1] >= wanted.shape[1] and torch.equal(result[:, : free.shape[1]].long(), free[:, : result.shape[1]]):
        raise Refused(f"{said} a row goes on with other tokens after it said {stop}. Put {stop} there until all rows are done.")
    if stop is not None and new.shape[1] > wanted.shape[1]:
        raise Refused(f"{said} your function makes {new.shape[1]} new tokens; {wanted.shape[1]} are right: then every row has said {stop}.")
    if new.shape[1] != wanted.shape[1]:
        raise Refused(f"{said} there are {new.shape[1]} new tokens; {wanted.shape[1]} are right.")
    at = int((new.long() != wanted).any(0).nonzero()[0, 0])
    raise Refused(f"{said} new token {at} differs from the one without a cache. Do you take the scores of the last position, logits[:, -1], and their argmax?")


def _judge_calls(said: str, calls: list[tuple[int, int, bool, bool, int]], prompt: int, count: int) -> None:
    """Refuse calls that compute more than the new tokens, keep gradients, or run in training mode."""
    for number, (new, before, gradients, training, _) in enumerate(calls):
        if number and before == 0:
            raise Refused(
                f"{said} call {number + 1} of the model gets {new} tokens and no past: it computes the whole text again. Pass only the last token, and `past`."
                if new > 1 else f"{said} call {number + 1} gets no past, so the model has forgotten the text before. Pass the `past` of the call before."
            )
        if number and new > 1:
            raise Refused(f"{said} call {number + 1} of the model gets {new} tokens, and they are appended to those in `past`. Pass only the token that was chosen last.")
        if not number and new != prompt:
            raise Refused(f"{said} the first call gets {new} of the {prompt} tokens of the prompt. Pass the prompt once, as a whole: that is one pass for all of them.")
        if number and before != prompt + number - 1:
            raise Refused(f"{said} call {number + 1} has {before} tokens in its past; {prompt + number - 1} are right. Is `past` replaced by what the model returns?")
        if gradients:
            raise Refused(f"{said} the model runs with gradients, so every step keeps its activations. Use torch.no_grad() or torch.inference_mode().")
        if training:
            raise Refused(f"{said} your function switches the model to training.")
    if len(calls) > max(1, count):
        raise Refused(f"{said} the model is called {len(calls)} times; {count} are enough. The scores after the last token are not needed.")

# %% wrong: the whole text again
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    text = prompt
    for _ in range(count):
        token = model(text, None)[0][:, -1].argmax(-1, keepdim=True)
        text = torch.cat([text, token], 1)
    return text

# %% wrong: appended to those in
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    text, past = prompt, None
    for _ in range(count):
        logits, past = model(text, past)
        text = torch.cat([text, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return text

# %% wrong: of the prompt
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    text, past = prompt, None
    for i in range(prompt.shape[1]):
        logits, past = model(prompt[:, i : i + 1], past)
    for _ in range(count):
        token = logits[:, -1].argmax(-1, keepdim=True)
        text = torch.cat([text, token], 1)
        logits, past = model(token, past)
    return text

# %% wrong: with gradients
import torch


def generate(model, prompt, count, stop=None):
    chosen, tokens, past = [], prompt, None
    for _ in range(count):
        logits, past = model(tokens, past)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(tokens)
    return torch.cat([prompt, *chosen], 1)

# %% wrong: are enough
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    logits, past = model(prompt, None)
    chosen = []
    for _ in range(count):
        token = logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(token)
        logits, past = model(token, past)
    return torch.cat([prompt, *chosen], 1)

# %% wrong: goes on after the token
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    chosen, tokens, past = [], prompt, None
    for _ in range(count):
        logits, past = model(tokens, past)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(tokens)
    return torch.cat([prompt, *chosen], 1)

# %% wrong: the scores of the last position
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    chosen, tokens, past = [], prompt, None
    for _ in range(count):
        logits, past = model(tokens, past)
        tokens = logits[:, 0].argmax(-1, keepdim=True)
        chosen.append(tokens)
    return torch.cat([prompt, *chosen], 1)

# %% wrong: end when all are
import torch


@torch.no_grad()
def generate(model, prompt, count, stop=None):
    chosen, tokens, past = [], prompt, None
    for _ in range(count):
        logits, past = model(tokens, past)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        chosen.append(tokens)
        if stop is not None and (tokens == stop).any():
            break
    return torch.cat([prompt, *chosen], 1)


# %% wrong: 0 is a token like the others
import torch


@torch.inference_mode()
def generate(model, prompt, count, stop=None):
    """Return prompt and up to `count` new tokens; a row that said `stop` goes on with `stop`."""
    chosen, tokens, past = [], prompt, None
    done = torch.zeros_like(prompt[:, :1], dtype=torch.bool)
    while len(chosen) < count and not done.all():
        logits, past = model(tokens, past)
        tokens = logits[:, -1].argmax(-1, keepdim=True)
        if stop:
            tokens = torch.where(done, stop, tokens)
            done |= tokens == stop
        chosen.append(tokens)
    return torch.cat([prompt, *chosen], 1)
