"""The registry of families: those of the package and those that users add."""

from __future__ import annotations

from powerspherical.families.base import Family
from powerspherical.families.power_spherical import POWER_SPHERICAL
from powerspherical.families.spherical_cauchy import SPHERICAL_CAUCHY
from powerspherical.families.von_mises_fisher import VON_MISES_FISHER

_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> Family:
    """Register a family, so that operators, heads, mixtures and the command line accept its name. Returns it.

    A family of the same class and name replaces the earlier one, as when a module is reloaded. A distribution class
    registers its family by itself.

    >>> register_family(POWER_SPHERICAL)
    <Power Spherical family>
    """
    known = _FAMILIES.get(family.name)
    if known is not None and type(known).__qualname__ != type(family).__qualname__:
        raise ValueError(f"the name {family.name!r} is already taken by {known!r}: choose another name")
    _FAMILIES[family.name] = family
    return family


def family_named(name: str) -> Family:
    """Return the family registered under this name.

    >>> family_named("spherical_cauchy")
    <spherical Cauchy family>
    """
    try:
        return _FAMILIES[name]
    except KeyError:
        raise ValueError(f"unknown family {name!r}: choose one of {', '.join(_FAMILIES)}") from None


def restored(kind: type[Family], name: str) -> Family:
    """Return the family of this class for ``pickle`` and ``copy``: the registered object, or else a new one.

    Families have no state, but formulas that hold within one family recognise it by identity.
    """
    known = _FAMILIES.get(name)
    return known if known is not None and type(known) is kind else kind()


def family_names() -> tuple[str, ...]:
    """Return the names of all registered families, those of the package first.

    >>> family_names()[:3]
    ('power_spherical', 'von_mises_fisher', 'spherical_cauchy')
    """
    return tuple(_FAMILIES)


for _family in (POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY):
    register_family(_family)
