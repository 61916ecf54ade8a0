"""Blocking client of the HTTP API."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Answer to a request; `body` is parsed from JSON, or None."""

    status: int
    body: Any
    headers: dict[str, str]


class HttpApi:
    """Client of one broker's HTTP API as one user."""

    def __init__(self, base: str, user: str = "guest", password: str = "guest") -> None:
        self.base = base
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request; `body` is sent as JSON, bytes as they are.

        :param path: path after `/api/`
        """
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base}/api/{path}", data=data, method=method)
        request.add_header("Authorization", self._authorization)
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return Answer(answer.status, _parsed(answer.read()), dict(answer.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _parsed(error.read()), dict(error.headers))

    def get(self, path: str) -> Any:
        """Return the body of a successful GET."""
        found = self.ask("GET", path)
        assert found.status == 200, found
        return found.body

    def put(self, path: str, body: Any = None) -> None:
        found = self.ask("PUT", path, {} if body is None else body)
        assert found.status in (201, 204), found


def _parsed(body: bytes) -> Any:
    return json.loads(body) if body else None
