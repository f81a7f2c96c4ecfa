"""Every public name has a docstring with an example, and with shapes if it takes or returns tensors."""

import inspect
import re

import public

TENSOR = re.compile(r"\b(Tensor|Array|ndarray)\b")
SHAPE = re.compile(r"\bshapes?\b|\bscalars?\b|\bbroadcast|\([^()]*(…|\b[a-zA-Z]\w*,)[^()]*\)")


def takes_or_returns_tensors(value):
    """Return whether the signature of a function, a class or a property mentions tensors or arrays."""
    value = getattr(value, "fget", value)
    if not callable(value):
        return False
    signature = inspect.signature(value)
    hints = [str(one.annotation) for one in signature.parameters.values()] + [
        str(signature.return_annotation)
    ]
    return bool(TENSOR.search(" ".join(hints)) or {"x", "X"} & set(signature.parameters))


def gaps(name):
    """Return what the docstring of a public name lacks.

    The example of a member may be in the docstring of its class or a base class, and that of any other name in the
    docstring of its module. Exceptions need none.
    """
    value = public.names()[name]
    owner, _, short = name.rpartition(".")
    owner = public.names().get(owner)
    if owner:
        value = inspect.getattr_static(owner, short)
        value = getattr(owner, short) if isinstance(value, classmethod | staticmethod) else value
    text = inspect.getdoc(value)
    if not text:
        return ["docstring"]
    if isinstance(value, type) and issubclass(value, BaseException):
        return []
    places = owner.__mro__ if owner else (inspect.getmodule(value),)
    used = re.compile(rf"^ *(>>>|\.\.\.) .*{'[.]' if owner else ''}\b{short}\b", re.MULTILINE)
    found = []
    if ">>> " not in text and not any(used.search(one.__doc__ or "") for one in places):
        found.append("example")
    if takes_or_returns_tensors(value) and not SHAPE.search(text):
        found.append("shapes")
    return found


def test_docstrings_are_complete():
    found = {name: gaps(name) for name in public.names()}
    assert {name: missing for name, missing in found.items() if missing} == {}
