"""How to install an optional part of the package."""


def install_hint(extra: str) -> str:
    """The commands that install an extra, for an error message.

    >>> print(install_hint("mixture"))
    pip install 'powerspherical[mixture]' (in a checkout of the project: pip install -e '.[mixture]')
    """
    return (
        f"pip install 'powerspherical[{extra}]' (in a checkout of the project: pip install -e '.[{extra}]')"
    )
