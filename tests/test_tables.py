"""The tables of the README and the documentation, which `benchmarks/tables.py` writes from `results`."""

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "tables.py"


def module():
    spec = importlib.util.spec_from_file_location("tables", SCRIPT)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


tables = module()
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in tables.PAGES}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in TEXTS.items()])
def test_the_tables_hold_the_published_results(text):
    assert tables.filled(text) == text


def test_a_wrong_number_is_found():
    changed = TEXTS["paper"].replace("−96.84", "−96.85")
    assert tables.filled(changed) == TEXTS["paper"] != changed


def test_every_table_is_published_once():
    published = re.findall(r"<!-- table: (\w+) -->", "".join(TEXTS.values()))
    assert sorted(published) == sorted(tables.TABLES)
