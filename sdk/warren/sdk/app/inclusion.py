"""Inclusion of components and routers in an App: what was made in this process and never included is told at its start."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from weakref import ref

from warren.sdk.errors import ConfigError
from warren.sdk.logger import log

if TYPE_CHECKING:
    from warren.sdk.app.app import App


class Includable(Protocol):
    """Protocol of what an App includes and what has no effect without that."""

    @property
    def inclusion_title(self) -> str:
        """Kind and name, such as `Saga orders`."""
        ...

    @property
    def lost_without_app(self) -> str:
        """Consequence of a missing inclusion, as a clause; empty if there is none, or an error tells it at each use."""
        ...


class NotIncluded(NamedTuple):
    """An object that no App includes.

    :ivar title: kind and name.
    :ivar place: module and line of the code that made it.
    :ivar consequence: what does not happen, as a clause.
    """

    title: str
    place: str
    consequence: str


_undecided: dict[int, tuple[ref[Includable], str]] = {}
"""Objects that no App includes, by their identity, with the places of their creation."""
_lock: Final = threading.RLock()
"""Reentrant, because the garbage collector may forget an object while it is held."""


def note_made(part: Includable) -> None:
    """Remember an object until an App includes it or leaves it out, or nobody has it any more."""
    key = id(part)
    with _lock:
        _undecided[key] = (ref(part, lambda _: _forget(key)), _calling_place())


def note_decided(part: object) -> None:
    """Forget an object that an App includes or leaves out."""
    _forget(id(part))


def _forget(key: int) -> None:
    with _lock:
        _undecided.pop(key, None)


def _remembered() -> list[tuple[Includable, str]]:
    with _lock:
        known = list(_undecided.values())
    return [(part, place) for reference, place in known if (part := reference()) is not None]


def not_included() -> list[NotIncluded]:
    """Return the objects of this process about which no App has decided, and whose absence has a consequence, in the order
    in which they were made."""
    return [
        NotIncluded(part.inclusion_title, place, consequence)
        for part, place in _remembered()
        if (consequence := part.lost_without_app)
    ]


def log_not_included() -> None:
    """Log the objects that no App includes, each once in the process."""
    for part, place in _remembered():
        if consequence := part.lost_without_app:
            log.warning(
                "event=component.not_included component=%s made=%s consequence=%s",
                part.inclusion_title,
                place,
                consequence,
            )
            note_decided(part)


class IncludedComponent:
    """Base class of components: it knows the App that includes the component, and tells if there is none.

    A component that acts only when it is included overrides `lost_without_app`. Its own `__init__` calls this one when the
    attributes that these properties read are there, so that one whose arguments are refused is not remembered.
    """

    def __init__(self) -> None:
        self._app: App | None = None
        self._is_left_out = False
        note_made(self)

    @property
    def inclusion_title(self) -> str:
        """Kind and name, such as `Saga orders`."""
        name = getattr(self, "name", None)
        return type(self).__name__ if name is None else f"{type(self).__name__} {name}"

    @property
    def lost_without_app(self) -> str:
        """Consequence of a missing inclusion, as a clause; empty if there is none, or an error tells it at each use."""
        return ""

    def register(self, app: App) -> None:
        """Remember the App; `app.include` calls this once."""
        self._app = app
        note_decided(self)

    def leave_out(self) -> None:
        """Accept that no App includes the component; `app.leave_out` calls this."""
        self._is_left_out = True
        note_decided(self)

    def included_in(self) -> App:
        """Return the App that includes the component.

        :raises ConfigError: if there is none.
        """
        if self._app is None:
            raise ConfigError(
                f"{self.inclusion_title} belongs to no App: call app.include(...) with it first"
            )
        return self._app


def _calling_place() -> str:
    """Return module and line of the first calling function that is not Warren's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("warren."):
        frame = frame.f_back
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_lineno}"
