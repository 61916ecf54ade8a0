"""Edits of a dead letter from the command line: options, or a JSON document in the user's editor."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from warren.cli.standard_streams import read_bytes
from warren.core.errors import UsageError
from warren.core.text_escapes import escape_json
from warren.patterns.dead_letters.edit import EDITABLE_PROPERTIES, LetterEdit, is_reserved
from warren.patterns.dead_letters.parked_message import ParkedMessage


def edit_by_options(
    letter: ParkedMessage, assignments: Sequence[str], headers: Sequence[str], body: Path | None
) -> LetterEdit:
    """Return the edit that options describe.

    :param assignments: `FIELD=VALUE` texts for fields of a JSON body; `FIELD` may be a path, such as `lines.0.price`.
    :param headers: `NAME=VALUE` texts; the value null removes the header.
    :param body: file with the new body, to which the assignments apply; `-` is standard input; None for the old one.
    :raises UsageError: if a text is malformed, or the body has no such field or is not JSON.
    """
    content = letter.delivery.body if body is None else _read(body)
    if assignments:
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            raise UsageError(
                "--set needs a JSON body, and this one is not JSON; replace it with --body FILE"
            ) from None
        for each in assignments:
            name, value = _assignment(each, "--set")
            _assign(document, name, value)
        content = _encode(document)
    return LetterEdit(
        body=None if content == letter.delivery.body else content,
        headers=dict(_assignment(each, "--header") for each in headers),
    )


def edit_in_editor(letter: ParkedMessage) -> LetterEdit | None:
    """Let the user change the letter in `$VISUAL` or `$EDITOR`, and return the edit; None if nothing was changed.

    The editor shows a JSON document with the editable `properties`, the `headers` and the `body` (`body_text` if it is
    text that is not JSON; a binary body is left out). Values that are not changed keep their bytes and AMQP types.

    :raises UsageError: there is no editor, it failed, or what it saved is not such a document. The error names the file
        with the saved text, which is kept.
    """
    shown = editor_document(letter)
    command = [*shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")]
    descriptor, name = tempfile.mkstemp(
        prefix="warren-letter-", suffix=".json"
    )  # Readable by this user only.
    path = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_document_text(shown, indent=2) + "\n")
        _run_editor(command, name)
        edit = _read_edit(shown, path)
    except _NotUsable as error:
        # The one case in which the file stays: it has what the user wrote.
        raise UsageError(f"{error}; nothing was changed, and the edited text is in {name}") from None
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)
    return edit


class _NotUsable(Exception):
    """The edited text is not such a document as the editor showed."""


def _run_editor(command: Sequence[str], name: str) -> None:
    try:
        status = subprocess.run([*command, name], check=False).returncode
    except OSError as error:
        raise UsageError(
            f"cannot start the editor {command[0]!r}: {error.strerror or error}; set EDITOR"
        ) from None
    if status:
        raise UsageError(f"the editor {command[0]!r} failed with status {status}; nothing was changed")


def _read_edit(shown: Mapping[str, Any], path: Path) -> LetterEdit | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"the edited text cannot be read: {error.strerror or error}; nothing was changed"
        ) from None
    except UnicodeDecodeError as error:
        raise _NotUsable(f"the edited text is not UTF-8: {error.reason} in byte {error.start + 1}") from None
    try:
        return edit_between(shown, json.loads(text))
    except UsageError as error:
        raise _NotUsable(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise _NotUsable(f"the edited text is not JSON: {error}") from None


def editor_document(letter: ParkedMessage) -> dict[str, Any]:
    """Return the JSON document that the editor shows for a dead letter."""
    delivery = letter.delivery
    properties = {name: value for name, value in delivery.properties.items() if name in EDITABLE_PROPERTIES}
    headers = {
        name: value
        for name, value in delivery.headers.items()
        if not is_reserved(name) and isinstance(value, str | int | float | bool | None)
    }
    document: dict[str, Any] = {"properties": properties, "headers": headers}
    try:
        text = delivery.body.decode()
    except UnicodeDecodeError:
        return document
    try:
        return {**document, "body": json.loads(text)}
    except (ValueError, RecursionError):
        return {**document, "body_text": text}


def edit_between(shown: Mapping[str, Any], saved: object) -> LetterEdit | None:
    """Return the edit that makes `saved` of `shown`, both as `editor_document` returns them; None if they are equal.

    :raises UsageError: if `saved` is not such a document.
    """
    if not isinstance(saved, dict) or not saved.keys() <= {"properties", "headers", "body", "body_text"}:
        raise UsageError("the edited text must be a JSON object with properties, headers and body")
    changes: dict[str, dict[str, Any]] = {}
    for part in ("properties", "headers"):
        old, new = shown[part], saved.get(part, {})
        if not isinstance(new, dict):
            raise UsageError(f"{part} must be a JSON object")
        removed = dict.fromkeys(old.keys() - new.keys())
        changes[part] = removed | {
            name: value for name, value in new.items() if name not in old or _differs(old[name], value)
        }
    body: bytes | None = None
    if "body" in saved and "body_text" in saved:
        raise UsageError("the edited text has both body and body_text; write one of them")
    if "body" in saved:
        if "body" not in shown or _differs(shown["body"], saved["body"]):
            body = _encode(saved["body"])
    elif "body_text" in saved:
        if not isinstance(saved["body_text"], str):
            raise UsageError("body_text must be a string")
        if shown.get("body_text") != saved["body_text"]:
            body = _utf8(saved["body_text"])
    elif "body" in shown or "body_text" in shown:
        raise UsageError('the edited text has no body; for an empty body write "body_text": ""')
    if body is None and not any(changes.values()):
        return None
    return LetterEdit(body, changes["headers"], changes["properties"])


def _differs(old: object, new: object) -> bool:
    # In Python 1 == True == 1.0; in JSON they differ.
    return json.dumps(old, sort_keys=True) != json.dumps(new, sort_keys=True)


def _encode(document: object) -> bytes:
    return _document_text(document, separators=(",", ":")).encode()


def _document_text(document: object, **options: Any) -> str:
    """Return JSON that has no lone surrogates, invisible characters and the like, except as escapes.

    NaN stays NaN, as it was in the letter: the edit has to leave alone what the user does not change.
    """
    return escape_json(json.dumps(document, ensure_ascii=False, **options))


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"body_text has half of a surrogate pair at character {error.start + 1}, which UTF-8 cannot encode"
        ) from None


def _read(path: Path) -> bytes:
    if str(path) == "-":
        return read_bytes()
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


def _assignment(text: str, option: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"{option} {text!r}: write NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _assign(document: Any, path: str, value: Any) -> None:
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = _member(place, name, path)
    if isinstance(place, dict):
        place[last] = value
    else:
        _member(place, last, path)
        place[int(last)] = value


def _member(place: Any, name: str, path: str) -> Any:
    if isinstance(place, dict) and name in place:
        return place[name]
    if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
        return place[int(name)]
    raise UsageError(f"--set {path}: the body has no {name!r} there")
