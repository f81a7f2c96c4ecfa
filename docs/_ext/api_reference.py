"""Directives of the API reference: ``public-names`` documents Python names, ``command-help`` the command line."""

import inspect
from typing import Any

import public
from docstrings import as_rst
from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from typer.main import get_command
from typer.testing import CliRunner

from powerspherical.cli import application


class PublicNames(SphinxDirective):
    """Document the names in the content, one per line, of the module in the argument.

    A class comes with its public members, except those that it inherits from another public class.
    """

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes that autodoc makes."""
        lines = []
        for short in self.content:
            name = f"{self.arguments[0]}.{short}"
            if name not in public.names():
                raise self.error(f"{name} is not in the __all__ of its module, or belongs to another one")
            value = public.names()[name]
            if isinstance(value, type):
                members = [full.rpartition(".") for full in public.names()]
                own = [member for owner, _, member in members if owner == name]
                lines += [f".. autoclass:: {name}", f"   :members: {', '.join(own)}" if own else ""]
            else:
                kind = "autofunction" if inspect.isfunction(value) else "autodata"
                lines += [f".. {kind}:: {name}", "   :no-value:" if kind == "autodata" else ""]
            lines.append("")
        return self.parse_text_to_nodes("\n".join(lines))


class CommandHelp(SphinxDirective):
    """Show the help of every command of ``powerspherical``, in a section each."""

    def run(self) -> list[nodes.Node]:
        """Return one section per command."""
        app = application()
        return [self.section(app, name) for name in get_command(app).commands]

    def section(self, app: Any, name: str) -> nodes.Node:
        """Return the section of one command."""
        runner = CliRunner(env={"COLUMNS": "80"})
        shown = runner.invoke(app, [name, "--help"], prog_name="powerspherical").stdout
        title = f"powerspherical {name}"
        return nodes.section(
            "",
            nodes.title(text=title),
            nodes.literal_block(text=shown.strip(), language="text"),
            ids=[nodes.make_id(title)],
            names=[title],
        )


def convert_docstring(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring by reStructuredText."""
    lines[:] = as_rst("\n".join(lines), name, public.targets()).split("\n")


def resolve_inherited(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Element | None:
    """Link a reference to an inherited member to the class that documents it."""
    target = public.targets().get(node["reftarget"])
    if target is None:
        return None
    domain = env.domains.python_domain
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and handlers."""
    app.add_directive("public-names", PublicNames)
    app.add_directive("command-help", CommandHelp)
    app.connect("autodoc-process-docstring", convert_docstring, priority=400)  # before napoleon
    app.connect("missing-reference", resolve_inherited)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
