"""The explorer in headless Chromium: it moves, is right, and can be read and reached by everyone."""

import contextlib
import io
import math
from urllib.parse import parse_qs

import pytest
from torch.distributions import kl_divergence

from helpers.browser import Page, needs_browser
from powerspherical.cli.explore import PAGE

pytestmark = [needs_browser, pytest.mark.slow]

# A result computed from the pixels of the canvas.
PIXELS = """(() => {{
  const {{ width, height }} = sphere;
  const copy = new OffscreenCanvas(width, height).getContext("2d", {{ willReadFrequently: true }});
  copy.drawImage(sphere, 0, 0);
  const pixels = new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer);
  return {result};
}})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser):
    """The browser, with a check after the test: no message on the console, no request but for the page's own files."""
    browser.events.clear()
    yield browser
    assert browser.complaints() == []
    own = PAGE.parent.as_uri()
    assert [url for url in browser.requests() if not url.startswith((own, "data:"))] == []


def shown(page, key):
    """The value in a cell, with all its digits."""
    return float(page.evaluate(f"document.getElementById('{key}').dataset.value"))


def summaries(page):
    """The table: heading to the values of A and B."""
    rows = page.evaluate(
        "[...summaries.rows].map((row) => [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent))"
    )
    return {heading: (float(a), float(b)) for heading, a, b in rows}


def run(page):
    """Run the Python code of the page. Returns its variables."""
    variables = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(page.evaluate("code.textContent"), variables)
    return variables


def state(page):
    """The parameters in the address."""
    return {key: value for key, [value] in parse_qs(page.evaluate("location.hash.slice(1)")).items()}


def test_controls_move_the_numbers_and_the_address(page):
    page.open(PAGE.as_uri())
    before, entropy = shown(page, "kl-ab"), summaries(page)["Entropy"]
    page.evaluate("document.querySelector('[data-key=ka] [type=range]').focus()")
    page.press("ArrowRight", times=3)
    assert shown(page, "kl-ab") != before
    assert summaries(page)["Entropy"][0] < entropy[0]
    assert summaries(page)["Entropy"][1] == entropy[1]
    made = run(page)
    assert float(made["a"].concentration) == float(page.evaluate("ka.value")) > 10
    page.evaluate("b.value = 'spherical_cauchy'; b.dispatchEvent(new Event('change'))")
    page.evaluate("d.value = '24'; d.dispatchEvent(new Event('input'))")
    page.settle()
    kept, value = state(page), shown(page, "kl-ab")
    assert (kept["d"], kept["b"], float(kept["ka"])) == ("24", "spherical_cauchy", made["a"].concentration)
    page.open(f"{PAGE.as_uri()}#{page.evaluate('location.hash.slice(1)')}")
    assert shown(page, "kl-ab") == value
    page.evaluate("location.hash = '#d=5'")
    page.settle()
    assert page.evaluate("d.value") == "5"


@pytest.mark.parametrize(
    "given",
    [
        "d=2&a=power_spherical&ka=4&b=spherical_cauchy&kb=3&angle=110",
        "d=17&a=spherical_cauchy&ka=2.5&b=von_mises_fisher&kb=33&angle=90.5",
        "d=10000&a=uniform&ka=1&b=power_spherical&kb=70000&angle=180",
    ],
)
def test_the_python_code_makes_what_the_page_shows(page, given):
    page.open(f"{PAGE.as_uri()}#{given}")
    made = run(page)
    a, b = made["a"], made["b"]
    assert made["x"].shape == made["y"].shape == (400, int(page.evaluate("d.value")))
    assert shown(page, "kl-ab") == pytest.approx(float(kl_divergence(a, b)), rel=1e-9)
    assert shown(page, "kl-ba") == pytest.approx(float(kl_divergence(b, a)), rel=1e-9)
    table = summaries(page)
    for index, law in enumerate((a, b)):
        assert table["Entropy"][index] == pytest.approx(float(law.entropy()), rel=1e-10)
        assert table["Mean length ‖E x‖"][index] == pytest.approx(float(law.mean.norm()), rel=1e-9, abs=1e-12)
        if hasattr(law, "cap_angle"):
            assert table["Cap of 95 %"][index] == pytest.approx(float(law.cap_angle(0.95)), rel=1e-6)


@pytest.mark.parametrize("given", ["d=1e9&ka=-3&angle=720", "d=&ka=NaN&a=constructor&view=x"])
def test_a_wrong_address_is_put_right(page, given):
    page.open(f"{PAGE.as_uri()}#{given}")
    assert page.evaluate("[d, ka, angle].every((field) => field.checkValidity())")
    assert shown(page, "kl-ab") >= 0


def test_the_sphere_turns_and_layers_can_be_hidden(page):
    page.open(PAGE.as_uri() + "#d=8")
    page.evaluate("sphere.focus()")
    views = []
    for key in ("ArrowRight", "ArrowDown"):
        page.press(key)
        views.append(state(page)["view"])
    x, y = page.evaluate(
        "(({ x, y, width }) => [x + width / 2, y + width / 2])(sphere.getBoundingClientRect())"
    )
    page.drag((x, y), (x + 50, y - 30))
    assert len({*views, state(page)["view"]}) == 3
    colours = PIXELS.format(result="new Set(pixels).size")
    found = [page.evaluate(colours)]
    for name in ("density", "draws", "caps"):
        page.evaluate(f"document.getElementById('show-{name}').click()")
        page.settle()
        found.append(page.evaluate(colours))
    assert found == sorted(found, reverse=True)
    assert found[0] > 2 * found[-1] > 100


@pytest.mark.parametrize("dim", [2, 3, 10_000])
@pytest.mark.parametrize("family", ["power_spherical", "von_mises_fisher", "spherical_cauchy"])
@pytest.mark.parametrize("kappa", [0.001, 1e6])
def test_extremes_are_drawn(page, family, dim, kappa):
    page.open(f"{PAGE.as_uri()}#d={dim}&a={family}&ka={kappa}&b=uniform")
    values = [value for pair in summaries(page).values() for value in pair]
    assert all(map(math.isfinite, [*values, shown(page, "kl-ab"), shown(page, "kl-ba")]))
    assert "NaN" not in page.evaluate("chart.innerHTML")
    black = "pixels.filter((pixel) => pixel === 0xff000000).length"
    assert page.evaluate(PIXELS.format(result=black)) == 0
    caption = page.evaluate("caption.textContent")
    assert caption.startswith(f"d = {dim}: ")
    assert ("not true" in caption) == (dim > 3)


@pytest.mark.parametrize("width", [360, 820, 1280])
def test_no_horizontal_scroll(page, width):
    for given in ("", "d=10000&a=spherical_cauchy&ka=1000000&b=uniform", "d=2&ka=0.001&kb=654321"):
        page.open(f"{PAGE.as_uri()}#{given}", width=width)
        assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
        edges = page.evaluate(
            "[...document.querySelectorAll('.card *:not(code)')].map(one => one.getBoundingClientRect().right)"
        )
        assert max(edges) <= width


def test_texts_have_contrast(page):
    page.open(PAGE.as_uri() + "#d=8")
    assert page.faint_texts() == []


def test_everything_is_reached_by_the_keyboard_and_has_a_name(page):
    page.open(PAGE.as_uri())
    controls = page.evaluate("document.querySelectorAll('input, select, button, canvas, pre').length")
    reached = set()
    for _ in range(controls + 4):
        page.press("Tab")
        focused = "[...document.querySelectorAll('body *')].indexOf(document.activeElement)"
        reached.add(page.evaluate(focused))
    assert len(reached - {-1}) == controls
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("slider", "spinbutton", "combobox", "checkbox", "button", "application", "image", "region")
    named = [node for node in nodes if node.get("role", {}).get("value") in roles and not node["ignored"]]
    assert len(named) > controls
    assert [node["role"] for node in named if not node["name"]["value"]] == []


def test_the_code_is_copied(page):
    page.open(PAGE.as_uri())
    page.evaluate("copy.click()")
    page.evaluate("new Promise(done => setTimeout(done, 200))")
    told = page.evaluate("copied.textContent")
    assert told in ("Copied.", "Selected: press Ctrl+C or ⌘C.")
    if told != "Copied.":
        assert page.evaluate("String(getSelection()).trim() === code.textContent.trim()")
