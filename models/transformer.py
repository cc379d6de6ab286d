"""A decoder-only Transformer with any position embedding, under HookedTransformer's names."""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Int
from safetensors.torch import load as load_tensors
from torch import Tensor, nn
from torch.nn import functional as F
from transformer_lens.ActivationCache import ActivationCache
from transformer_lens.hook_points import HookPoint
from transformer_lens.HookedRootModule import HookedRootModule

from lengthlens.errors import UserError, unknown
from lengthlens.models.attention import (
    Attention,
    AttentionContext,
    Block,
    Embed,
    Unembed,
    dead_hook,
    log_temperature,
    make_norm,
    outside,
    watched,
)
from lengthlens.models.config import LensConfig, ModelConfig
from lengthlens.models.devices import sent
from lengthlens.models.foreign import read_hooked, to_bridge
from lengthlens.models.saved import download, is_local, read_saved, save, upload
from lengthlens.models.schemes import Positions, Sizes, schemes_in
from lengthlens.tasks import TASKS, Task
from lengthlens.tasks.task import END
from lengthlens.values import header_within, parsed, within_memory

ReturnType = Literal["logits", "loss", "both"] | None
NamesFilter = str | Sequence[str] | Callable[[str], bool] | None
LARGE = 1 << 24  # weights from which on memory is looked at before they are made
NO_TARGET = -100  # torch's own mark for a place that the loss leaves out


class Output(NamedTuple):
    """What ``return_type="both"`` gives."""

    logits: Tensor
    loss: Tensor


class Stacked:
    """A weight of every layer as an attribute of the model, [layer, ...]."""

    def __init__(self, part: str, weight: str) -> None:
        self.part, self.weight = part, weight

    def __get__(self, model: "HookedModel", kind: object = None) -> Tensor:
        return torch.stack([getattr(getattr(block, self.part), self.weight) for block in model.blocks])


class HookedModel(HookedRootModule):
    """A pre-norm decoder whose hook names, tensor shapes, state-dict keys and `cfg` are HookedTransformer's.

    Made by `build`, `load` or `from_pretrained`. Call it with ids [row, pos] or a text to get logits
    [row, pos, d_vocab]; `run_with_cache`, `run_with_hooks` and TransformerLens' tools work as on a HookedTransformer.
    Asking for a hook point that does not exist, or that does not fire as things stand, raises a `UserError`.

    >>> model = build(ModelConfig(task="copy", scheme="relative"))
    >>> logits, cache = model.run_with_cache("^ 7 3 =")
    >>> logits.shape, cache["pattern", 0].shape
    (torch.Size([1, 4, 14]), torch.Size([1, 4, 4, 4]))

    `config` is what it was built from, `cfg` the same for TransformerLens' tools, `pos_embed` the position embedding.
    """

    def __init__(self, config: ModelConfig, task: Task | None = None) -> None:
        super().__init__()
        self.config = config.resolved(task)
        self.task = task = task or (TASKS[config.task] if config.task else None)
        self.cfg = cfg = LensConfig.of(self.config)
        self.embed = Embed(cfg)
        sizes = Sizes(cfg.n_layers, cfg.n_heads, cfg.d_head, cfg.d_model, cfg.n_ctx)
        with torch.random.fork_rng(devices=[]):  # a scheme draws its initial values from torch's default generator
            torch.default_generator.manual_seed(config.seed)
            self.pos_embed = self.config.spec.build(task, sizes)
        acts = self.pos_embed.acts()
        self.blocks = nn.ModuleList(Block(cfg, layer, self.pos_embed.acts_in(layer)) for layer in range(cfg.n_layers))
        self.ln_final = make_norm(cfg)
        self.unembed = Unembed(cfg)
        self.hook_embed = HookPoint()  # [row, pos, d_model]
        if "embed" in acts:
            self.hook_pos_embed = HookPoint()  # [row, pos, d_model], added to the residual stream
        if "embed_qk" in acts:
            # Not hook_pos_embed: TransformerLens would count it as a part of the residual stream.
            self.hook_qk_embed = HookPoint()  # [row, pos, d_model]
        std = self.config.initializer_range or 0.8 / math.sqrt(cfg.d_model)
        generator = torch.Generator().manual_seed(config.seed)
        for part in (self.embed, self.blocks, self.unembed):  # as HookedTransformer draws them; biases stay zero
            for name, parameter in part.named_parameters():
                if name.rpartition(".")[2].startswith("W_") and not parameter.is_meta:
                    nn.init.normal_(parameter, std=std, generator=generator)
        self.setup()

    def setup(self) -> None:
        """Names every module for TransformerLens, but for schemes, which keep their names."""
        names = [(scheme, scheme.name) for scheme in schemes_in(self)]
        super().setup()
        for scheme, name in names:
            scheme.name = name

    def forward(
        self,
        input: str | Sequence[str] | Tensor,
        scale: int | Tensor | None = None,
        return_type: ReturnType = "logits",
        *,
        loss_per_token: bool = False,
        query_mask: Tensor | None = None,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        tokens: Tensor | None = None,
        queries: slice | None = None,
        checked: bool = False,
    ) -> Any:
        """Logits [row, pos, d_vocab], the next-token loss, both, or nothing.

        `input`: ids [row, pos], or text; rows may have different input sizes n. `scale` [row] is n; where the scheme
        needs it and it is not given, the task's rule infers it. On a GPU, ids and sizes are best given on the CPU: they
        are sent along and nobody waits. The host waits for ids that are on the GPU already, to see that they are in the
        vocabulary, unless they were `checked` before. The loss is the mean over all next tokens that are not padding,
        or over those where `query_mask` [row, pos-1] is true.

        `start_at_layer` takes the residual stream before that layer as input (and `tokens` beside it, for a loss or
        a scheme that looks at the tokens); `stop_at_layer` returns the residual stream before that layer.

        `queries` (from a start to a stop) asks for the output at these positions alone; the last block and what
        follows it are not computed at others. A mask over the whole sequence does not go with it.
        """
        if start_at_layer is None:
            residual, given = None, self._checked_tokens(input, checked)
        else:
            residual = cast(Tensor, input)
            no_tokens = torch.zeros(residual.shape[:2], dtype=torch.long, device=residual.device)
            given = no_tokens if tokens is None else tokens
        positions = self._positions(given, scale)
        residual = self.residual(positions, residual, slice(start_at_layer, stop_at_layer), queries)
        if stop_at_layer is not None:
            return residual
        if queries is not None and return_type != "logits":
            raise UserError("a loss is that of the whole sequence: give no queries")
        normalized = self.ln_final(residual)
        if return_type is None:
            return None
        logits = self.unembed(normalized)
        if return_type == "logits":
            return logits
        if return_type not in ("loss", "both"):
            raise UserError(f"return_type must be logits, loss, both or None, not {return_type!r}")
        if start_at_layer is not None and tokens is None:
            raise UserError("a loss needs the tokens: give them beside the residual stream")
        loss = self.loss_fn(logits, positions.tokens, loss_per_token, query_mask)
        return loss if return_type == "loss" else Output(logits, loss)

    def at(self, positions: Positions) -> Tensor:
        """Logits [row, pos, d_vocab] of tokens whose positions are given.

        A function of tensors alone, which can be compiled, captured and mapped over many models: all that asks the host
        was done by `positions` (and, for what only the host can make, `on_the_host`).
        """
        logits: Tensor = self.unembed(self.ln_final(self.residual(positions)))
        return logits

    def residual(
        self,
        positions: Positions,
        residual: Tensor | None = None,
        layers: slice = slice(None),
        queries: slice | None = None,
    ) -> Tensor:
        """The residual stream after some layers, after the last of them at these queries alone. [row, pos, d_model]

        It begins with the embeddings of the tokens at these positions, unless it is given.
        """
        if residual is None:
            residual = self.hook_embed(self.embed(positions.tokens))
            position = self.pos_embed.embed(positions)
            if position is not None and watched(self.hook_pos_embed):
                # a hook sees one vector for each row, and may write into it
                position = self.hook_pos_embed(position.expand_as(residual).clone())
            residual = residual if position is None else residual + position
        temperature = positions.memo("temperature", lambda: self.temperature(positions.tokens.shape[1]))
        embed_qk = self.pos_embed.embed_qk(positions)
        if embed_qk is not None and watched(self.hook_qk_embed):
            embed_qk = self.hook_qk_embed(embed_qk.expand(len(residual), -1, -1).clone())
        blocks = self.layers[layers]
        for block in blocks:
            context = AttentionContext(self.pos_embed, positions, block.attn.layer, temperature)
            residual = block(residual, context, embed_qk, queries if block is blocks[-1] else None)
        return residual

    def temperature(self, length: int) -> Tensor | None:
        """What all scores of each query are multiplied by, [query]; None if by nothing."""
        if self.config.score_scaling != "log":
            return None
        return log_temperature(length, self.config.train_ctx, self.cfg.device)

    def loss_fn(
        self, logits: Tensor, tokens: Tensor, per_token: bool = False, query_mask: Tensor | None = None
    ) -> Tensor:
        """Next-token cross-entropy: the mean, or [row, pos-1] with 0 at places left out."""
        targets = tokens[:, 1:]
        if query_mask is None and self.task is not None:
            query_mask = targets != self.task.pad_id
        if query_mask is not None:
            targets = targets.masked_fill(~query_mask, NO_TARGET)
        predicted, reduction = logits[:, :-1].flatten(0, 1), "none" if per_token else "mean"
        loss = F.cross_entropy(predicted, targets.flatten(), reduction=reduction, ignore_index=NO_TARGET)
        return loss.view(targets.shape) if per_token else loss

    def _checked_tokens(self, input: str | Sequence[str] | Tensor, checked: bool = False) -> Tensor:
        """Ids [row, pos], on the CPU or on the model's device."""
        tokens = self.to_ids(input)
        tokens = tokens[None] if tokens.dim() == 1 else tokens
        if tokens.dim() != 2 or tokens.shape[1] == 0 or tokens.is_floating_point():
            raise UserError(f"tokens must be ids [row, pos], not {tokens.dtype} of shape {list(tokens.shape)}")
        # A GPU that meets an unknown id is of no use until the process ends; the CPU just says so.
        device = self.embed.W_E.device.type
        if not checked and device not in ("cpu", "meta") and not torch.compiler.is_compiling():
            low, high = tokens.aminmax()
            if not bool((low >= 0) & (high < self.cfg.d_vocab)):
                raise outside(self.cfg.d_vocab)
        return tokens

    def _positions(self, tokens: Tensor, scale: int | Tensor | None) -> Positions:
        """Where tokens stand, on the model's device. What has to be read from them is read before they go there."""
        if isinstance(scale, int):
            scale = torch.tensor([scale], device="cpu")
        if scale is not None and scale.shape not in (torch.Size([1]), tokens.shape[:1]):
            raise UserError(f"one scale for each of {len(tokens)} rows is needed, not shape {list(scale.shape)}")
        device = self.embed.W_E.device
        if scale is None and tokens.device != device and self.pos_embed.uses_scale:
            scale = self.pos_embed.known_scale(tokens, None)
        return self.pos_embed.positions(sent(tokens, device), scale)

    @torch.no_grad()
    def generate(
        self, prompt: str | Tensor, max_new_tokens: int, scale: int | Tensor | None = None
    ) -> Int[Tensor, "row pos"]:
        """Greedy continuation of a prompt, [row, pos + max_new_tokens]; n is that of the prompt."""
        start = self._positions(self._checked_tokens(prompt), scale)
        tokens, size = start.tokens, start.scale if start.scales is None else torch.tensor(start.scales, device="cpu")
        for _ in range(max_new_tokens):
            tokens = torch.cat((tokens, self(tokens, size, checked=True)[:, -1].argmax(-1, keepdim=True)), 1)
        return tokens

    @torch.no_grad()
    def predict(self, prompt: str) -> str:
        """The answer that the model writes after a prompt, up to the end token, in words.

        The prompt is an instance of the model's task, as in ``model.predict("^ 1 0 1 =")``; an answer that stands
        after it is not looked at. A model that does not stop is cut off where the right answer would end.

        >>> len(build(ModelConfig(task="copy", scheme="rope")).predict("^ 7 3 =").split()) <= 3
        True
        """
        task, device = self._task(), self.cfg.device
        task.refuse_sets("a prediction")
        batch = task.parse(prompt)
        scale = int(batch.scale)
        start, end = task.prompt_length(scale), task.ids[END]
        tokens = batch.tokens[:, :start].to(device)
        while tokens.shape[1] < task.length(scale) and (tokens.shape[1] == start or int(tokens[0, -1]) != end):
            tokens = self.generate(tokens, 1, scale)
        return task.render(tokens[0, start:])

    def __repr__(self) -> str:
        config, number = self.config, sum(parameter.numel() for parameter in self.parameters())
        sizes = f"{config.n_layers} layers of {config.n_heads} heads, d_model {config.d_model}"
        return f"HookedModel(task '{config.task}', scheme '{config.spec.label}', {sizes}, {number:,} parameters)"

    @contextmanager
    def blocked_attention(self) -> Iterator[None]:
        """In this context, hooks on scores and patterns see one block of queries at a time; no T×T tensor is made.

        Each call gets [row, head, query, key] with the keys up to the last query of the block. A gradient has to be
        taken in the context, too: blocks are then computed again, so that hooks see them twice.
        """
        before = [block.attn.blocked for block in self.layers]
        try:
            for block in self.layers:
                block.attn.blocked = True
            yield
        finally:
            for block, blocked in zip(self.layers, before):
                block.attn.blocked = blocked

    def run_with_cache(
        self,
        *args: Any,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        names_filter: NamesFilter = None,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        """The output and an ActivationCache of every hook point that fires (or of those asked for)."""
        names = self._firing(names_filter)
        if args and isinstance(args[0], str):  # so that remove_batch_dim sees the number of rows
            args = (self.to_tokens(args[0]), *args[1:])
        output, cache = super().run_with_cache(
            *args, names_filter=lambda name: name in names, remove_batch_dim=remove_batch_dim, **kwargs
        )
        return output, Cache(cache, self, has_batch_dim=not remove_batch_dim) if return_cache_object else cache

    def _firing(self, names_filter: NamesFilter) -> set[str]:
        """The hook points meant; asking for ones that cannot fire is an error, not a silence."""
        if names_filter is None or callable(names_filter):
            chosen = [name for name in self.hook_dict if names_filter is None or names_filter(name)]
            alive = {name for name in chosen if dead_hook(name, self.cfg) is None}
            if chosen and not alive:
                self._refuse_dead(min(chosen))
            return alive
        listed = {names_filter} if isinstance(names_filter, str) else set(names_filter)
        for name in listed:
            self._refuse_dead(name)
        return listed

    def _refuse_dead(self, name: str) -> None:
        if name not in self.hook_dict:
            raise unknown("hook point", name, self.hook_dict)
        if (switch := dead_hook(name, self.cfg)) is not None:
            raise UserError(f"hook point '{name}' does not fire: call set_{switch}(True) first")

    def check_hooks_to_add(self, hook_point: HookPoint, hook_point_name: str, *_: Any, **__: Any) -> None:
        """Refuse a hook on a point that does not fire as things stand, with a sentence that says what to switch."""
        self._refuse_dead(hook_point_name)

    def _enable_hook(self, name: str | Callable[[str], bool], hook: Callable[..., Any], dir: str) -> None:
        for firing in sorted(self._firing(name)):
            self.hook_dict[firing].add_hook(hook, dir=dir, level=self.context_level)

    def set_use_attn_result(self, use_attn_result: bool) -> None:
        self.cfg.use_attn_result = use_attn_result  # each head's own output, for `attn.hook_result`

    def set_use_split_qkv_input(self, use_split_qkv_input: bool) -> None:
        self.cfg.use_split_qkv_input = use_split_qkv_input  # an input each for queries, keys and values of each head

    def set_use_attn_in(self, use_attn_in: bool) -> None:
        self.cfg.use_attn_in = use_attn_in  # an input for each head, for `hook_attn_in`

    def set_use_hook_mlp_in(self, use_hook_mlp_in: bool) -> None:
        self.cfg.use_hook_mlp_in = use_hook_mlp_in  # a copy of the MLP's input that `hook_mlp_in` may change

    # -- weights and tokens under the names that HookedTransformer's users know ----------------------------------------

    @property
    def layers(self) -> list[Block]:
        """The blocks, as what they are."""
        return [cast(Block, block) for block in self.blocks]

    @property
    def W_E(self) -> Tensor:
        return self.embed.W_E

    @property
    def W_pos(self) -> Tensor:
        """The table of scheme ``learned`` or ``shortformer``, [n_ctx, d_model]."""
        table = getattr(self.pos_embed, "W_pos", None)
        if table is None:
            raise UserError(f"scheme '{self.config.scheme}' has no table of position vectors")
        return cast(Tensor, table)

    @property
    def W_U(self) -> Tensor:
        return self.unembed.W_U

    @property
    def b_U(self) -> Tensor:
        return self.unembed.b_U

    W_Q, b_Q = Stacked("attn", "W_Q"), Stacked("attn", "b_Q")  # noqa: N815
    W_K, b_K = Stacked("attn", "W_K"), Stacked("attn", "b_K")  # noqa: N815
    W_V, b_V = Stacked("attn", "W_V"), Stacked("attn", "b_V")  # noqa: N815
    W_O, b_O = Stacked("attn", "W_O"), Stacked("attn", "b_O")  # noqa: N815
    W_in, b_in = Stacked("mlp", "W_in"), Stacked("mlp", "b_in")
    W_out, b_out = Stacked("mlp", "W_out"), Stacked("mlp", "b_out")

    @property
    def W_gate(self) -> Tensor | None:
        """Of gated MLPs, [layer, d_model, d_mlp]; None without."""
        return torch.stack([cast(Tensor, block.mlp.W_gate) for block in self.layers]) if self.cfg.gated_mlp else None

    QK, OV = Attention.QK, Attention.OV  # of W_Q, W_K, W_V and W_O above: [layer, head, d_model, d_model]

    def all_head_labels(self) -> list[str]:
        """``L0H0``, ``L0H1``, …"""
        return [f"L{layer}H{head}" for layer in range(self.cfg.n_layers) for head in range(self.cfg.n_heads)]

    def accumulated_bias(self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True) -> Tensor:
        """The biases that were added to the residual stream before `layer` (or before its MLP), [d_model]."""
        total = torch.zeros(self.cfg.d_model, device=self.cfg.device, dtype=self.cfg.dtype)
        for block in self.layers[:layer]:
            total = total + block.attn.b_O
            if include_mlp_biases and not self.cfg.attn_only:
                total = total + block.mlp.b_out
        if mlp_input and not self.cfg.parallel_attn_mlp:
            total = total + self.layers[layer].attn.b_O
        return total

    def _task(self) -> Task:
        if self.task is None:
            raise UserError("the model was built without a task, so it has no words: give token ids")
        return self.task

    def to_tokens(self, text: str | Sequence[str] | Tensor, **_: object) -> Tensor:
        """``"^ 1 0 ="`` to ids [1, pos]; lines of equal length to [row, pos]; ids stay as they are.

        HookedTransformer's further arguments are taken and mean nothing here: ``^`` is written out in the text.
        """
        return self.to_ids(text).to(self.cfg.device) if not isinstance(text, Tensor) else text

    def to_ids(self, text: str | Sequence[str] | Tensor) -> Tensor:
        """The same on the CPU, where whoever looks at them need not wait; ids stay where they are."""
        if isinstance(text, Tensor):
            return text
        lines = [text] if isinstance(text, str) else list(text)
        rows = [[self.to_single_token(word) for word in line.split()] for line in lines]
        if not rows or len({len(row) for row in rows}) != 1:
            raise UserError(f"lines of equal length are needed, not of {[len(row) for row in rows]} tokens")
        return torch.tensor(rows, device="cpu")

    def to_single_token(self, text: str) -> int:
        task = self._task()
        if text not in task.ids:
            raise UserError(f"'{text}' is not a token of task '{task.name}', whose tokens are: {' '.join(task.vocab)}")
        return task.ids[text]

    def to_single_str_token(self, token: int) -> str:
        return self._task().vocab[int(token)]

    def to_str_tokens(self, text: str | Tensor, **_: object) -> list[str]:
        """The tokens of one line or one row of ids, as texts."""
        tokens = self.to_tokens(text)
        if tokens.dim() == 2 and len(tokens) != 1:
            raise UserError(f"one row is needed, not {len(tokens)}")
        return [self.to_single_str_token(token) for token in tokens.flatten().tolist()]

    def to_string(self, tokens: Tensor) -> str | list[str]:
        """One row of ids as a line, or rows as lines."""
        if tokens.dim() == 2:
            return [" ".join(self.to_str_tokens(row)) for row in tokens]
        return " ".join(self.to_str_tokens(tokens))

    def tokens_to_residual_directions(self, tokens: str | int | Tensor) -> Tensor:
        """The columns of W_U of these tokens, [..., d_model]: what the residual stream is dotted with."""
        ids = self.to_single_token(tokens) if isinstance(tokens, str) else tokens
        return self.W_U.t()[int(ids) if isinstance(ids, Tensor) and ids.numel() == 1 else ids]

    # -- the same model elsewhere --------------------------------------------------------------------------------------

    def folded(self) -> "HookedModel":
        """A copy that computes the same with the weights of its norms folded into the maps that follow.

        Only then is what a component adds along a column of W_U its share of that logit.
        """
        kind = self.cfg.normalization_type
        if kind not in ("LN", "RMS"):
            raise UserError(f"normalization_type {kind} has no weights to fold")
        if "embed_qk" in self.pos_embed.acts():
            scheme = self.config.scheme
            raise UserError(f"scheme '{scheme}' adds to queries and keys after the norm, which cannot be folded")
        if "read" in self.pos_embed.acts() or self.config.attn_normalization == "asentmax":
            raise UserError("weights of norms cannot be folded where a scheme or asentmax reads a layer's input, too")
        from transformer_lens.weight_processing import ProcessWeights  # slow to import

        centred = kind == "LN"
        state = ProcessWeights.fold_layer_norm(self.state_dict(), self.cfg, centred, centred)
        config = ModelConfig.from_dict({**self.config.to_dict(), "normalization_type": f"{kind}Pre"})
        model: HookedModel = HookedModel(config, self.task).to(self.cfg.device, self.cfg.dtype).train(self.training)
        model.load_state_dict({name: state[name] for name in model.state_dict()})  # all but the norms'
        return model

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "HookedModel":
        """Every move (`to`, `cuda`, `half`, …) comes through here; `cfg` follows."""
        super()._apply(fn, recurse)
        self.cfg.device, self.cfg.dtype = self.embed.W_E.device, self.embed.W_E.dtype
        return self

    @classmethod
    def from_hooked_state_dict(cls, state_dict: Mapping[str, Tensor], hooked_config: dict[str, Any]) -> "HookedModel":
        """The model that computes what a HookedTransformer computes, from its state dict and its config as a dict.

        ``from_hooked_state_dict(old.state_dict(), old.cfg.to_dict())``, where `old` has positions of the kind standard,
        rotary, shortformer or alibi. What this model does not have is refused by name.
        """
        fields, weights = read_hooked(hooked_config, dict(state_dict))
        return with_weights(ModelConfig(**fields), weights, "the checkpoint")

    def to_bridge(self) -> Any:
        """The same model as a TransformerLens 4 TransformerBridge, where that has an equivalent."""
        return to_bridge(self)

    def save_pretrained(self, path: str | Path) -> None:
        """Write config.json and model.safetensors into a directory."""
        save(self, path)

    @classmethod
    def from_pretrained(cls, path: str | Path, task: Task | None = None) -> "HookedModel":
        """A saved model: a local directory (never touches the network), or a repository ``owner/name`` on the Hub.

        `task` is the task itself, where it is not one of TASKS. Raises `UserError` where there is no saved model, and
        where it is damaged. Nothing is unpickled.
        """
        folder = path if is_local(path) else download(str(path))
        config, weights = read_saved(folder)
        return with_weights(config, weights, f"'{folder}'", task)

    def push_to_hub(self, repo: str, private: bool = False, token: str | None = None) -> str:
        """Upload the saved form to the repository `repo` of the Hugging Face Hub; the address of the commit."""
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            return upload(Path(folder), repo, private, token)


class Cache(ActivationCache):
    """An ActivationCache that refuses what would be silently wrong."""

    def logit_attrs(self, *args: Any, **kwargs: Any) -> Tensor:
        kind = self.model.cfg.normalization_type
        if kind in ("LN", "RMS"):
            raise UserError(
                f"normalization_type {kind} has weights that shares of a logit leave out: use model.folded()"
            )
        attributions: Tensor = super().logit_attrs(*args, **kwargs)
        return attributions


def build(config: ModelConfig, task: Task | None = None) -> HookedModel:
    """A model with fresh weights, the same bit for bit for the same config.

    Arguments:
        config: every choice about the model; its `seed` decides the weights.
        task: the task itself, where it is not one of TASKS.

    Returns the model, in training mode. Raises `UserError` for a task that does not exist, for a config with neither
    task nor d_vocab, and where the scheme refuses the task.

    >>> build(ModelConfig(task="parity-cot", scheme="learned", n_ctx=64))("^ 1 0 1 =").shape
    torch.Size([1, 5, 6])
    """
    if config.n_layers * config.d_model**2 > LARGE or config.n_ctx * config.d_model > LARGE:
        with torch.device("meta"):
            weights = HookedModel(config, task).state_dict().values()
        within_memory(sum(each.numel() * each.element_size() for each in weights), "the weights of the model")
    return HookedModel(config, task)


def with_weights(
    config: ModelConfig, weights: bytes | Mapping[str, Tensor], source: str, task: Task | None = None
) -> HookedModel:
    """The model of a config with these weights, or with those in the bytes of a safetensors file.

    Weights that are not exactly those of the config are refused before a hostile config can ask for memory; `source`
    says in the error where they are from.
    """
    if isinstance(weights, bytes):
        of = f"what {source} has for weights"
        weights = parsed(partial(load_tensors, header_within(weights, of)), of, "a safetensors file")
    try:
        config = config.resolved(task)
        table = weights.get("embed.W_E")
        if table is None or table.shape != (config.d_vocab, config.d_model):
            raise UserError("the weights are not of the sizes that the config says")
        try:
            with torch.device("meta"):  # without storage, wherever that is possible
                wanted = HookedModel(config, task).state_dict()
        except (RuntimeError, NotImplementedError):  # a scheme that looks at values while it is made
            wanted = HookedModel(config, task).state_dict()
    except UserError as error:
        raise UserError(f"{source} cannot be built: {error}") from None
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise UserError(f"{source} has a config that describes no model: {type(error).__name__}") from None
    for name in sorted(weights.keys() | wanted.keys()):
        if name not in weights:
            raise UserError(f"{source} has no weights '{name}', which the model needs")
        if name not in wanted:
            raise UserError(f"{source} has weights '{name}', which the model does not have")
        got, want = weights[name], wanted[name]
        if got.shape != want.shape:
            raise UserError(f"{source} has '{name}' of shape {list(got.shape)}, and the model needs {list(want.shape)}")
        if got.dtype != want.dtype and not (got.is_floating_point() and want.is_floating_point()):
            raise UserError(f"{source} has '{name}' of type {got.dtype}, and the model needs {want.dtype}")
    model: HookedModel = HookedModel(config, task).to(table.dtype)
    model.load_state_dict(dict(weights))
    return model
