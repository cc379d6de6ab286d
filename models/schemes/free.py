"""A bias that is any function of (i, j, n): a small network, with nothing built in that would make it extrapolate."""

import torch
from torch import Tensor, nn

UNIT = 10.0  # positions are told to the network in tens, so that inputs of training are of order one


class FreeBias(nn.Module):
    """One hidden layer over (i, j, n) for each layer of the network, one output for each head."""

    def __init__(self, n_layers: int, n_heads: int, hidden: int) -> None:
        super().__init__()
        self.W_in = nn.Parameter(torch.randn(n_layers, 3, hidden))
        self.b_in = nn.Parameter(torch.randn(n_layers, hidden))
        self.W_out = nn.Parameter(torch.randn(n_layers, hidden, n_heads) / hidden**0.5)

    def forward(self, layer: int, position: Tensor, scale: Tensor, rows: slice) -> Tensor:
        """[row, head, query, key]. The first layer is linear, so its three inputs are mapped before they are paired."""
        of_query, of_key, of_scale = (self.W_in[layer, part] / UNIT for part in range(3))
        query = position[:, rows, None, None] * of_query  # [1|row, query, 1, hidden]
        key = position[:, None, : rows.stop, None] * of_key  # [1|row, 1, key, hidden]
        shift = scale[:, None, None, None] * of_scale + self.b_in[layer]  # [row, 1, 1, hidden]
        hidden = torch.tanh(query + key + shift)
        return (hidden @ self.W_out[layer]).movedim(-1, 1)
