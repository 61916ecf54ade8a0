"""Settings of the access-control service, under the names of RabbitMQ's plugin.

https://github.com/rabbitmq/rabbitmq-server/tree/main/deps/rabbitmq_auth_backend_http
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from warren.broker.access.access_service.questions import PATHS


@dataclass(frozen=True, kw_only=True)
class AccessServiceConfig:
    """Settings of the access-control service that the back end `http` asks.

    :param http_method: method of the requests: `get` puts the questions into the URL, `post` into a form, so that no log of
        the service shows passwords.
    :param user_path: URL that is asked whether a user may log in.
    :param vhost_path: URL that is asked whether a user may open a virtual host.
    :param resource_path: URL that is asked for permissions on queues and exchanges.
    :param topic_path: URL that is asked for permissions on routing keys of topic exchanges.
    :param request_timeout: milliseconds until a question without an answer counts as denied.
    :param connections: largest number of questions that are asked at the same time.
    :param ca: certificate authorities of the service, PEM; `none` is those of the system.
    """

    http_method: Literal["get", "post"] = "get"
    user_path: str = "http://localhost:8000/auth/user"
    vhost_path: str = "http://localhost:8000/auth/vhost"
    resource_path: str = "http://localhost:8000/auth/resource"
    topic_path: str = "http://localhost:8000/auth/topic"
    request_timeout: int = 5000
    connections: int = 16
    ca: Path | None = None

    def __post_init__(self) -> None:
        for name in PATHS:
            url = getattr(self, f"{name}_path")
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"auth_http_{name}_path is {url!r}; it must begin with http:// or https://")
        for name, most in (("request_timeout", 60_000), ("connections", 256)):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(
                    f"auth_http_{name} is {getattr(self, name)}; it must be between 1 and {most}"
                )
