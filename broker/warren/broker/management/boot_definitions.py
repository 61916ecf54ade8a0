"""Definitions that a broker loads whenever it starts (https://www.rabbitmq.com/docs/definitions#import-on-boot)."""

from __future__ import annotations

import json
from pathlib import Path

from warren.broker.management.definitions_export import Holdings
from warren.broker.management.definitions_import import take_in
from warren.broker.management.request import Json
from warren.broker.model.operator_errors import OperationRefused


class DefinitionsError(Exception):
    """They cannot be loaded. Its text is one line: which file, and what is wrong there."""


def read_definitions(path: Path | None) -> list[tuple[Path, Json]]:
    """The definitions in a file, or in all `*.json` of a folder in the order of their names.

    :raises DefinitionsError: if one cannot be read, or is not JSON.
    """
    if path is None:
        return []
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            found.append((file, json.loads(file.read_text(encoding="utf-8"))))
        except OSError as error:
            raise DefinitionsError(f"cannot read the definitions {file}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise DefinitionsError(f"the definitions {file} are not JSON: {error}") from None
    return found


def brings(found: list[tuple[Path, Json]], kind: str) -> bool:
    """Whether there is any definition of a kind in them."""
    return any(isinstance(definitions, dict) and definitions.get(kind) for _, definitions in found)


def load_definitions(found: list[tuple[Path, Json]], holdings: Holdings) -> None:
    """Take them all in.

    :raises DefinitionsError: naming the definition that is wrong.
    """
    for file, definitions in found:
        try:
            for _ in take_in(definitions, holdings):
                pass
        except OperationRefused as refused:
            raise DefinitionsError(f"the definitions {file} are refused: {refused}") from None
