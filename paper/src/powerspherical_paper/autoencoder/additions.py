"""Add the rows of one posterior to an existing table, without repeating the others.

The file records how its first rows were made. Its entry "additions" holds the same record for each posterior that was
added later.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from powerspherical_paper.autoencoder.table import place

Document = dict[str, Any]
RECORD = ("command", "created", "seconds", "versions", "hardware")
SHARED = ("data", "train_images", "test_images", "samples")
"""Settings that all rows of one table must share."""


class AdditionError(Exception):
    """Rows cannot be added to a table. The message says why, and what to do."""


def table_to_add_to(path: Path, posterior: str, configuration: dict[str, Any]) -> Document | None:
    """The existing result at a path, or None if there is none or it has no rows of other posteriors.

    Raises:
        AdditionError: the result is damaged, or its settings differ from those of the rows to add.
    """
    if not path.exists():
        return None
    try:
        document: Document = json.loads(path.read_text(encoding="utf-8"))
        settings = document["configuration"]
        theirs = [settings[name] for name in SHARED]
        protocols = settings["protocols"]
        others = [row for row in document["results"] if row["posterior"] != posterior]
    except (ValueError, LookupError, TypeError) as error:
        raise AdditionError(f"{path} is damaged ({type(error).__name__}: {error}); delete it") from error
    if not others:
        return None
    for name, value in zip(SHARED, theirs, strict=True):
        if value != configuration[name]:
            raise AdditionError(
                f"the rows in {path} have {name}={value}, but the new ones {name}={configuration[name]}; "
                "write to another folder with --out"
            )
    for name, protocol in configuration["protocols"].items():
        if protocols.get(name, protocol) != protocol:
            raise AdditionError(
                f"the rows in {path} have a different protocol {name!r}: {protocols[name]}, "
                f"but the new ones {protocol}; write to another folder with --out"
            )
    return document


def added_to(earlier: Document, posterior: str, new: Document) -> Document:
    """The earlier result with its rows of one posterior, if any, replaced by those of a new result."""
    rows = [row for row in earlier["results"] if row["posterior"] != posterior] + new["results"]
    kept = trainings(rows) - trainings(new["results"])
    before, ours = earlier["configuration"], new["configuration"]
    configuration = before | {
        "seeds": sorted({*before["seeds"], *ours["seeds"]}),
        "dims": sorted({*before["dims"], *ours["dims"]}),
        "runs": max(before["runs"], kept + ours["runs"]),
        "protocols": before["protocols"] | ours["protocols"],
    }
    rows.sort(key=place)
    additions = earlier.get("additions", {}) | {posterior: {name: new[name] for name in RECORD}}
    return earlier | {"configuration": configuration, "results": rows, "additions": additions}


def trainings(rows: Sequence[dict[str, Any]]) -> int:
    """The number of trainings behind the rows; a row with a proposal scores a model a second time."""
    return sum(row["proposal"] is None for row in rows)


def seconds_before(path: Path, options: str, posterior: str | None) -> float:
    """The seconds that earlier starts of the same command took, according to the result that they left."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        made = document.get("additions", {}).get(posterior, document)
        return float(made["seconds"]) if options in made["command"] else 0.0
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0.0  # there is no readable result, and we write a new one
