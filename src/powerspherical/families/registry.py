"""The families that exist: ours, and those that users register."""

from __future__ import annotations

from powerspherical.families.base import Family
from powerspherical.families.power_spherical import POWER_SPHERICAL
from powerspherical.families.spherical_cauchy import SPHERICAL_CAUCHY
from powerspherical.families.von_mises_fisher import VON_MISES_FISHER

_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Make a family known by its name, which operators, heads, mixtures and the command line then accept.

    Registering a second family of the same class under the same name replaces the first, as when a module is reloaded.
    """
    known = _FAMILIES.get(family.name)
    if known is not None and type(known).__qualname__ != type(family).__qualname__:
        raise ValueError(f"the name {family.name!r} belongs to {known!r}: choose another name")
    _FAMILIES[family.name] = family
    return family


def family_named(name: str) -> Family:
    """The family registered under this name."""
    try:
        return _FAMILIES[name]
    except KeyError:
        known = ", ".join(_FAMILIES)
        raise ValueError(f"no family is called {name!r}; there are {known}") from None


def family_names() -> tuple[str, ...]:
    """The names of all registered families, ours first."""
    return tuple(_FAMILIES)


for _family in (POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY):
    register_family(_family)
