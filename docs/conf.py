"""The documentation site: `make docs` builds it strictly, `make docs-serve` shows it.

The source directory is the root of the repository, so that a relative link works on GitHub and on the site alike.
Pages under docs/generated are made from the code and the committed tables at every build (docs/generate.py), those
under docs/tutorials from the scripts in notebooks/, which are run for it.
"""

import re
import sys
from importlib.metadata import version as installed
from pathlib import Path

from docutils import nodes
from PIL import Image
from pygments.lexers.special import TextLexer

sys.path.insert(0, str(Path(__file__).parent))
import generate

# Before Sphinx looks for pages: stubs of the reference are made for those that it finds. A quick build draws nothing.
generate.write(Path(__file__).parent / "generated", not tags.has("quick"))

project, author, copyright = "lengthlens", "the lengthlens authors", "the lengthlens authors; MIT licence"
version = release = installed("lengthlens")

extensions = [
    "myst_parser",  # pages are Markdown, and read as such on GitHub, too
    "sphinx.ext.autodoc",  # the library from its docstrings,
    "sphinx.ext.autosummary",  # a page for each name
    "sphinx.ext.napoleon",  # with its arguments as a list
    "sphinx_click",  # every command from the command line itself
    "sphinx_copybutton",  # copies a block of code
    "sphinx_gallery.gen_gallery",  # scripts become pages with their output, and notebooks
]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "figures/README.md", "figures/*/tables/*.md"]
exclude_patterns = [
    "docs/templates",
    *(".*", "**/.*", "build", "dist", "out", "*.egg-info", "tests", "benchmarks", "notebooks", "examples", "runs"),
    *("docs/tutorials/**/*.ipynb", "docs/tutorials/**/*.py", "docs/tutorials/sg_execution_times.rst"),
    *("analyses", "commands", "inside", "models", "plugins", "probes", "studies", "tasks", "theory", "report"),
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]  # functions in the settings of the gallery

default_role = "code"  # a single backtick in a docstring is a name
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autosummary_generate = True
templates_path = [str(Path(__file__).parent / "templates")]  # absolute: parts of Sphinx differ in where it begins
autosummary_ignore_module_all = False
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_custom_sections = [("Result", "returns_style"), ("Errors", "returns_style")]
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of other libraries; links between pages are checked without exception

sphinx_gallery_conf = {
    "examples_dirs": "notebooks",
    "gallery_dirs": "docs/tutorials",
    "filename_pattern": r"/\d\d_",
    "ignore_pattern": r"(__init__|causal_claim)\.py",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("matplotlib",),
    "capture_repr": ("_repr_html_", "__repr__"),
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "abort_on_example_error": True,
}

html_theme = "furo"
html_title = f"lengthlens {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}
copybutton_prompt_text = "$ "
ENLARGED = 120  # pixels to an inch of a figure on a page


def plain_docstring(app, what, name, obj, options, lines):
    """What docstrings leave to the eye: a star in a shape is no emphasis, a block that is set in is code."""
    found, above = [], ""
    for line in lines:
        text = line.replace("[*", r"[\*").replace("*]", r"\*]")
        begins = line.startswith("    ") and found and not found[-1] and not above.startswith("    ")
        if begins and not above.endswith("::"):
            found += ["::", ""]
        found.append(line if line.startswith("    ") else text)
        above = line or above
    quiet = ["..", ""]  # an empty comment, since what stands before a first colon would be read as a property's type
    lines[:] = [*quiet, *found] if what == "property" else found


def is_no_news(app, what, name, obj, skip, options):
    """Fields of a named tuple stand in its signature; "Alias for field number 0" adds nothing."""
    return True if str(obj.__doc__).startswith("Alias for field") else None


def titled(app, name, source):
    """A committed table has no title of its own: it gets that of its file."""
    if "/tables/" in name:
        source[0] = f"# {name.split('/')[1]}: {name.rpartition('/')[2]}\n\n{source[0]}"
    if name == "CONTRIBUTING" and not tags.has("quick"):  # what GitHub draws is drawn here by docs/generate.py
        picture = "![The rooms, and what each imports](docs/generated/map.svg)"
        source[0] = re.sub("```mermaid.*?```", picture, source[0], flags=re.DOTALL)


def in_true_size(app, document):
    """A figure that is narrow on paper is narrow on the page: its pixels are counted by their number to an inch."""
    for image in document.findall(nodes.image):
        path = Path(app.srcdir, image["uri"])
        if path.suffix == ".png" and path.is_file() and "figures" in path.parts:
            with Image.open(path) as picture:
                inches = picture.width / picture.info.get("dpi", (100, 100))[0]
            image["width"] = f"{round(inches * ENLARGED)}px"


def setup(app):
    """What Sphinx calls when it begins."""
    app.add_lexer("mermaid", TextLexer)  # GitHub draws it, the site shows its text
    app.connect("source-read", titled)
    app.connect("doctree-read", in_true_size)
    app.connect("autodoc-skip-member", is_no_news)
    app.connect("autodoc-process-docstring", plain_docstring, 400)  # before the sections of napoleon
