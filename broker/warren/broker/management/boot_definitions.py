"""Import of definitions at every start of the broker (https://www.rabbitmq.com/docs/definitions#import-on-boot)."""

from __future__ import annotations

from pathlib import Path

from warren.broker.management.definitions_export import BrokerMetadata
from warren.broker.management.definitions_import import import_in_steps
from warren.broker.management.json_encoding import decode
from warren.broker.management.request import Json
from warren.broker.model.operator_errors import OperationRefused


class DefinitionsError(Exception):
    """Failure to load definitions. The text is one line: the file, and what is wrong in it."""


def read_definitions(path: Path | None) -> list[tuple[Path, Json]]:
    """Read definitions, as (file, content) pairs, from a file, or all `*.json` files of a folder in name order.

    :param path: file or folder; None for no definitions
    :raises DefinitionsError: if a file cannot be read, or is not JSON
    """
    if path is None:
        return []
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            found.append((file, decode(file.read_text(encoding="utf-8"))))
        except OSError as error:
            raise DefinitionsError(f"cannot read the definitions {file}: {error.strerror or error}") from None
        except ValueError as error:
            raise DefinitionsError(f"the definitions {file} are not JSON: {error}") from None
    return found


def contains_kind(found: list[tuple[Path, Json]], kind: str) -> bool:
    """Return True if any of the files that were read defines an object of a kind, such as a user.

    :param found: files and their contents, from `read_definitions`
    :param kind: top-level key of definitions, such as "users"
    """
    return any(isinstance(definitions, dict) and definitions.get(kind) for _, definitions in found)


def load_definitions(found: list[tuple[Path, Json]], metadata: BrokerMetadata) -> None:
    """Import the definitions of all files that `read_definitions` has read.

    :param found: (file, content) pairs from `read_definitions`
    :raises DefinitionsError: with the file, and the definition that is wrong
    """
    for file, definitions in found:
        try:
            for _ in import_in_steps(definitions, metadata):
                pass
        except OperationRefused as refused:
            raise DefinitionsError(f"the definitions {file} are refused: {refused}") from None
