"""Back ends of logins by their names in the setting `auth_backends`, and the chain made of them."""

from __future__ import annotations

import importlib
import importlib.util
import ssl
from collections.abc import Sequence
from typing import Any, Final

from warren.broker.access.access_control import Access
from warren.broker.access.access_service.access_service import AccessService
from warren.broker.access.access_service.access_service_config import AccessServiceConfig
from warren.broker.access.access_service.service_backend import ServiceBackend
from warren.broker.access.login_chain import (
    AuthorizationBackend,
    InternalBackend,
    LoginBackend,
    LoginChain,
    SplitBackend,
)
from warren.broker.access.oauth2.oauth2_config import OAuth2Config

INTERNAL: Final = "internal"
OAUTH2: Final = "oauth2"
HTTP: Final = "http"
BACKENDS: Final = (INTERNAL, OAUTH2, HTTP)
"""Names of the back ends."""
SEPARATOR: Final = ":"
"""Separator of a back end that verifies credentials from the one that decides on permissions, as in `http:internal`."""
OAUTH2_PACKAGES: Final = ("joserfc", "cryptography")
"""Packages that verify access tokens; the extra `oauth2` installs them."""


class AccessConfigError(ValueError):
    """A back end cannot be used as it is configured. The text is one line: which setting is wrong, and why."""


def check_backends(names: Sequence[str], oauth2: OAuth2Config) -> None:
    """Check the names of back ends, and that each has what it needs.

    :raises ValueError: if there is none, one is unknown or named twice, or lacks a setting or a package.
    """
    if not names:
        raise ValueError("auth_backends is empty, so that nobody could log in")
    for name in names:
        first, separator, second = name.partition(SEPARATOR)
        for each in (first, second) if separator else (first,):
            if each not in BACKENDS:
                raise ValueError(f"auth_backends has {name!r}; the back ends are {', '.join(BACKENDS)}")
        if separator and second == OAUTH2 and first != OAUTH2:
            raise ValueError(
                f"auth_backends has {name!r}; oauth2 decides on the permissions of its own tokens only"
            )
        if names.count(name) > 1:
            raise ValueError(f"auth_backends has {name!r} more than once")
    if any(name.partition(SEPARATOR)[0] == OAUTH2 for name in names):
        oauth2.check_complete()
        missing = [name for name in OAUTH2_PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(
                f"auth_backends has oauth2; it needs {', '.join(missing)}: pip install 'warrenmq[oauth2]'"
            )


def login_chain(
    names: Sequence[str],
    oauth2: OAuth2Config,
    service: AccessServiceConfig,
    time_to_live: float,
    access: Access,
) -> LoginChain:
    """Return the chain of back ends, in the order of their names.

    :param time_to_live: seconds for which answers of the access-control service are kept.
    :raises AccessConfigError: if the keys of OAuth 2 or a certificate cannot be read.
    """
    internal = InternalBackend(access)
    made: dict[str, LoginBackend] = {INTERNAL: internal}
    authorizing: dict[str, AuthorizationBackend] = {INTERNAL: internal}
    used = {part for name in names for part in name.split(SEPARATOR)}
    if OAUTH2 in used:
        made[OAUTH2] = _oauth2(oauth2, access)
    if HTTP in used:
        made[HTTP] = authorizing[HTTP] = _service(service, time_to_live, access)
    backends = []
    for name in names:
        first, _, second = name.partition(SEPARATOR)
        backends.append(
            SplitBackend(made[first], authorizing[second]) if second not in ("", first) else made[first]
        )
    return LoginChain(internal, backends, made.values())


def _service(config: AccessServiceConfig, time_to_live: float, access: Access) -> ServiceBackend:
    try:
        return ServiceBackend(AccessService(config, time_to_live, access.outdate), access)
    except (OSError, ssl.SSLError) as error:
        raise AccessConfigError(f"auth_http_ca: cannot use {config.ca}: {error}") from None


def _oauth2(config: OAuth2Config, access: Access) -> LoginBackend:
    # Imported only where it is configured: it needs packages of an extra.
    keys: Any = importlib.import_module("warren.broker.access.oauth2.signing_keys")
    tokens: Any = importlib.import_module("warren.broker.access.oauth2.token_backend")
    try:
        loaded = keys.load_signing_keys(config)
    except ValueError as error:
        raise AccessConfigError(str(error)) from None
    backend: LoginBackend = tokens.TokenBackend(config, loaded, access)
    return backend
