"""Installation hints for optional dependencies."""


def install_hint(extra: str) -> str:
    """The commands that install an extra, for use in error messages."""
    return f"pip install 'powerspherical[{extra}]' (in a checkout: pip install -e '.[{extra}]')"
