"""The command that redraws every figure and table of a study, in seconds."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lengthlens.commands.studies import held_out_tasks, listed, opened, table_file
from lengthlens.commands.terminal import as_json, print_json, progress, save_figure
from lengthlens.errors import UserError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lengthlens.analyses.gallery import Gallery

FORMATS = ("pdf", "png", "svg")
TABLES = "tables"  # the name that asks for all tables


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@table_file
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("figures"),
    show_default=True,
    help="Where to; tables go into its folder tables.",
)
@click.option("--formats", default="pdf,png", show_default=True, help="Of figures, with commas.")
@held_out_tasks
@as_json
def figures(
    names: tuple[str, ...], tables: tuple[Path, ...], out: Path, formats: str, held_out: str | None, as_json: bool
) -> None:
    """Redraw every figure and table of a study, or only those NAMEs. The same study gives the same bytes."""
    kinds = listed(formats)
    for kind in kinds:
        if kind not in FORMATS:
            raise unknown("format", kind, FORMATS)
    if not kinds:
        raise UserError(f"give at least one format: {', '.join(FORMATS)}")
    from lengthlens.analyses.gallery import FIGURES, Gallery

    for name in names:
        if name not in (*FIGURES, TABLES):
            raise unknown("figure", name, (*FIGURES, TABLES))
    found, _, apart = opened(tables, held_out)
    gallery = Gallery(found, apart)
    written = draw(gallery, names, out, kinds)
    for name, sentence in gallery.missing.items():
        click.echo(f"{name}: {sentence}", err=True)
    if as_json:
        print_json({"written": [str(path) for path in written], "missing": gallery.missing})
    else:
        click.echo(f"{len(written)} files in {out}")


def draw(
    gallery: "Gallery",
    names: Sequence[str] = (),
    out: Path = Path("figures"),
    formats: Sequence[str] = ("pdf", "png"),
    report: Any = None,
) -> list[Path]:
    """Write figures and tables (all, or those named) under `out`; the files written. `report` is told each name."""
    from lengthlens.analyses.gallery import FIGURES

    chosen = [name for name in FIGURES if not names or name in names]
    written = []
    with progress("drawing") as live:
        for name in chosen:
            (report or live)(name)
            written += save(gallery.figure(name), out / name, formats)
        if not names or TABLES in names:
            (report or live)(TABLES)
            written += write_tables(gallery, out / TABLES)
    return written


def save(figure: "Figure", stem: Path, formats: Sequence[str]) -> list[Path]:
    """The figure in each format, laid out once; the files written."""
    written = []
    for kind in formats:
        path = stem.with_name(f"{stem.name}.{kind}")
        save_figure(figure, path)
        figure.set_layout_engine("none")
        written.append(path)
    return written


def write_tables(gallery: "Gallery", out: Path) -> list[Path]:
    """Every table in Markdown and LaTeX; the files written."""
    from lengthlens.files import make_directory, write_whole

    make_directory(out)
    written = []
    for name, found in gallery.tables().items():
        for ending, text in (("md", found.markdown()), ("tex", found.latex())):
            path = out / f"{name}.{ending}"
            write_whole(path, text.encode())
            written.append(path)
    return written


FIGURE_COMMANDS = (figures,)
