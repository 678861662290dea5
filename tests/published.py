"""What a command says to machines, against the schema that docs/schema publishes for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import referencing

SCHEMAS = Path(__file__).parent.parent / "docs" / "schema"


def complaints(name: str, document: object) -> list[str]:
    """What the schema of this name objects to, each with its place."""
    found = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    resources = [(one["$id"], referencing.Resource.from_contents(one)) for one in found.values()]
    checker: Any = jsonschema.Draft202012Validator(
        found[name], registry=referencing.Registry().with_resources(resources)
    )
    return [f"{list(error.absolute_path)}: {error.message}" for error in checker.iter_errors(document)]
