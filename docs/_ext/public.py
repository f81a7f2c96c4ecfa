"""The public names of the package: what its modules list in ``__all__``, and the members of the classes among these."""

import functools
import importlib
import importlib.util
import inspect
from typing import Any

#: A name that several modules list belongs to the first of them.
MODULES = [
    module
    for module in (
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
        "powerspherical.compat",
        "powerspherical.testing",
    )
    if importlib.util.find_spec(module)
]


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

    A member that the class has from another of the public ``classes`` is left out: it belongs to that one.
    """
    found = {}
    inherited = {
        id(inspect.getattr_static(base, name))
        for base in owner.__mro__[1:]
        if base in classes
        for name in dir(base)
    }
    for base in owner.__mro__:
        if base.__module__.partition(".")[0] != "powerspherical":
            continue
        for name, value in vars(base).items():
            wanted = inspect.isfunction(value) or isinstance(
                value, classmethod | staticmethod | property | functools.cached_property
            )
            own = inspect.getattr_static(owner, name) is value and id(value) not in inherited
            if wanted and own and not name.startswith("_"):
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
