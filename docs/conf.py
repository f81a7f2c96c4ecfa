"""Settings of the documentation site. `make docs` builds it into `build/docs`, without network access.

Our own extensions are in `_ext`: `mathml` renders formulas without JavaScript, `reference` writes the API reference.
"""

import importlib.util
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

from powerspherical import __version__  # noqa: E402

project = "powerspherical"
author = "The powerspherical authors"
project_copyright = author
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "reference",
]
exclude_patterns = ["gallery"]  # the scripts; sphinx-gallery writes their pages into auto_gallery
if not importlib.util.find_spec("powerspherical.plot"):
    exclude_patterns.append("api/plot.rst")

# References to our own names must resolve. Those of other projects have no inventory here, because building needs no
# network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!powerspherical\.).*")]
nitpick_ignore = [  # types in signatures that are not public
    ("py:class", "powerspherical.compat.Factors"),
    ("py:class", "powerspherical.families.base.PointSums"),
    ("py:class", "powerspherical.mixture._saving.SavedEstimator"),
]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
napoleon_numpy_docstring = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"plot_",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
}

html_theme = "furo"
html_title = f"powerspherical {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_math_renderer = "mathml"


def existing_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Drop the entries of a table of contents whose pages do not exist."""
    kept = []
    for line in source[0].splitlines():
        entry = re.fullmatch(r"(?:   )?([a-z_]+(?:/[a-z_]+)?)", line)
        if docname in ("index", "api/index") and entry:
            page = (Path(docname).parent / entry[1]).as_posix()
            if page not in app.env.found_docs:
                continue
        kept.append(line)
    source[0] = "\n".join(kept) + "\n"


def setup(app: Sphinx) -> None:
    """Connect the handlers of this file."""
    app.connect("source-read", existing_pages)
