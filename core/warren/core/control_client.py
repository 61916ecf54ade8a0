"""The broker's control socket, from the outside: one request, one reply."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from warren.core.errors import ExitStatus

PATH_LIMIT: Final = 100
"""Bytes of a socket's path that every system takes."""
SOCKET_VARIABLE: Final = "WARREN_BROKER_CONTROL_SOCKET"
FOLDER_VARIABLE: Final = "WARREN_BROKER_DATA_DIR"


class ControlError(Exception):
    """What was asked could not be done. Its text is one line.

    :param status: the exit status to end with.
    """

    def __init__(self, text: str, status: int = ExitStatus.FAILED) -> None:
        super().__init__(text)
        self.status = status


def socket_path(socket: str | None, data_dir: str | None) -> Path:
    """Where the broker listens: as the options say, else as the environment says.

    :raises ControlError: if nothing says it.
    """
    if socket is not None:
        return Path(socket)
    if data_dir is not None:
        return Path(data_dir) / "control.sock"
    if os.environ.get(SOCKET_VARIABLE):
        return Path(os.environ[SOCKET_VARIABLE])
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE]) / "control.sock"
    raise ControlError(
        f"which broker? name its data folder with --data-dir or in {FOLDER_VARIABLE}, or its socket with --socket",
        ExitStatus.USAGE,
    )


def send_request(path: Path, verb: str, arguments: dict[str, Any], timeout: float) -> Any:
    """Have the broker perform a verb: its result.

    :param timeout: seconds until each answer of the system, 0 for no limit
    :raises ControlError: with the broker's reason, or why it cannot be reached.
    """
    request = json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout or None)
        try:
            _connect(sock, path)
            sock.sendall(request)
            with sock.makefile("rb") as stream:
                line = stream.readline()
        except TimeoutError:
            raise ControlError(
                f"the broker at {path} has not answered within {timeout:g} s", ExitStatus.IO
            ) from None
        except (FileNotFoundError, ConnectionRefusedError):
            raise ControlError(
                f"no broker listens at {path}: is it running, and on this data folder?", ExitStatus.IO
            ) from None
        except PermissionError:
            raise ControlError(
                f"not allowed to open {path}: run this as the broker's user", ExitStatus.IO
            ) from None
        except OSError as error:
            raise ControlError(
                f"cannot talk to the broker at {path}: {error.strerror or error}", ExitStatus.IO
            ) from None
    if not line.endswith(b"\n"):
        raise ControlError(f"the broker at {path} ended before it answered", ExitStatus.IO)
    reply = json.loads(line)
    if "error" in reply:
        raise ControlError(str(reply["error"]), int(reply.get("status", ExitStatus.FAILED)))
    return reply.get("result")


def _connect(sock: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) <= PATH_LIMIT:
        sock.connect(str(path))
        return
    # The kernel takes no longer one; by its folder's handle it is short.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sock.connect(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)
