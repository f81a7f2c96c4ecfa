"""The public names of the package: what its modules list in ``__all__``, and the members of the classes among these."""

import functools
import importlib
import inspect
from typing import Any

#: A name that several modules list belongs to the first of them.
MODULES = [
    "powerspherical",
    "powerspherical.distributions",
    "powerspherical.families",
    "powerspherical.special",
    "powerspherical.sampling",
    "powerspherical.nn",
    "powerspherical.mixture",
    "powerspherical.stats",
    "powerspherical.plot",
    "powerspherical.pyro",
    "powerspherical.jax",
    "powerspherical.jax.special",
    "powerspherical.numpyro",
    "powerspherical.compat",
    "powerspherical.testing",
    "powerspherical.engines",
]

#: Members that only a framework calls: tests, and hooks of pytest, torch, Pyro and JAX.
HOOKS = ("test_", "pytest_", "extra_repr", "apply", "tree_flatten", "tree_unflatten")

DESCRIPTORS = (classmethod, staticmethod, property, functools.cached_property)


def top_level() -> dict[str, Any]:
    """Return the objects that the modules list, by full name. Submodules are left out."""
    found: dict[str, Any] = {}
    seen = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for short in module.__all__:
            value = getattr(module, short)
            if not inspect.ismodule(value) and id(value) not in seen:
                seen.add(id(value))
                found[f"{name}.{short}"] = value
    return found


def members(owner: type, classes: set[type]) -> dict[str, Any]:
    """Return the public methods and properties of a class that this package defines, by name.

    Members that belong to another of the public ``classes`` are left out: those that the class inherits from it, and
    those that it overrides without a docstring of their own.
    """
    found = {}
    bases = [base for base in owner.__mro__[1:] if base in classes]
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] != "powerspherical":
            continue
        for name, value in vars(base).items():
            if name.startswith(("_", *HOOKS)) or inspect.getattr_static(owner, name) is not value:
                continue
            above = [inspect.getattr_static(one, name, None) for one in bases]
            theirs = value in above or (not value.__doc__ and any(above))
            if (inspect.isfunction(value) or isinstance(value, DESCRIPTORS)) and not theirs:
                found[name] = value
    return found


@functools.cache
def names() -> dict[str, Any]:
    """Return every public object by its full name, members of classes included."""
    found = top_level()
    classes = {value for value in found.values() if isinstance(value, type)}
    for name, value in list(found.items()):
        if isinstance(value, type):
            found |= {f"{name}.{member}": item for member, item in members(value, classes).items()}
    return found


@functools.cache
def targets() -> dict[str, str]:
    """Return the names under which text may refer to a public name, with that name: inherited members have several."""
    found = {name: name for name in names()}
    classes = {value: name for name, value in names().items() if isinstance(value, type)}
    for owner, name in classes.items():
        for base in filter(classes.__contains__, owner.__mro__[1:]):
            for member in dir(base):
                if f"{classes[base]}.{member}" in names():
                    found.setdefault(f"{name}.{member}", f"{classes[base]}.{member}")
    return found
