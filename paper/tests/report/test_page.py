"""The report: its content, its treatment of damaged results, and that it is self-contained."""

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from powerspherical_paper import claims
from powerspherical_paper.report.page import (
    TEMPLATE,
    TOPICS,
    ReportError,
    duration,
    read,
    write_report,
)
from result_folders import write_all, write_vae


class Page(HTMLParser):
    """The elements of a page in order, as (tag, attributes), and its text."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return write_all(tmp_path_factory.mktemp("results"), patch)


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the results that a test may change."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture(scope="module")
def page(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def document(folder, name):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def test_every_experiment_has_its_section(page):
    sections = [one["id"] for one in page.all("section")]
    assert sections == ["summary", *TOPICS]
    assert set(TOPICS) == set(claims.CLAIMS)
    assert "No result in this folder" not in page.text
    for claim in claims.CLAIMS.values():
        assert page.text.count(claim.text) == 2  # in the summary and in its section


def test_the_page_stands_alone(folder, page):
    images = [one["src"].partition(",") for one in page.all("img")]
    assert {kind for kind, _, _ in images} == {"data:image/png;base64"}
    assert base64.b64decode(images[0][2]) == (folder / "figure1.png").read_bytes()
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "audio", "video"}
    template = files("powerspherical_paper.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", template, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_is_well_built(page):
    tags = [tag for tag, _ in page.elements]
    assert [tags.count(tag) for tag in ("h1", "header", "nav", "main")] == [1, 1, 1, 1]
    assert tags.count("table") == tags.count("caption") == tags.count("thead") > len(TOPICS)
    assert all(one.get("scope") for one in page.all("th"))
    assert len(page.all("figure")) == len(page.all("figcaption")) == len(page.all("img")) == 5
    assert all(len(one["alt"]) > 40 for one in page.all("img"))
    ids = [one["id"] for _, one in page.elements if "id" in one]
    assert len(ids) == len(set(ids))
    inner = {one["href"][1:] for one in page.all("a") if one["href"].startswith("#")}
    assert set(TOPICS) <= inner <= set(ids)


def test_the_summary_says_how_it_was_made(folder, page):
    for name in TOPICS:
        one = document(folder, name)
        assert one["command"] in page.text
        assert one["versions"]["torch"] in page.text
        assert one["hardware"]["cpu"] in page.text
    assert "1 h 1 min" in page.text
    assert " ".join(page.text.split()).count("dims[3] concentrations[5.0] samples1000") == 1
    assert page.text.count("A quick run, smaller") == 1  # the training time's


def test_what_is_missing_gets_its_command(tmp_path):
    write_vae(tmp_path)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert len(page.all("section")) == 1 + len(TOPICS)
    lines = [f"No result in this folder. To make it, run: {topic.command}" for topic in TOPICS.values()]
    told = [line for line in page.text.splitlines() if line.startswith("No result")]
    assert told == lines[:4] + lines[5:]  # all but the auto-encoders


def test_variants_lie_side_by_side(copied):
    """Tables and figures name the hardware that made them. The closed forms are always computed on the CPU."""
    for name in ("efficiency", "stability"):
        one = document(copied, name)
        one["hardware"] |= {"cpu": "Old Faithful", "device": "NVIDIA <H200>"}  # escaped, too
        (copied / f"{name}_cuda.json").write_text(json.dumps(one), encoding="utf-8")
    shutil.copy(copied / "accuracy.png", copied / "accuracy_cuda.png")
    source = write_report(copied).read_text(encoding="utf-8")
    page = Page(source)
    assert "<H200>" not in source
    assert len(page.all("section")) == 1 + len(TOPICS)
    text = " ".join(page.text.split())
    for says in (
        "On the CPU the vMF takes",
        "On NVIDIA <H200> the vMF takes",
        "Cells by the state of their draws. Computed on NVIDIA <H200>.",
        "Worst errors of the closed forms. Computed on Old Faithful.",
        "over a wider grid. Computed on Old Faithful.",
    ):
        assert says in text
    labelled = len(page.all("table")) - 2 + len(page.all("figure"))  # all but the two tables of the summary
    assert text.count("Computed on") == labelled


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"results"', '"outcome"'),
        lambda text: text.replace('"hardware"', '"machine"'),
        lambda text: json.dumps({**json.loads(text), "results": 3}),
        lambda text: json.dumps({**json.loads(text), "results": {}}),
        lambda text: json.dumps({**json.loads(text), "seconds": "long"}),
        lambda text: json.dumps({**json.loads(text), "created": "yesterday"}),
    ],
)
def test_a_damaged_file_is_named(folder, tmp_path, name, damage):
    path = tmp_path / f"{name}.json"
    path.write_text(damage((folder / path.name).read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(
        ReportError,
        match=rf"{name}\.json is damaged .* make it again with: powerspherical reproduce .* --force",
    ) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_leaves_the_old_report(tmp_path):
    (tmp_path / "figure1.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "report.html").write_text("old")
    with pytest.raises(ReportError, match=r"figure1\.json is damaged"):
        write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"


def test_nothing_to_report(tmp_path):
    for folder, quoted in ((tmp_path, tmp_path), (tmp_path / "no where", f"'{tmp_path / 'no where'}'")):
        with pytest.raises(ReportError, match=rf"no results .* powerspherical reproduce all --out {quoted}$"):
            write_report(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("seconds", "shown"), [(2.26, "2.3 s"), (445.4, "7 min 25 s"), (3700, "1 h 1 min"), (59.7, "1 min 0 s")]
)
def test_duration(seconds, shown):
    assert duration(seconds) == shown
