"""Settings of the documentation site. `make docs` builds it into `build/docs`, without network access.

Our own extensions are in `_ext`: `api_reference` documents public names and commands, and `mathml` renders formulas
without JavaScript.
"""

import sys
from pathlib import Path

from powerspherical import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

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
    "api_reference",
    "explorer",
    "mathml",
]
exclude_patterns = ["gallery"]  # the scripts; sphinx-gallery writes their pages into auto_gallery

# References to our own names must resolve. Those of other projects have no inventory here, because building needs no
# network.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!powerspherical\.).*")]
nitpick_ignore = [
    # Types in signatures that are not public.
    ("py:class", "powerspherical.compat.Factors"),
    ("py:class", "powerspherical.mixture._saving.SavedEstimator"),
]

# Annotations such as ``Family`` name a class of torch and one of JAX. Sphinx links the first one.
suppress_warnings = ["ref.python"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
napoleon_attr_annotations = False
napoleon_numpy_docstring = False

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "ignore_repr_types": r"matplotlib",  # a cell may end in a call that returns a legend or a title
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "furo"
html_title = f"powerspherical {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_math_renderer = "mathml"
