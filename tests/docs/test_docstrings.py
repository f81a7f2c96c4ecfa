"""Docstrings become reStructuredText: special characters are escaped, code in backquotes may become a link."""

import pytest
from docstrings import as_rst

TARGETS = {
    "package.f": "package.f",
    "package.Base": "package.Base",
    "package.Base.mean": "package.Base.mean",
    "package.Derived.mean": "package.Base.mean",
    "package.part.f": "package.part.f",
}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("package.g", "x (n, *batch), |x|, a_ and b_c", "x (n, \\*batch), \\|x\\|, a\\_ and b_c"),
        ("package.g", "``loc``ᵀx of ``a_``", "``loc``\\ ᵀx of ``a_``"),
        ("package.g", "see ``f``", "see :py:obj:`f <package.f>`"),
        ("package.part.g", "see ``f``", "see :py:obj:`f <package.part.f>`"),
        ("package.part.g", "see ``package.f``", "see :py:obj:`package.f <package.f>`"),
        ("package.f", "this is ``f``", "this is ``f``"),
        ("package.Derived.var", "see ``mean``", "see :py:obj:`mean <package.Base.mean>`"),
        ("package.g", "a*\n\n>>> 2 * 3\n6\n\nb*", "a\\*\n\n>>> 2 * 3\n6\n\nb\\*"),
        ("package.g", ".. math:: a_\n   b^*\n\nc*", ".. math:: a_\n   b^*\n\nc\\*"),
        ("package.g", "so::\n\n    a * b\n\n    c_\n\nd*", "so::\n\n    a * b\n\n    c_\n\nd\\*"),
        ("package.g", ":class:`~torch.Size_` *", ":class:`~torch.Size_` \\*"),
        ("package.g", "Attributes:\n    a_: b_ *", "Attributes:\n    a_: b\\_ \\*"),
    ],
)
def test_conversion(name, text, expected):
    assert as_rst(text, name, TARGETS) == expected
