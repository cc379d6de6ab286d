"""Keys that a scheme has no value for: whether each weighs by itself, or all of them together as one."""

import torch
from torch import Tensor


def crowd(valued: Tensor, rows: slice) -> Tensor:
    """At keys without a value, the log of how many of them a query sees; 0 elsewhere. [*, query, key]

    Taken off the scores, it makes them weigh as one key with their average, however many there are: at every length,
    attention is then the same function of the keys that have a value. `valued` is for a block of queries, `rows`, and
    keys after a query do not count.

    The first key stands apart, value or not. Heads that have nothing to read rest on a mark such as ``^``, by its
    token; in a crowd its weight would fade as the crowd grows, and what they read beside it would gain.

    >>> one_of_four = torch.tensor([[[False, False, True, False]]])
    >>> crowd(one_of_four, slice(3, 4)).exp().round().tolist()
    [[[1.0, 2.0, 1.0, 2.0]]]
    """
    query = torch.arange(rows.start, rows.stop, device=valued.device)[:, None]
    key = torch.arange(rows.stop, device=valued.device)
    other = ~valued & (key <= query) & (key > 0)
    number = other.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(other, number.to(torch.get_default_dtype()).log(), 0)
