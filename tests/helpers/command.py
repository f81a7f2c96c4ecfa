"""Assertions about the command `powerspherical`."""

from powerspherical import cli


def assert_wrong_use(arguments: list[str], says: str, capsys) -> None:
    """The command exits with status 2 and prints nothing but one line, which contains `says`, on standard error."""
    assert cli.run(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert shown.err.startswith("powerspherical: ")
    assert shown.err.count("\n") == 1
