"""The site: a quick build without running tutorials, and, slowly, the whole of it; what is generated is complete."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lengthlens as ll
from lengthlens.probes.schema import COLUMNS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))
import generate  # noqa: E402


def build(builder: str, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    strict = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", builder, "-c", "docs", *options]
    return subprocess.run([*strict, ".", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
def test_a_quick_build_has_no_warning(tmp_path: Path) -> None:
    """Every page is read and every link and reference in it resolved; nothing is drawn or run."""
    done = build("dummy", tmp_path / "out", "-D", "sphinx_gallery_conf.plot_gallery=0", "-t", "quick")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.long
def test_the_whole_site_with_its_tutorials(tmp_path: Path) -> None:
    done = build("html", tmp_path / "out")
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.stem for path in (tmp_path / "out/docs/tutorials").glob("0*.html")}
    assert pages == {path.stem for path in (ROOT / "notebooks").glob("0*.py")}
    index = (tmp_path / "out/docs/index.html").read_text("utf-8")
    assert "how-it-works" in index


def test_every_scheme_has_a_formula_and_a_source() -> None:
    about = tomllib.loads((ROOT / "docs/schemes.toml").read_text("utf-8"))
    assert set(ll.SCHEMES) <= set(about)
    assert all(said["formula"] and said["source"] for said in about.values())


def test_generated_pages_name_everything() -> None:
    schemes, tasks, columns = (generate.schemes_page(False), generate.tasks_page(False), generate.columns_page())
    assert all(f"## `{name}`" in schemes for name in ll.SCHEMES)
    assert all(f"### `{name}`" in tasks for name in ll.TASKS)
    assert all(f"| `{name}` |" in columns for name in COLUMNS)


def test_the_glossary_is_that_of_the_page() -> None:
    assert (ROOT / "docs/glossary.md").read_text("utf-8") == generate.terms_page(), "run python docs/generate.py"


def test_a_relation_in_colours_is_the_relation() -> None:
    """Squares of one code have one colour, in both pictures: rope by distance, ideal by what is read."""
    figure = generate.draw_relation("ideal")
    small, large = (axes.images[0].get_array() for axes in figure.axes)
    read = {(step.query, source) for step in ll.TASKS["copy"].circuit(3) for source in step.sources}
    colours = {tuple(small[i][j]) for i, j in read}
    assert len(colours) == 1
    others = {tuple(small[i][j]) for i in range(9) for j in range(i + 1) if (i, j) not in read}
    assert colours.isdisjoint(others)
    again = {tuple(large[step.query][step.sources[0]]) for step in ll.TASKS["copy"].circuit(5)}
    assert again == colours
