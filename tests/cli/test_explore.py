"""`powerspherical explore`: opens the page in a browser, or says where it is."""

import webbrowser
from pathlib import Path

from powerspherical import cli


def test_the_path_is_printed(capsys, monkeypatch):
    monkeypatch.delattr(webbrowser, "open")
    assert cli.run(["explore", "--print-path"]) == 0
    shown = capsys.readouterr()
    page = Path(shown.out.rstrip("\n"))
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert shown.err == ""


def test_the_page_is_opened(capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda url: not opened.append(url))
    assert cli.run(["explore"]) == 0
    assert capsys.readouterr() == ("", "")
    [url] = opened
    assert url.startswith("file://")
    assert url.endswith("/powerspherical/explorer/index.html")


def test_without_a_browser_it_says_where_the_page_is(capsys, monkeypatch):
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert cli.run(["explore"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("powerspherical: no browser was found: open this file in a browser: ")
    assert Path(shown.err.rpartition(": ")[2].strip()).is_file()
