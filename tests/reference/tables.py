"""Read and write the tables: JSON with one row per line and numbers as strings of 20 significant digits."""

import json
from pathlib import Path

import mpmath
from mpmath import mp

FOLDER = Path(__file__).parent


def digits(x) -> str:
    return mp.nstr(x, 20, min_fixed=-3, max_fixed=6)


def recipe(script: str, note: str) -> str:
    return f"{Path(script).name}, mpmath {mpmath.__version__}, {mp.dps} digits: {note}"


def save(name: str, table: dict) -> None:
    """Write a table, with one line per row for each list of lists."""
    parts = []
    for key, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], list):
            text = "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in value) + "\n]"
        else:
            text = json.dumps(value)
        parts.append(f"{json.dumps(key)}: {text}")
    (FOLDER / name).write_text("{\n" + ",\n".join(parts) + "\n}\n")


def load(name: str) -> dict:
    return json.loads((FOLDER / name).read_text())
