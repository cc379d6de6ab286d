"""What every scheme must keep to, checked by trying: each breach names the method and shows the smallest example."""

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lengthlens.errors import UserError
from lengthlens.models.schemes.scheme import Positions, PositionScheme, Sizes
from lengthlens.models.schemes.spec import SCHEMES, SchemeSpec
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.contract import Breach, BreachError, breaches, called, check_task, demand, other_device

SIZES = Sizes(n_layers=2, n_heads=3, d_head=8, d_model=24, n_ctx=128)
BEYOND = (0, 1, 2, 3, 5, 9)  # sizes n that are tried, counted from the task's smallest
ALIKE = 1e-3  # of the largest value: the rounding of sums over a few hundred terms stays far below
FAR = (20, 40)
TRIES = 64  # of what may follow, at each size
MIXED = (4, 2, 6)  # of a batch, above the smallest size

Given = dict[tuple[str, int], Tensor]  # what a scheme gives, by method and layer


def check_scheme(name: str, task: Task | None = None, options: dict[str, object] | None = None) -> list[Breach]:
    """Everything that a scheme does not keep to; empty for one that is sound.

    Declarations first; then shapes and types of what it adds, that a block of queries is a block of the whole, that
    pairs with one code are treated alike, that every parameter is learned from, mixed sizes and other devices.
    Without a `task` the first one that the scheme takes is used.

    >>> check_scheme("relative")
    []
    """
    spec = SchemeSpec.of(name, options)
    first = breaches(partial(declarations, spec.scheme)) or breaches(partial(building, spec, task))
    if first:
        return first
    trial = Trial(spec, task or taken_by(spec))
    looks = codes, alike, blocks, gradients, mixed_sizes, causal, devices
    return breaches(partial(shapes, trial)) or breaches(*(partial(look, trial) for look in looks))


class Trial(NamedTuple):
    """A scheme on a task."""

    spec: SchemeSpec
    task: Task

    def made(self, device: str = "cpu") -> PositionScheme:
        """The scheme with every parameter moved off its first value, where it may hide what it multiplies."""
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.default_generator.manual_seed(0)
            scheme = self.spec.build(self.task, SIZES).eval()
            for parameter in scheme.parameters():
                if not parameter.is_meta:
                    parameter.data.add_(0.5 * torch.randn_like(parameter))
        return scheme

    def sizes(self) -> list[int]:
        largest = self.task.max_scale or 10**6
        return [n for n in (self.task.min_scale + more for more in BEYOND) if n <= largest]

    def far(self) -> list[int]:
        """Sizes far beyond these, where a scheme may do what it does not do nearby."""
        most = self.task.max_scale or max(FAR)
        return [n for n in FAR if self.sizes()[-1] < n <= most and self.task.length(n) < SIZES.n_ctx]

    def tokens(self, n: int, rows: int = 1) -> Tensor:
        return self.task.sample(n, rows, torch.Generator().manual_seed(n)).tokens


def taken_by(spec: SchemeSpec) -> Task:
    """The first task that a scheme does not refuse, small ones first."""
    for task in TASKS.values():
        try:
            spec.build(task, SIZES)
            return task
        except UserError:
            continue
    raise UserError(f"scheme '{spec.name}' refuses every task: name one that it takes")


def building(spec: SchemeSpec, task: Task | None) -> None:
    task = task or called("__init__", taken_by, spec, where="for any task")
    called("__init__", spec.build, task, SIZES, where=f"for task '{task.name}'")


def declarations(scheme: type[PositionScheme]) -> None:
    for name in ("name", "family", "summary", "relation_in_words"):
        text = getattr(scheme, name, None)
        demand(isinstance(text, str) and bool(text), name, f"it must be a text, not {text!r}")
    known = SCHEMES.get(scheme.name) is not None and scheme.family != "none"
    demand(bool(scheme.acts()) or not known, "score", "it acts in none of its places")


class Content(NamedTuple):
    """What attention of a layer has."""

    q: Tensor  # [row, pos, head, d_head]
    k: Tensor  # [row, pos, head, d_head]
    x: Tensor  # [row, pos, d_model], the layer's input

    def of(self, rows: slice) -> "Content":
        return Content(*(each[rows] for each in self))


def content(rows: int, length: int, device: str = "cpu") -> Content:
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, rows, length, SIZES.n_heads, SIZES.d_head, generator=generator).to(device)
    return Content(q, k, torch.randn(rows, length, SIZES.d_model, generator=generator).to(device))


def given(
    scheme: PositionScheme,
    tokens: Tensor,
    n: int | Tensor,
    where: str,
    queries: slice | None = None,
    seen: Content | None = None,
) -> Given:
    """Whatever the scheme gives for a block of queries of these tokens; rotations as their dot products.

    Vectors are [1|row, pos, d_model], all else [1|row, 1|head, query, key].
    """
    rows, length = tokens.shape
    scale = torch.full((rows,), n, device=tokens.device) if isinstance(n, int) else n
    positions: Positions = called("positions", scheme.positions, tokens, scale, where=where)
    plain_q, plain_k, x = seen or content(rows, length, str(tokens.device))
    queries = queries or slice(0, length)
    what = {(place, 0): _asked(scheme, place, positions, where=where) for place in ("embed", "embed_qk")}
    for layer in range(SIZES.n_layers):
        acts, block, q, k = scheme.acts_in(layer), (layer, positions, queries), plain_q, plain_k
        if "read" in acts:
            hook = partial(what.setdefault, ("read", layer))  # which gives back what it keeps
            called("read", scheme.take_in, layer, x, positions, hook, where=where)
        if "rotate" in acts:
            turn = partial(called, "rotate", scheme.rotate_in, layer, where=where)
            q, k = turn(q, positions), turn(k, positions, True)
            what["rotate", layer] = torch.einsum("bqhd,bkhd->bhqk", q[:, queries], k[:, : queries.stop])
        what["score", layer] = _asked(scheme, "score", *block, q[:, queries], k[:, : queries.stop], where=where)
        what["factor", layer] = _asked(scheme, "factor", *block, where=where)
    return {place: value for place, value in what.items() if value is not None}


def _asked(scheme: PositionScheme, method: str, *arguments: Any, where: str) -> Any:
    """What a method gives; if it looks for a size that it was not given, the breach says how to be given one."""
    try:
        return called(method, getattr(scheme, method), *arguments, where=where)
    except BreachError as wrong:
        if scheme.uses_scale or "NoneType" not in wrong.breach.what:
            raise
        hint = "positions.scale is None unless the class says uses_scale = True"
        raise BreachError(method, f"{wrong.breach.what} ({hint})") from wrong


OF_POSITION = ("embed", "embed_qk", "read")  # what is given for each position; all else is for pairs


def without_later(what: Given) -> Given:
    """The same without what follows a query: what positions have as it is, and 0 at later keys."""
    return {place: value if place[0] in OF_POSITION else value.tril() for place, value in what.items()}


def shapes(trial: Trial) -> None:
    """Shapes, finite numbers of the model's type, at short and longer inputs and on several rows."""
    scheme = trial.made()
    for n in (*trial.sizes(), *trial.far()):
        tokens = trial.tokens(n, rows=3)
        length, where = tokens.shape[1], f"at n = {n} on three rows of {tokens.shape[1]} tokens"
        for (place, _), value in given(scheme, tokens, n, where).items():
            if place == "read":
                fits = value.dim() >= 3 and value.shape[:3] == (3, length, SIZES.n_heads)
                demand(
                    fits, place, f"{where} it gives the shape {list(value.shape)}, and must give [row, pos, head, …]"
                )
                continue
            embeds, heads = place.startswith("embed"), ((1, SIZES.n_heads), (length,), (length,))
            rest = ((length,), (SIZES.d_model,)) if embeds else heads
            words = "[1 or row, pos, d_model]" if embeds else "[1 or row, 1 or head, query, key]"
            fits = value.dim() == 1 + len(rest) and value.shape[0] in (1, 3)
            fits = fits and all(size in allowed for size, allowed in zip(value.shape[1:], rest))
            demand(fits, place, f"{where} it gives the shape {list(value.shape)}, and must give {words}")
            wrong = f"{where} it must give {torch.get_default_dtype()}, not {value.dtype}"
            demand(value.dtype == torch.get_default_dtype(), place, wrong)
            finite = (value if embeds else value.tril()).isfinite().all()
            demand(bool(finite), place, f"{where} it gives numbers that are not finite")


def codes(trial: Trial) -> None:
    """φ gives whole numbers [*broadcast, component], the same whichever way a pair is asked for."""
    scheme, position, n = trial.made(), torch.arange(9), trial.sizes()[-1]
    sizes = torch.tensor([trial.task.min_scale, n])
    block = called("phi", scheme.phi, position[:, None], position, sizes[:, None, None], where="for many pairs")
    shaped = isinstance(block, Tensor) and not block.is_floating_point() and block.shape[:-1] == (2, 9, 9)
    is_now = f"{block.dtype} of shape {list(block.shape)}" if isinstance(block, Tensor) else repr(block)
    demand(shaped, "phi", f"for sizes [2, 1, 1], queries [9, 1] and keys [9] it gives {is_now}, not [2, 9, 9, code]")
    for row, (i, j) in ((row, pair) for row in (0, 1) for pair in ((0, 0), (7, 2), (8, 8))):
        one = called("phi", scheme.phi, *torch.tensor([i, j, int(sizes[row])]), where=f"for the pair ({i}, {j})")
        alone, within = one.tolist(), block[row, i, j].tolist()
        demand(alone == within, "phi", f"the pair ({i}, {j}) has the code {alone} alone and {within} among others")
        text = called("describe", scheme.describe, tuple(alone), where=f"for the code {tuple(alone)}")
        demand(isinstance(text, str), "describe", f"it must give a text for the code {tuple(alone)}, not {text!r}")


def alike(trial: Trial) -> None:
    """Pairs with one code are treated alike, whatever the parameters: tried on inputs of equal tokens' content."""
    scheme = trial.made()
    if scheme.family == "contextual" or not scheme.has_codes:
        return  # its codes speak of what content may decide, too
    first: dict[tuple[int, ...], tuple[Tensor, str]] = {}
    for n in trial.sizes():
        tokens = trial.tokens(n)
        query, key = torch.tril_indices(tokens.shape[1], tokens.shape[1])
        same = Content(*(each.expand(1, tokens.shape[1], *each.shape[2:]) for each in content(1, 1)))
        columns, names = [], []
        for (place, _), value in given(scheme, tokens, n, f"at n = {n}", seen=same).items():
            vectors = place.startswith("embed")
            parts = [value[0, query], value[0, key]] if vectors else [value[0][:, query, key].T]
            columns += parts
            names += [place] * sum(part.shape[1] for part in parts)
        if not columns:
            return
        done, code = torch.cat(columns, 1).detach(), scheme.phi(query, key, torch.tensor(n))
        largest = max(1.0, float(done.abs().max()))
        for pair, one in enumerate(map(tuple, code.tolist())):
            here = f"(query {int(query[pair])}, key {int(key[pair])}) at n = {n}"
            before, there = first.setdefault(one, (done[pair], here))
            gap = (done[pair] - before).abs()
            column = int(gap.argmax())
            both = f"{there} and {here} have one code, {one}, and are treated differently"
            numbers = f"{names[column]} gives {float(before[column]):.4g} and {float(done[pair, column]):.4g}"
            demand(float(gap[column]) <= ALIKE * largest, "phi", f"{both}: {numbers}")


def blocks(trial: Trial) -> None:
    """What a block of queries is given is that block of what all are given."""
    scheme, n = trial.made(), trial.sizes()[-1]
    tokens, there = trial.tokens(n), content(1, trial.tokens(n).shape[1])
    length, whole = tokens.shape[1], given(scheme, tokens, n, f"at n = {n}", seen=there)
    for start, stop in ((0, 1), (2, 5), (length - 1, length)):
        where = f"at n = {n}, for queries {start} to {stop - 1}"
        for place, part in given(scheme, tokens, n, where, slice(start, stop), there).items():
            if place[0] not in OF_POSITION:
                wanted = whole[place][:, :, start:stop, :stop]
                shaped = part.shape[2:] == wanted.shape[2:]
                demand(
                    shaped, place[0], f"{where} it gives the shape {list(part.shape)}: keys run from 0 to {stop - 1}"
                )
                same = torch.allclose(part.tril(start), wanted.tril(start), atol=1e-4, rtol=1e-4)
                demand(same, place[0], f"{where} it gives other numbers than for all queries at once")


def gradients(trial: Trial) -> None:
    """Every parameter has a gradient, and it is finite."""
    scheme, n = trial.made().train(), trial.sizes()[-1]
    where = f"at n = {n}, in training,"
    values = without_later(given(scheme, trial.tokens(n, rows=2), n, where)).values()
    total = sum((value.square().sum() for value in values), torch.zeros(()))
    if total.requires_grad:
        called("score", total.backward, where=where)
    for name, parameter in scheme.named_parameters():
        learned = parameter.grad is not None and math.isfinite(float(parameter.grad.abs().sum()))
        demand(learned, "__init__", f"parameter '{name}' gets no finite gradient {where[:-1]}: nothing depends on it")


def mixed_sizes(trial: Trial) -> None:
    """Rows of different sizes in one batch are treated as each would be alone."""
    scheme, task = trial.made(), trial.task
    if not scheme.uses_scale:
        return
    sizes = [task.min_scale + more for more in MIXED]
    batch, where = task.sample(sizes, generator=torch.Generator().manual_seed(0)), f"on rows of sizes {sizes}"
    there = content(*batch.tokens.shape)
    together = without_later(given(scheme, batch.tokens, batch.scale, where, seen=there))
    for row, n in enumerate(sizes):
        one = slice(row, row + 1)
        alone = given(scheme, batch.tokens[one], batch.scale[one], f"at n = {n}", seen=there.of(one))
        for place, value in without_later(alone).items():
            among = together[place][one] if len(together[place]) > 1 else together[place]
            same = torch.allclose(value, among, atol=1e-4, rtol=1e-4)
            demand(same, place[0], f"the row of size {n} is treated otherwise {where} than alone")


def causal(trial: Trial) -> None:
    """What comes after a query makes no difference to it, the size being given: tried at short and long inputs, whose
    rows differ in what follows, from another position on in each: random tokens, first each token in turn or an earlier
    one again, and other content."""
    scheme, task, chance = trial.made(), trial.task, torch.Generator().manual_seed(0)
    for n in (*trial.sizes(), *trial.far()):
        tokens, where, row = trial.tokens(n), f"at n = {n}", torch.arange(TRIES)[:, None]
        length, words = tokens.shape[1], len(task.vocab)
        position, stop = torch.arange(length), 1 + row % (length - 1)  # [pos], [row, 1]
        before = position < stop  # [row, pos]
        first = torch.where(row % 2 == 0, row % words, tokens[0, (stop - 1 - row % 3).clamp(min=0)])
        other = torch.randint(words, (TRIES, length), generator=chance).scatter_(1, stop, first)
        other, here = torch.where(before, tokens, other), content(1, length)
        later = Content(*(torch.where(before.view(*before.shape, *[1] * (x.dim() - 2)), x, 1 - x) for x in here))
        whole = without_later(given(scheme, tokens, n, where, seen=here))
        for place, value in without_later(given(scheme, other, n, where, seen=later)).items():
            gap = (value - whole[place]).abs()
            gap = gap.flatten(2).amax(2) if place[0] in OF_POSITION else gap.amax((1, 3))  # [1 or row, pos]
            ahead = ((gap > ALIKE * whole[place].abs().max().clamp(min=1)) & before).nonzero()
            if len(ahead):
                changed, at = int(stop[ahead[0, 0]]), int(ahead[0, 1])
                told = f"the tokens from position {changed} on change what position {at} gets"
                raise BreachError(place[0], f"{where} {told}: a scheme must not look ahead")


def devices(trial: Trial) -> None:
    """Nothing is made on the CPU for tokens that are elsewhere; tried on a device without storage."""
    n = trial.sizes()[-1]
    try:
        scheme = trial.made("meta")
    except Exception:
        return  # it looks at numbers while it is made
    try:
        for (place, _), value in given(scheme, trial.tokens(n, rows=2).to("meta"), n, "on another device").items():
            demand(value.device.type == "meta", place, f"for tokens elsewhere it gives a tensor on '{value.device}'")
    except BreachError as error:
        cause = error.__cause__
        if cause is None:
            raise
        other_device(error.breach.method, partial(raising, cause), "meta")


def raising(error: BaseException) -> None:
    raise error


# -- what comes from outside is checked once, before anything is trained with it ------------------------------------

_sound: set[tuple[str, str]] = set()  # what was sound when this process tried it: kind and fingerprint


def require_sound(config: Any) -> None:
    """Refuse a task or scheme from outside that does not keep to its contract; ours are checked by the tests.

    `config` is a `RunConfig` or a `ModelConfig`, which are made of schemes and so are not imported here.
    """
    again = dataclasses.replace(config)  # refuses a definition that was changed meanwhile
    for kind, origin in again.plugins.items():
        if (kind, origin["fingerprint"]) not in _sound:
            if kind == "task":
                wrong = check_task(TASKS[origin["name"]])
            else:
                names = {field.name for field in dataclasses.fields(again.spec.scheme.Options)}
                options = {key: value for key, value in again.spec.options.items() if key in names}
                wrong = check_scheme(origin["name"], TASKS.get(str(again.task)), options)
            if wrong:
                more = f"; lengthlens check has {len(wrong) - 1} more" if len(wrong) > 1 else ""
                raise UserError(f"{kind} '{origin['name']}' does not keep to its contract: {wrong[0]}{more}")
            _sound.add((kind, origin["fingerprint"]))
