"""Questions to an access-control service, and its answers: `allow`, `allow` with user tags, or `deny`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PATHS: Final = ("user", "vhost", "resource", "topic")
"""Kinds of questions; each has a URL of its own."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    :param kind: one of PATHS.
    :param parameters: form parameters, by name.
    :param secret: password, which is asked for but not kept; empty if there is none.
    """

    kind: str
    parameters: tuple[tuple[str, str], ...]
    secret: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a question.

    :param allowed: True if access is allowed; False also if there was no answer.
    :param tags: user tags, of an answer about a login.
    :param has_failed: True if the service did not answer, or with something else.
    """

    allowed: bool
    tags: tuple[str, ...] = ()
    has_failed: bool = False


FAILED: Final = Answer(False, has_failed=True)


def parse_answer(kind: str, text: str) -> Answer | None:
    """Parse the text of an answer; None if it is none."""
    word, _, rest = text.strip().partition(" ")
    if word.lower() == "deny":
        return Answer(False)
    if word.lower() == "allow" and (not rest or kind == "user"):
        return Answer(True, tuple(dict.fromkeys(tag for tag in rest.split() if "," not in tag)))
    return None
