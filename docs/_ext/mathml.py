"""Render formulas as MathML while building, so that pages need neither JavaScript nor network access.

docutils converts the LaTeX. A formula that it cannot convert is a warning, which names the unknown command.
"""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def convert(self: HTML5Translator, node: nodes.Element, *, block: bool) -> str:
    """Return the MathML of a formula."""
    try:
        return tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        logger.warning("cannot convert the formula %r: %s", node.astext(), error, location=node)
        return f"<code>{self.encode(node.astext())}</code>"


def inline(self: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula inside a paragraph."""
    self.body.append(convert(self, node, block=False))
    raise nodes.SkipNode


def displayed(self: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula on lines of its own, which scroll if they are too wide."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(convert(self, node, block=True) + "</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (displayed, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
