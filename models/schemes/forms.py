"""Integer linear forms of query position i, key position j and scale n: the alphabet of learned relations."""

import re
from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from lengthlens.errors import UserError

LARGEST_FACTOR = 1000  # factor of a form
MOST_FORMS = 64
TERM = re.compile(r"([+\-−]?)(\d*)([ijn]?)")


class Form(NamedTuple):
    """u = query·i + key·j + scale·n + constant, with key ±1, so that each value of u marks one key at a query."""

    query: int
    key: int
    scale: int
    constant: int = 0

    def __str__(self) -> str:
        """As it is written.

        >>> str(Form(1, 1, -2))
        'i+j−2n'
        """
        text = ""
        for factor, letter in zip(self, ("i", "j", "n", "")):
            if factor:
                sign = "−" if factor < 0 else "+" if text else ""
                size = "" if abs(factor) == 1 and letter else str(abs(factor))
                text += f"{sign}{size}{letter}"
        return text

    def value(self, query_pos: Tensor, key_pos: Tensor, scale: Tensor) -> Tensor:
        return self.query * query_pos + self.key * key_pos + self.scale * scale + self.constant

    def says(self, value: int) -> str:
        """That the form has a value, as an equation with i and j on the left.

        >>> Form(1, -1, -1).says(0), Form(1, -1, -1).says(2), Form(0, 1, 0).says(0)
        ('i−j = n', 'i−j = n+2', 'j = 0')
        """
        left = Form(self.query, self.key, 0, 0)
        right = Form(0, 0, -self.scale, value - self.constant)
        return f"{left} = {right or 0}" if any(right) else f"{left} = 0"


def read_form(text: str) -> Form:
    """The form that a text spells.

    >>> read_form("i+j-2n-1")
    Form(query=1, key=1, scale=-2, constant=-1)
    """
    squeezed, factors, at = text.replace(" ", ""), Counter[str](), 0
    while at < len(squeezed):
        found = TERM.match(squeezed, at)
        if found is None or not (found[2] or found[3]) or (at and not found[1]):
            raise UserError(f"'{text}' is no linear form of i, j and n, such as 'i-j-2n+1'")
        size = int(found[2] or 1)
        factors[found[3]] += -size if found[1] in ("-", "−") else size
        at = found.end()
    if max(map(abs, factors.values()), default=0) > LARGEST_FACTOR:
        raise UserError(f"the form '{text}' has a factor of more than {LARGEST_FACTOR}")
    form = Form(factors["i"], factors["j"], factors["n"], factors[""])
    if abs(form.key) != 1:
        raise UserError(f"the form '{text}' must contain +j or -j, so that each of its values marks one key")
    return form


def read_forms(text: str) -> tuple[Form, ...]:
    """The forms of a list with commas, each once.

    >>> [str(form) for form in read_forms("i-j, i-j-n")]
    ['i−j', 'i−j−n']
    """
    parts = text.split(",")
    if len(parts) > MOST_FORMS:
        raise UserError(f"at most {MOST_FORMS} forms can be learned from, and {len(parts)} were given")
    return tuple(dict.fromkeys(read_form(part) for part in parts))


def marked_keys(forms: Tensor, window: int, query: Tensor, scale: Tensor) -> Tensor:
    """The key at which each form has each value of the window, at each query; it need not exist.

    `forms` [form, 4], `query` [query], `scale` [row]; out [row, query, form, value], values from −window to window.
    """
    value = torch.arange(-window, window + 1, device=query.device)
    a, b, c, d = forms.unbind(1)
    rest = a * query[None, :, None] + c * scale[:, None, None] + d  # [row, query, form]
    return b[:, None] * (value - rest[..., None])  # b is its own inverse
