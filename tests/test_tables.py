"""The tables of the README and the documentation, which `docs/tables.py` writes from `results`."""

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "docs" / "tables.py"


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


def test_every_table_is_published_once():
    published = re.findall(r"<!-- table: (\w+) -->", "".join(TEXTS.values()))
    assert sorted(published) == sorted(tables.TABLES)
