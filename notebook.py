"""How a notebook shows a result: a heading, facts, and a table whose shares are drawn as bars."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

CELL = "text-align:left;padding:2px 10px 2px 0;vertical-align:top"
BAR = "display:inline-block;height:0.7em;background:#4477aa;margin-right:6px"


class Share(float):
    """A number from 0 to 1 that is drawn as a bar beside its digits."""


def card(
    title: str, facts: Mapping[str, Any], table: Sequence[Mapping[str, Any]] = (), lines: Iterable[str] = ()
) -> str:
    """HTML that stands by itself; every text is escaped, and nothing sets the colours of the page.

    >>> card("run <a>", {"steps": 5, "reason": None}, [{"n": 1, "exact": Share(0.5)}]).count("<tr>")
    3
    """
    shown = {name: value for name, value in facts.items() if value is not None and value != ""}
    parts = [f"<div><b>{escape(title)}</b>", rows([[name, value] for name, value in shown.items()])]
    if table:
        parts.append(rows([row.values() for row in table], list(table[0])))
    parts += [f"<div>{escape(line)}</div>" for line in lines]
    return "".join([*parts, "</div>"])


def rows(cells: Iterable[Iterable[Any]], head: Sequence[str] = ()) -> str:
    heading = "".join(f'<th style="{CELL}">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in cells)
    return f"<table>{f'<tr>{heading}</tr>' if heading else ''}{body}</table>" if body else ""


def cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    bar = f'<span style="{BAR};width:{60 * value:.0f}px"></span>' if isinstance(value, Share) else ""
    return f'<td style="{CELL}">{bar}{escape(text)}</td>'
