"""Position surgery: at inference, replace what the position embedding contributes, in all layers and heads or in some.

`surgery` is a context manager. Inside it the model is the same but for its position codes, so that any difference in
what it answers is owed to them. What can be put in their place:

=====================  ===================================================================================
``"ideal"``            the ideal relation, filled with the codes of the training range (`probes/codes.py`)
``"displaced"``        a control: the same with the key beside each source taken for it
a model or a run       the position embedding of that one
a scheme's name        that scheme, untrained: ``"none"`` takes positions away, ``"alibi"`` gives fixed slopes
``scale=40``           the same scheme, told another input size n
``shift=5``            every token 5 positions later
``clamp=20``           no token later than position 20
``shuffle=0``          positions permuted among the tokens after the first, by a seed
``stretch=40``         the codes of a long input: tokens at positions of an input of n = 40
``places=[…]``         any positions
=====================  ===================================================================================

In some layers and heads only: biases, factors and rotations belong to heads and are replaced there. Vectors that are
added to the embedding are replaced in what these heads read (queries, keys and values), and stay in the residual stream
for all others; in later layers, what earlier ones made of them stays.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F
from transformer_lens.hook_points import HookPoint

from lengthlens.errors import UserError
from lengthlens.models.attention import log_temperature
from lengthlens.models.schemes.scheme import Positions, PositionScheme, scheme_of
from lengthlens.models.schemes.spec import SchemeSpec
from lengthlens.probes.codes import Borrowed, Derived, Moved
from lengthlens.probes.network import Head, all_heads, exact_by_scale, head_named, largest_within, task_of
from lengthlens.probes.probe import OURS, Probe, Row
from lengthlens.probes.steps import place_tokens
from lengthlens.probes.stretch import stretched_match
from lengthlens.runs.run import Run
from lengthlens.tasks import Task

if TYPE_CHECKING:
    from lengthlens.probes.network import Context


@contextmanager
def surgery(
    model: Any,
    codes: Any = None,
    *,
    scale: int | None = None,
    shift: int = 0,
    clamp: int | None = None,
    shuffle: int | None = None,
    stretch: int | None = None,
    places: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int | str | Head] | None = None,
    codes_of: int | None = None,
    other: Literal["each", "one"] = "each",
) -> Iterator[PositionScheme]:
    """Inside the block, the position embedding of `model` contributes something else.

    Arguments:
        model: a model of this project; it is itself again after the block.
        codes: whose codes: ``"ideal"``, a scheme's name, a model, a run, a `PositionScheme`; that of the model if None.
        scale: the input size n that the scheme is told.
        shift, clamp, shuffle, places: where tokens stand, in the order stretch, places, shift, clamp, shuffle.
        stretch: the n of a longer input at whose positions the tokens stand.
        layers: the layers in which; all if None.
        heads: the heads in which: numbers, or names such as ``L0H3`` whatever `layers` says; all if None.
        codes_of: for ``"ideal"``, the n whose codes are borrowed; the largest in training if None.
        other: for ``"ideal"``, whether keys that share a counterpart weigh each, or together as one.

    Result: the position embedding that acts inside the block.

    Errors: UserError for a model without a position embedding of this project, a layer or head that it does not have,
    sizes that do not fit, and where what is asked for has no meaning for the scheme.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> model = copy_by_hand("lbpe")
    >>> with surgery(model, scale=1):  # it attends to i−j = n, and now believes that n is 1
    ...     model.task.render(model("^ 7 3 5 =").argmax(-1)[0, 3:])
    '3 5'
    """
    own = scheme_of(model)
    if own is None:
        raise UserError("the model has no position embedding of this project, so that there is nothing to replace")
    cfg = model.cfg
    at = _Where(chosen_heads(model, layers, heads), cfg.n_heads, layers is heads is None)
    new = _replacement(model, own, codes, codes_of, other)
    stand_in = None

    def places_of(tokens: Tensor) -> Tensor:
        """Where tokens [row, pos] stand, by what was asked for. [pos]"""
        place = torch.arange(tokens.shape[1])
        if stretch is not None:
            short = torch.unique(_task(own).scale_of(tokens))
            if len(short) > 1:
                raise UserError(f"inputs of one size at a time are stretched, not {short.tolist()}")
            if stretch < int(short):
                raise UserError(f"an input of n = {int(short)} does not fit into one of n = {stretch}")
            place = next(place_tokens(_task(own), int(short), stretch))[: tokens.shape[1]]
        if places is not None:
            if len(places) != len(place):
                raise UserError(f"{len(places)} places were given for {len(place)} tokens: one for each is needed")
            place = torch.as_tensor(places)
        place = place + shift
        if clamp is not None:
            place = place.clamp(max=clamp)
        if shuffle is not None:  # the first token stays, as the mark at which heads rest
            order = torch.randperm(len(place) - 1, generator=torch.Generator().manual_seed(shuffle))
            place = torch.cat([place[:1], place[1:][order]])
        return place

    if stretch is not None:
        scale, stand_in = stretch, _task(own).sample(stretch, 1, torch.Generator().manual_seed(0)).tokens
    moved = shift != 0 or any(asked is not None for asked in (stretch, places, clamp, shuffle))
    if moved or scale is not None:
        new = Moved(new, places_of if moved else None, scale, stand_in)
    operated = Operated(own, new, at)
    with ExitStack() as stack:
        for act in operated.acts():
            stack.enter_context(_hook_points(model, act))
        for layer in at.heads:
            block = model.blocks[layer]
            inputs = _Inputs(operated, layer, block)
            stack.callback(block.ln1.register_forward_hook(inputs.keep).remove)
            stack.callback(block.attn.register_forward_pre_hook(inputs.replaced).remove)
        model.pos_embed = operated
        stack.callback(setattr, model, "pos_embed", own)
        yield operated


class _Where:
    """The heads in which codes are replaced, by layer; `whole` where that is everywhere, the residual stream too."""

    def __init__(self, heads: list[Head], number: int, whole: bool) -> None:
        self.number, self.whole = number, whole
        self.heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self.heads.setdefault(layer, []).append(head)

    def mixed(self, layer: int, new: Tensor, own: Tensor, after: int) -> Tensor:
        """`new` in the chosen heads of a layer and `own` in the others; heads are `after` places before the last."""
        if len(self.heads[layer]) == self.number:
            return new
        mask = torch.zeros(self.number, dtype=torch.bool, device=new.device)
        mask[self.heads[layer]] = True
        return torch.where(mask.view(-1, *[1] * after), new, own)


class Operated(Derived):
    """A scheme, `inner`, in whose place another, `new`, acts in some layers and heads."""

    def __init__(self, inner: PositionScheme, new: PositionScheme, at: _Where) -> None:
        super().__init__(inner)
        self.own, self.at = inner, at  # a part of this module, so that its parameters remain those of the model
        self.other = (new,)  # a tuple: its parameters are not this model's
        self.uses_scale = inner.uses_scale or new.uses_scale

    @property
    def new(self) -> PositionScheme:
        return self.other[0]

    def acts(self) -> list[str]:  # type: ignore[override]
        return list(dict.fromkeys([*self.own.acts(), *self.new.acts()]))

    def acts_in(self, layer: int) -> list[str]:
        return list(dict.fromkeys([*self.own.acts_in(layer), *self.new.acts_in(layer)]))

    def take_in(
        self, layer: int, x: Tensor, positions: Positions, hook: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.own.take_in(layer, x, positions.cache["own"], hook)
        self.new.take_in(layer, x, positions.cache["new"], hook)

    def positions(self, tokens: Tensor, scale: Tensor | None = None) -> Positions:
        own, new = self.own.positions(tokens, scale), self.new.positions(tokens, scale)
        known = own.scale if own.scale is not None else new.scale
        return Positions(tokens, own.position, known, own.limit, cache={"own": own, "new": new})

    def embed(self, positions: Positions) -> Tensor | None:
        whole, new = self.at.whole, positions.cache["new"]
        added = self.new.embed(new) if whole else self.own.embed(positions.cache["own"])
        new.cache["added"] = added
        return added

    def embed_qk(self, positions: Positions) -> Tensor | None:
        whole = self.at.whole
        return self.new.embed_qk(positions.cache["new"]) if whole else self.own.embed_qk(positions.cache["own"])

    def difference(self, act: str, positions: Positions) -> Tensor | None:
        """What the new scheme adds more than the model's in a place; None if that is nothing. [1|row, pos, d_model]"""
        own, new = (getattr(getattr(self, part), act)(positions.cache[part]) for part in ("own", "new"))
        if own is None and new is None:
            return None
        difference = torch.as_tensor(0 if new is None else new) - (0 if own is None else own)
        return difference if bool(difference.any()) else None

    def rotate_in(self, layer: int, x: Tensor, positions: Positions, keys: bool = False) -> Tensor:
        own = self.own.rotate_in(layer, x, positions.cache["own"], keys)
        if layer not in self.at.heads:
            return own
        new = self.new.rotate_in(layer, x, positions.cache["new"], keys)
        width = max(own.shape[-1], new.shape[-1])  # a scheme may change it; zeros add nothing to a product
        new, own = (F.pad(each, (0, width - each.shape[-1])) for each in (new, own))
        return self.at.mixed(layer, new, own, 1)

    def score(self, layer: int, positions: Positions, queries: slice, q: Tensor, k: Tensor) -> Tensor | None:
        return self._mixed(layer, 0.0, lambda part, where: part.score(layer, where, queries, q, k), positions)

    def factor(self, layer: int, positions: Positions, queries: slice) -> Tensor | None:
        return self._mixed(layer, 1.0, lambda part, where: part.factor(layer, where, queries), positions)

    def _mixed(
        self,
        layer: int,
        nothing: float,
        give: Callable[[PositionScheme, Positions], Tensor | None],
        positions: Positions,
    ) -> Tensor | None:
        """What the new scheme gives in the chosen heads of a chosen layer, and the model's scheme elsewhere."""
        here = self.at.heads.get(layer, [])
        new = give(self.new, positions.cache["new"]) if here else None
        if len(here) == self.at.number:
            return new
        own = give(self.own, positions.cache["own"])
        if not here or (new is None and own is None):
            return own
        empty = torch.full((), nothing, device=positions.tokens.device)
        return self.at.mixed(layer, empty if new is None else new, empty if own is None else own, 2)


class _Inputs:
    """What attention of one layer reads, under surgery: two hooks."""

    def __init__(self, operated: Operated, layer: int, block: Any) -> None:
        self.operated, self.layer, self.block = operated, layer, block
        self.read: Tensor | None = None  # the residual stream before the norm

    def keep(self, norm: Any, args: tuple[Tensor, ...], out: Tensor) -> None:
        self.read = args[0]
        if isinstance(self.operated.new, Borrowed):
            self.operated.new.inputs[self.layer] = args[0]

    def replaced(self, attention: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Queries, keys and values of the chosen heads made from the stream with other vectors in it."""
        query, key, value, placement, *further = args  # further: the queries that are wanted, if not all
        operated, positions = self.operated, placement.positions
        if operated.at.whole:
            return None
        added, added_qk = (operated.difference(act, positions) for act in ("embed", "embed_qk"))
        if added is None and added_qk is None:
            return None
        if query.dim() == 4:
            raise UserError("surgery on added vectors needs set_use_attn_in and set_use_split_qkv_input to be off")
        heads, changed = self.block.cfg.n_heads, (query, key, value)
        if added is not None:
            assert self.read is not None
            other = self.block.ln1.forward(self.read + added)
            own = operated.own.embed_qk(positions.cache["own"])
            changed = (other, other, other) if own is None else (other + own, other + own, other)
        if added_qk is not None:
            changed = changed[0] + added_qk, changed[1] + added_qk, changed[2]
        pairs = ((new[:, :, None], own[:, :, None]) for new, own in zip(changed, args))
        mixed = [operated.at.mixed(self.layer, new, own, 1) for new, own in pairs]
        return (*(x.expand(-1, -1, heads, -1) for x in mixed), placement, *further)


@contextmanager
def _hook_points(model: Any, act: str) -> Iterator[None]:
    """The hook points of a place in which the model's scheme does not act, for a while."""
    places = {
        "embed": [(model, "hook_pos_embed")],
        "embed_qk": [(model, "hook_qk_embed")],
        "score": [(block.attn, "hook_pos_score") for block in model.blocks],
        "read": [(block.attn, "hook_gate") for block in model.blocks],
        "rotate": [(block.attn, name) for block in model.blocks for name in ("hook_rot_q", "hook_rot_k")],
    }.get(act, [])
    missing = [(module, name) for module, name in places if not hasattr(module, name)]
    for module, name in missing:
        setattr(module, name, HookPoint())
    if missing:
        model.setup()
    try:
        yield
    finally:
        for module, name in missing:
            delattr(module, name)
        if missing:
            model.setup()


def chosen_heads(model: Any, layers: Sequence[int] | None, heads: Sequence[int | str | Head] | None) -> list[Head]:
    """The heads meant: numbers count in each of the layers, names and pairs (layer, head) for themselves.

    >>> from lengthlens.models.by_hand import induction_by_hand
    >>> chosen_heads(induction_by_hand(), [1], None), chosen_heads(induction_by_hand(), None, ["L0H1"])
    ([(1, 0), (1, 1)], [(0, 1)])
    """
    every = all_heads(model)
    within = dict.fromkeys(layer for layer, _ in every) if layers is None else layers
    last, width = every[-1][0], every[-1][1] + 1
    for layer in within:
        if not 0 <= layer <= last:
            raise UserError(f"there is no layer {layer}: the nearest is {min(max(layer, 0), last)}, of 0 to {last}")
    named: list[str | Head] = []
    for each in range(width) if heads is None else heads:
        named += [(layer, each) for layer in within] if isinstance(each, int) else [each]
    return sorted({head_named(model, each) for each in named})


# -- what is put in place ----------------------------------------------------------------------------------------


def _replacement(model: Any, own: PositionScheme, codes: Any, codes_of: int | None, other: Any) -> PositionScheme:
    """The scheme whose codes are taken."""
    if codes is None:
        return own
    if isinstance(codes, str) and codes in RELATIONS:
        trained, device = model.config.train_ctx, model.cfg.device
        scaled = model.config.score_scaling == "log"
        temperature = (lambda length: log_temperature(length, trained, device)) if scaled else None
        return Borrowed(own, codes_of or trained_to(model), list(model.blocks), other, temperature, RELATIONS[codes])
    if isinstance(codes, str):
        spec = SchemeSpec.parse(codes)
        name, new = spec.label, spec.build(own.task, own.sizes)
    else:
        donor = codes.model() if isinstance(codes, Run) else codes
        scheme = donor if isinstance(donor, PositionScheme) else scheme_of(donor)
        if scheme is None:
            kinds = f"{', '.join(RELATIONS)}, a scheme's name, a model, a run or a position embedding"
            raise UserError(f"codes come from {kinds}, not from {type(codes).__name__} {codes!r}"[:300])
        name, new = scheme.name, copy.deepcopy(scheme)  # a copy, which no other model's mode changes
    for size in ("n_layers", "n_heads", "d_head", "d_model"):
        here, there = getattr(own.sizes, size), getattr(new.sizes, size)
        if here != there:
            raise UserError(f"codes of '{name}' are made for {size}={there}, and this model has {size}={here}")
    return new.to(model.cfg.device).eval()


RELATIONS = {"ideal": False, "displaced": True}  # whether the key beside each source is taken for it


def trained_to(model: Any) -> int:
    """The largest n in training, by the longest training sequence that the model's config names."""
    task, length = _task(model.pos_embed), model.config.train_ctx
    if task.length(task.min_scale) > length:
        raise UserError(f"no input of task '{task.name}' is as short as the {length} tokens of training")
    return largest_within(task, length)


def _task(scheme: PositionScheme) -> Task:
    if scheme.task is None:
        raise UserError("the model was built without a task, which this surgery needs")
    return scheme.task


# -- does the ideal relation repair it? ----------------------------------------------------------------------------

AS_TRAINED, IDEAL = "own", "ideal"
SURGERIES: dict[str, dict[str, Any]] = {
    AS_TRAINED: {},
    IDEAL: {"codes": "ideal"},
    "ideal, others as one": {"codes": "ideal", "other": "one"},
    "displaced": {"codes": "displaced"},
    "none": {"codes": "none"},
}
IN_RANGE = "borrowed in range"
SHARE = 0.7  # of the largest n in training: whose codes are borrowed for the control in range
N_INSTANCES = 128  # of each input size: a share of 0.9 is known to about 0.03


def healing(
    model: Any,
    task: Task | None = None,
    scales: Sequence[int] = (20, 40),
    *,
    train_max: int | None = None,
    rows: int = N_INSTANCES,
) -> pd.DataFrame:
    """What does a model that fails on long inputs lack? Exact match there, as it is and under each kind of surgery.

    Each answers one question about a model that is accurate in range and fails beyond it:

    - *ideal*: every pair has the code of its counterpart in range. If this repairs the answers, the codes of long
      inputs were at fault.
    - *ideal, others as one*: the same, and attention does not spread over more keys. If only this repairs them, the
      spreading was at fault, too.
    - *borrowed in range*: the ideal relation at the largest n in training, with codes of a smaller one. If this harms,
      the network does not do the circuit's steps by its codes alone. It carries positions on in its residual stream,
      where surgery on codes does not reach, or goes by content; then the ideal relation cannot repair it either.
    - *displaced*: a control that must not repair. The ideal relation, with the key beside each source taken for it.
    - *none*: no position embedding at all.

    Arguments:
        model: a model of this project.
        task: the task; that of the model if None.
        scales: the input sizes n beyond training.
        train_max: the largest n in training, whose codes are borrowed; by the model's config if None.
        rows: instances of each input size.

    Result: a row for each surgery and n: surgery, scale, exact_match; the control in range is at `train_max`.

    Errors: UserError for a task or scheme that has no ideal relation, in one sentence.

    >>> from lengthlens.models.by_hand import copy_by_hand
    >>> table = healing(copy_by_hand("lbpe"), scales=[12], train_max=6, rows=16)
    >>> dict(zip(table["surgery"], table["exact_match"]))["ideal"]
    1.0
    """
    task = task_of(model, task)
    most = train_max or trained_to(model)
    asked = {name: ({**how, "codes_of": most} if how else {}, scales) for name, how in SURGERIES.items()}
    less = max(task.min_scale, int(SHARE * most))
    if less == most:
        raise UserError(f"train_max must be above {less}, so that codes of a smaller n can be borrowed in range")
    asked[IN_RANGE] = {"codes": "ideal", "codes_of": less}, [most]
    matches = []
    for name, (how, sizes) in asked.items():
        with surgery(model, **how):
            exact = exact_by_scale(model, task, sizes, rows)
        matches += [{"surgery": name, "scale": n, "exact_match": match} for n, match in exact.items()]
    return pd.DataFrame(matches)


class SurgeryProbe(Probe):
    """Exact match beyond the training range, as trained and under each kind of surgery, which `relation` names.

    The rows of the model as trained have in `reason` why it fails there, by stretching (`probes/stretch.py`).
    """

    name, measures = "surgery", ("surgery_exact_match",)
    words = OURS["surgery"].words
    factors = (2, 4)  # times the training range: where it is tried

    def rows(self, context: "Context") -> list[Row]:
        return self.rows_at(self.scales(context.train_max), context.subject.model, context.task, context.train_max)

    @classmethod
    def scales(cls, train_max: int) -> list[int]:
        """The input sizes at which it is tried."""
        return [factor * train_max for factor in cls.factors]

    def rows_at(self, scales: Sequence[int], model: Any, task: Task, train_max: int) -> list[Row]:
        """The rows at these input sizes."""
        measure, about = self.measures[0], {"samples": N_INSTANCES}
        try:
            table = healing(model, task, scales, train_max=train_max)
            cause = stretched_match(model, task, train_max, scales).cause
        except UserError as error:  # no ideal relation, or positions that the scheme does not have
            return [{"measure": measure, "reason": str(error)}]
        return [
            {"measure": measure, "scale": n, "value": match, "relation": name, **about}
            | ({"reason": cause} if name == AS_TRAINED else {})
            for name, n, match in table.itertuples(index=False)
        ]

    def lines(self, rows: Sequence[Row]) -> list[str]:
        ideal = [row for row in rows if row["measure"] == self.measures[0] and row["relation"] == IDEAL]
        texts = ", ".join(f"{row['value']:.2f} at n = {row['scale']}" for row in ideal)
        return [f"exact match with the codes of the training range: {texts}"] if ideal else []
