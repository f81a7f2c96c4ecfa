"""Adding the rows of one posterior to a table that is there already, without making the others again.

The file keeps the record of how its first rows were made. Under "additions" it has the same record for each posterior
that was added, by name.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from powerspherical.experiments.autoencoder.table import place

Document = dict[str, Any]
RECORD = ("command", "created", "seconds", "versions", "hardware")
SHARED = ("data", "train_images", "test_images", "samples")
"""The settings that must agree between all rows of one table."""


class AdditionError(Exception):
    """Rows that cannot be added to a table; the message says why, and what to do."""


def table_to_add_to(path: Path, posterior: str, configuration: dict[str, Any]) -> Document | None:
    """The result at a path, if it has rows of other posteriors.

    Raise `AdditionError` unless the result can be read and its settings are those of the rows to be added.
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
                f"the rows in {path} have {name} {value}, the ones to be added {configuration[name]}; "
                "write to another folder with --out"
            )
    for name, protocol in configuration["protocols"].items():
        if protocols.get(name, protocol) != protocol:
            raise AdditionError(
                f"the rows in {path} were trained by another protocol of the name {name!r}, {protocols[name]}, "
                f"not {protocol}; write to another folder with --out"
            )
    return document


def added_to(earlier: Document, posterior: str, new: Document) -> Document:
    """The earlier result with the rows of one posterior from a new one, in place of those that it has."""
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
    """How many trainings the rows come from: with another proposal, a model is scored a second time."""
    return sum(row["proposal"] is None for row in rows)


def seconds_before(path: Path, options: str, posterior: str | None) -> float:
    """How long earlier starts of the same command have taken, by the result that they left."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        made = document.get("additions", {}).get(posterior, document)
        return float(made["seconds"]) if options in made["command"] else 0.0
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return 0.0  # none, or none that can be read: it will be written anew
