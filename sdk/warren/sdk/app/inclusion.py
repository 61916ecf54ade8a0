"""Inclusion of components and routers in an App: what was made in this process and never included is told at its start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakKeyDictionary

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


_places: WeakKeyDictionary[Includable, str] = WeakKeyDictionary()
"""Objects that no App includes, with the places of their creation."""


def note_made(part: Includable) -> None:
    """Remember an object until an App includes it or leaves it out."""
    _places[part] = _calling_place()


def note_decided(part: object) -> None:
    """Forget an object that an App includes or leaves out."""
    for known in [known for known in list(_places) if known is part]:
        del _places[known]


def not_included() -> list[NotIncluded]:
    """Return the objects of this process about which no App has decided, and whose absence has a consequence, in the order
    in which they were made."""
    return [
        NotIncluded(part.inclusion_title, place, consequence)
        for part, place in list(_places.items())
        if (consequence := part.lost_without_app)
    ]


def log_not_included() -> None:
    """Log the objects that no App includes, each once in the process."""
    for part, place in list(_places.items()):
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

    A component that acts only when it is included overrides `lost_without_app`.
    """

    def __init__(self) -> None:
        self._app: App | None = None
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
