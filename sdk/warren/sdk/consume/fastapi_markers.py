"""FastAPI's markers on parameters, read without FastAPI being imported: `Depends` works, what needs a request is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

REQUEST_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "starlette.requests": ("Request", "HTTPConnection"),
    "starlette.responses": ("Response",),
    "starlette.websockets": ("WebSocket",),
    "starlette.background": ("BackgroundTasks",),
    "fastapi.background": ("BackgroundTasks",),
    "fastapi.security": ("SecurityScopes",),
}
"""Classes, by module, whose instances FastAPI takes from an HTTP request."""
REQUEST_MARKERS = ("Param", "Body")
"""Classes of `fastapi.params` whose subclasses (`Query`, `Path`, `Header`, `Cookie`, `Form`, `File`) read a request."""


class FastApiDepends(NamedTuple):
    """FastAPI's `Depends`.

    :ivar function: the dependency, None for the annotated class itself.
    :ivar cache: call the function once for each message.
    """

    function: Any
    cache: bool


def read_depends(marker: object) -> FastApiDepends | None:
    """Return the content of a `Depends` or `Security` of FastAPI; None for any other object."""
    kind = _loaded("fastapi.params", "Depends")
    if kind is None or not isinstance(marker, kind):
        return None
    found: Any = marker
    return FastApiDepends(found.dependency, found.use_cache)


def needed_request(hint: Any, marks: tuple[object, ...]) -> str | None:
    """Return the name of what a parameter takes from an HTTP request (`Request`, `Query`); None if it needs none.

    :param hint: annotation of the parameter, without `Annotated`.
    :param marks: its default and the rest of `Annotated`.
    """
    for name in REQUEST_MARKERS:
        kind = _loaded("fastapi.params", name)
        for mark in marks:
            if kind is not None and isinstance(mark, kind):
                return type(mark).__name__
    if isinstance(hint, type):
        for module, names in REQUEST_TYPES.items():
            for name in names:
                kind = _loaded(module, name)
                if kind is not None and issubclass(hint, kind):
                    return hint.__name__
    return None


def _loaded(module: str, name: str) -> Any:
    """Return a class of a module that the program has imported; None if it has not."""
    return getattr(sys.modules.get(module), name, None)
