"""Installation hints for optional dependencies."""


def install_hint(extra: str) -> str:
    """The commands that install an extra, for use in error messages.

    >>> print(install_hint("mixture"))
    pip install 'powerspherical[mixture]' (in a checkout of the project: pip install -e '.[mixture]')
    """
    return (
        f"pip install 'powerspherical[{extra}]' (in a checkout of the project: pip install -e '.[{extra}]')"
    )
