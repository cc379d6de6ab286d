"""The model's weights and tokens under the names that HookedTransformer's users know."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lengthlens.errors import UserError
from lengthlens.models.attention import Attention, Block
from lengthlens.models.config import LensConfig
from lengthlens.models.layers import Embed, Unembed
from lengthlens.tasks import Task


class Stacked:
    """A weight of every layer as an attribute of the model, [layer, ...]."""

    def __init__(self, part: str, weight: str) -> None:
        self.part, self.weight = part, weight

    def __get__(self, model: "LensNames", kind: object = None) -> Tensor:
        return torch.stack([getattr(getattr(block, self.part), self.weight) for block in model.blocks])


class LensNames:
    """Weights of all layers stacked and their products; text and token ids, by the task's own vocabulary."""

    cfg: LensConfig
    task: Task | None
    embed: Embed
    unembed: Unembed
    blocks: nn.ModuleList

    @property
    def layers(self) -> list[Block]:
        """The blocks, as what they are."""
        return [cast(Block, block) for block in self.blocks]

    @property
    def W_E(self) -> Tensor:
        return self.embed.W_E

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
