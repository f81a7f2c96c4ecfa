"""Make reStructuredText of our docstrings, which are plain text with ``code`` in double backquotes."""

import re
from collections.abc import Mapping

TOKEN = re.compile(
    r"""(?P<keep>
            ^[ ]*(?:>>>|\.\.)[ ].*?(?:\n[ ]*(?=\n)|\Z)  # a doctest or a directive, up to a blank line
          | ::\n[ ]*\n(?P<indent>[ ]+).*?(?=\n[ ]*\n(?!(?P=indent))|\Z)  # a literal block
          | :[\w:]+:`[^`]*`  # a role, in docstrings inherited from torch
          | ^[ ]*\w+_(?=:[ ])  # an attribute, such as weights_, whose name napoleon does not unescape
        )
      | ``(?P<code>[^`]+)``
      | (?P<special>[*|`]|_+(?!\w))
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


def target_of(code: str, name: str, targets: Mapping[str, str]) -> str | None:
    """Return the public name that a piece of code in the docstring of ``name`` refers to, or None.

    The code is a full name, or relative to the class, the module or the package of ``name``.
    """
    scopes = name.split(".")
    candidates = [".".join([*scopes[:depth], code]) for depth in range(len(scopes), -1, -1)]
    target = next((targets[full] for full in candidates if full in targets), None)
    return None if target == name else target


def as_rst(text: str, name: str, targets: Mapping[str, str]) -> str:
    """Return the docstring ``text`` of ``name`` with special characters escaped and links to public names."""

    def replaced(match: re.Match[str]) -> str:
        if match["keep"]:
            return match["keep"]
        if match["special"]:
            return "".join(f"\\{character}" for character in match["special"])
        target = target_of(match["code"], name, targets)
        shown = f":py:obj:`{match['code']} <{target}>`" if target else match[0]
        # Markup must not touch a letter. An escaped space separates them and is not shown.
        before, after = text[: match.start()][-1:], text[match.end() :][:1]
        return ("\\ " if before.isalnum() else "") + shown + ("\\ " if after.isalnum() else "")

    return TOKEN.sub(replaced, text)
