"""One description of a table, and one place that shows it: csv, Markdown, LaTeX, HTML, and lines for a terminal.

A table keeps its values; how they look is decided here. A column `x` beside which the rows have `x_low` and `x_high`
is an estimate with its interval.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from lengthlens.values import harmless_cell

if TYPE_CHECKING:
    import pandas as pd

NOTHING = "–"  # in place of what is not known
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "ι": r"$\iota$", "φ": r"$\varphi$", "−": "$-$",
    "×": r"$\times$", "→": r"$\to$", "∞": r"$\infty$", "≤": r"$\le$", "≥": r"$\ge$", "½": r"$\frac12$", "–": "--",
    "²": "$^2$", "<": r"$<$", ">": r"$>$", "|": r"$|$",
}  # fmt: skip

TAG = re.compile(r"<(?=[A-Za-z/!?])")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows of values, the columns to show with what stands above them, and what to know about them.

    >>> row = {"auc": 0.5, "auc_low": 0.25, "auc_high": 0.75, "runs": 3}
    >>> print(Table("Numbers", [row], {"auc": "AUC", "runs": "runs"}).markdown())
    Numbers
    <BLANKLINE>
    | AUC | runs |
    | --- | --- |
    | 0.500 [0.250, 0.750] | 3 |
    <BLANKLINE>
    """

    caption: str
    rows: Sequence[Row]
    columns: Mapping[str, str]
    title: str = ""  # on the page
    folded: bool = False  # on the page, shown when asked for
    empty: str = "Nothing to show."  # on the page, where there are no rows
    strong: str = ""  # a column; rows where it holds are what the table is about
    bad: str = ""  # a column; rows where it holds did not work

    def texts(self) -> list[list[str]]:
        """What stands above the columns, then every row."""
        return [list(self.columns.values()), *([shown(row, key) for key in self.columns] for row in self.rows)]

    def numeric(self, key: str) -> bool:
        values = [row[key] for row in self.rows if row[key] is not None]
        return bool(values) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)

    def csv(self) -> str:
        """The values themselves, the ends of intervals in columns of their own."""
        file = io.StringIO()
        ends = [key + end for key in self.columns for end in ("", "_low", "_high")]
        keys = [key for key in ends if key in self.columns or any(key in row for row in self.rows)]
        writer = csv.DictWriter(file, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: harmless_cell(value) for key, value in row.items()} for row in self.rows)
        return file.getvalue()

    def markdown(self) -> str:
        """As GitHub has it; a sentence where there are no rows."""
        if not self.rows:
            return f"{self.caption}\n\n{self.empty}\n"
        plain = [[" ".join(cell.split()) or cell for cell in row] for row in self.texts()]  # on one line
        head, *rows = [[TAG.sub("&lt;", cell).replace("|", "\\|") for cell in row] for row in plain]
        lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
        return "\n".join([self.caption, "", *lines, ""])

    def latex(self) -> str:
        """As `booktabs` has it, with a caption; needs \\usepackage{booktabs}."""
        head, *rows = [rf"{' & '.join(map(latex_text, row))} \\" for row in self.texts()]
        caption, width = latex_text(self.caption), "l" * len(self.columns)
        above = [r"\begin{table}", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{width}}}", r"\toprule", head]
        below = [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
        return "\n".join([*above, r"\midrule", *rows, *below])

    def text(self) -> str:
        """Columns aligned, for a terminal."""
        return "\n".join(aligned(self.texts(), [self.numeric(key) for key in self.columns]))

    def html(self, name: str) -> str:
        """A figure of HTML 5 with the id `name`, whose columns a script may sort by the keys of their cells."""
        title, caption = escape(self.title), escape(self.caption)
        said = f"<figcaption>{'' if self.folded else title}<small>{caption}</small></figcaption>"
        body = self._html_table(title) if self.rows else f'<p class="none">{escape(self.empty)}</p>'
        figure = f'<figure class="table" id="{escape(name)}">\n{said}\n{body}\n</figure>'
        return f"<details><summary>{title}</summary>{figure}</details>" if self.folded else figure

    def _html_table(self, title: str) -> str:
        classes = {key: ' class="number"' if self.numeric(key) else "" for key in self.columns}
        heads = [
            f'<th scope="col" aria-sort="none"{classes[key]}><button type="button">{escape(label)}</button></th>'
            for key, label in self.columns.items()
        ]
        lines = []
        for row in self.rows:
            mark = "bad" if self.bad and row.get(self.bad) else "main" if self.strong and row.get(self.strong) else ""
            cells = [
                f'<td{classes[key]} data-key="{escape(sort_key(row[key]))}">{escape(shown(row, key))}</td>'
                for key in self.columns
            ]
            lines.append(f"<tr{f' class={mark}' if mark else ''}>{''.join(cells)}</tr>")
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n<table class="sortable">\n'
            f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table>\n</div>"
        )


def of_frame(frame: "pd.DataFrame", columns: Sequence[str] | None = None, **words: str) -> dict[str, Any]:
    """Rows and columns of a `Table` from a data frame: all columns or those named, each under its name in words.

    >>> import pandas as pd
    >>> of_frame(pd.DataFrame({"exact_match": [0.5], "auc": [float("nan")]}), auc="AUC")
    {'rows': [{'exact_match': 0.5, 'auc': None}], 'columns': {'exact_match': 'exact match', 'auc': 'AUC'}}
    """
    plain = frame.astype(object).where(frame.notna(), None)
    keys = [str(key) for key in (frame.columns if columns is None else columns)]
    return {"rows": plain.to_dict("records"), "columns": {key: words.get(key, key.replace("_", " ")) for key in keys}}


def shown(row: Row, key: str) -> str:
    """A value as a text, with its interval where the row has one."""
    low, high = (row.get(f"{key}_{end}") for end in ("low", "high"))
    return interval(row[key], low, high) if f"{key}_low" in row else plain(row[key])


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """An estimate as a text.

    >>> interval(0.9, 0.8, 1.0), interval(0.9, None, None), interval(float("nan"), None, None)
    ('0.900 [0.800, 1.000]', '0.900', '–')
    """
    if _missing(value):
        return NOTHING
    return f"{value:.3f}" if _missing(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def plain(value: Any) -> str:
    """A value as a text; a dash for what is missing."""
    if _missing(value):
        return NOTHING
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if value.is_integer() else f"{value:.3f}"


def several(number: int, word: str) -> str:
    """A count with its word.

    >>> several(1, "cell"), several(2, "cell")
    ('1 cell', '2 cells')
    """
    return f"{number} {word}{'s' * (number != 1)}"


def spread(values: Iterable[float]) -> str:
    """Values of several seeds as a text: one number if they agree to two digits, else all of them.

    >>> spread([1.0, 1.0, 0.999]), spread([1.0, 0.25, float("nan")])
    ('1.00', '1.00, 0.25, –')
    """
    texts = [NOTHING if _missing(value) else f"{value:.2f}" for value in values]
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)


def sort_key(value: Any) -> str:
    """By what a cell is sorted; an empty key comes last."""
    if _missing(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def latex_text(text: str) -> str:
    """Text with all that LaTeX would take for something else written out.

    >>> latex_text("max_distance=3, ι = 0")
    'max\\\\_distance=3, $\\\\iota$ = 0'
    """
    return "".join(LATEX.get(letter, letter) for letter in text)


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Rows of texts as lines with columns below each other, those that are `right` at their right edge.

    >>> aligned([["n", "task"], ["10", "copy"]], [True, False])
    [' n  task', '10  copy']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    sides = [str.rjust if end else str.ljust for end in right]
    return ["  ".join(side(text, width) for side, text, width in zip(sides, row, widths)).rstrip() for row in rows]
