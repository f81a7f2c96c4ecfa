"""The report on the published results: its content, its treatment of damaged results, and that it is self-contained."""

import base64
import json
import shutil
from html.parser import HTMLParser

import pytest

from powerspherical_paper import claims
from powerspherical_paper.report.page import TOPICS, ReportError, duration, read, write_report
from results_of import PUBLISHED

#: The published file of each topic, by the name that it has in a folder of one's own.
FILES = {name: PUBLISHED / f"{name.replace('vae', 'vae_mnist')}.json" for name in TOPICS}


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


@pytest.fixture
def folder(tmp_path):
    """A copy of the published results of the CPU that a test may change."""
    for name, path in FILES.items():
        shutil.copy(path, tmp_path / f"{name}.json")
        if path.with_suffix(".png").exists():
            shutil.copy(path.with_suffix(".png"), tmp_path / f"{name}.png")
    shutil.copy(PUBLISHED / "accuracy.png", tmp_path)
    return tmp_path


@pytest.fixture
def page(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_its_content(folder, page):
    sections = [one["id"] for one in page.all("section")]
    assert sections == ["summary", *TOPICS]
    assert set(TOPICS) == set(claims.CLAIMS)
    assert "No result in this folder" not in page.text
    for claim in claims.CLAIMS.values():
        assert page.text.count(claim.text) == 2  # in the summary and in its section
    for name in TOPICS:
        result = read(folder / f"{name}.json")
        assert page.text.count(result.finding.text) == 2
        for value in (
            *result.made.values(),
            *(row[0] for table in result.finding.tables for row in table.rows),
        ):
            assert value in page.text
    assert "Made with --quick" not in page.text


def test_the_page_stands_alone(folder, page):
    images = [one["src"].partition(",") for one in page.all("img")]
    assert {kind for kind, _, _ in images} == {"data:image/png;base64"}
    assert base64.b64decode(images[0][2]) == (folder / "figure1.png").read_bytes()
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "link", "iframe", "object", "embed", "audio", "video"}
    source = (folder / "report.html").read_text(encoding="utf-8")
    assert "url(" not in source
    assert "@import" not in source


def test_the_page_is_well_built(page):
    tags = [tag for tag, _ in page.elements]
    assert [tags.count(tag) for tag in ("h1", "header", "main")] == [1, 1, 1]
    assert tags.count("table") == tags.count("caption") == tags.count("thead") > len(TOPICS)
    assert all(one.get("scope") for one in page.all("th"))
    assert len(page.all("figure")) == len(page.all("figcaption")) == len(page.all("img")) == 5
    assert all(one["alt"] for one in page.all("img"))
    identifiers = [one["id"] for _, one in page.elements if "id" in one]
    assert len(set(identifiers)) == len(identifiers)
    links = {one["href"][1:] for one in page.all("a") if one["href"].startswith("#")}
    assert links == set(TOPICS)
    assert {one["aria-labelledby"] for one in page.all("section")} <= {*identifiers}


def test_missing_results(folder):
    """Their sections say how to make them. A figure that is missing is left out, and quick runs are marked."""
    for name in ("vae.json", "efficiency.json", "stability.png"):
        (folder / name).unlink()
    path = folder / "properties.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace("--seed 0", "--seed 0 --quick"), encoding="utf-8"
    )
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.text.count("No result in this folder") == page.text.count("No result yet.") == 2
    assert "powerspherical reproduce vae" in page.text
    assert len(page.all("img")) == 2
    assert page.text.count("Made with --quick") == page.text.count("(Quick run.)") == 1


def test_results_of_two_devices_stand_side_by_side(folder):
    path = folder / "efficiency_cuda.json"
    text = (PUBLISHED / path.name).read_text(encoding="utf-8")
    path.write_text(text.replace("NVIDIA H200", "NVIDIA <H200>"), encoding="utf-8")  # escaped, too
    source = write_report(folder).read_text(encoding="utf-8")
    assert "<H200>" not in source
    text = Page(source).text
    for says in (
        "On the CPU the vMF takes",
        "On NVIDIA <H200> the vMF takes",
        "efficiency_cuda: NVIDIA <H200>",
    ):
        assert says in text


@pytest.mark.parametrize("name", TOPICS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "null",
        lambda text: text.replace('"results"', '"outcome"'),
        lambda text: text.replace('"hardware"', '"machine"'),
        lambda text: json.dumps({**json.loads(text), "results": {}}),
        lambda text: json.dumps({**json.loads(text), "seconds": "long"}),
        lambda text: json.dumps({**json.loads(text), "created": "yesterday"}),
    ],
)
def test_a_damaged_file_is_named(tmp_path, name, damage):
    path = tmp_path / f"{name}.json"
    path.write_text(damage(FILES[name].read_text(encoding="utf-8")), encoding="utf-8")
    says = rf"{name}\.json is damaged .* make it again with: powerspherical reproduce .* --force"
    with pytest.raises(ReportError, match=says) as caught:
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
