"""Client of the broker's control socket: one JSON line as request, one as reply."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from warren.core.control_endpoint import connect
from warren.core.default_data_folder import default_data_folder
from warren.core.errors import ExitStatus

SOCKET_VARIABLE: Final = "WARREN_BROKER_CONTROL_SOCKET"
FOLDER_VARIABLE: Final = "WARREN_BROKER_DATA_DIR"


class ControlError(Exception):
    """Failure of a request over the control socket: the broker is not reachable or refuses. The text is one line.

    :param status: exit status of the command
    """

    def __init__(self, text: str, status: int = ExitStatus.FAILED) -> None:
        super().__init__(text)
        self.status = status


def socket_path(socket: str | None, data_dir: str | None) -> Path:
    """Return the path of the control socket: from the options, else from the environment, else in the default data folder.

    :param socket: value of `--socket`
    :param data_dir: value of `--data-dir`; the socket is `control.sock` in there
    :raises ControlError: if neither an option nor a variable names the broker, and none runs on the default data folder
    """
    if socket is not None:
        return Path(socket)
    if data_dir is not None:
        return Path(data_dir) / "control.sock"
    if os.environ.get(SOCKET_VARIABLE):
        return Path(os.environ[SOCKET_VARIABLE])
    if os.environ.get(FOLDER_VARIABLE):
        return Path(os.environ[FOLDER_VARIABLE]) / "control.sock"
    try:
        folder = default_data_folder()
    except RuntimeError:
        found = ""
    else:
        if (folder / "control.sock").exists():
            return folder / "control.sock"
        found = f", and none runs on the default data folder {folder}"
    raise ControlError(
        f"no broker is named{found}; give its data folder (--data-dir or {FOLDER_VARIABLE}) or its control socket"
        " (--socket)",
        ExitStatus.USAGE,
    )


def send_request(path: Path, verb: str, arguments: dict[str, Any], timeout: float) -> Any:
    """Send a request to the broker's control socket, wait until it is done, and return its result.

    :param path: path of the control socket
    :param verb: name of the operation, such as `list_queues`
    :param arguments: arguments of the operation by name, values that JSON can represent
    :param timeout: seconds for each step (connect, send, receive); 0 is no limit
    :raises ControlError: with the broker's reason if it refuses, or if it cannot be reached
    """
    request = json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n"
    try:
        with connect(path, timeout or None) as sock:
            sock.sendall(request)
            with sock.makefile("rb") as stream:
                line = stream.readline()
    except TimeoutError:
        raise ControlError(
            f"the broker at {path} did not answer within {timeout:g} s", ExitStatus.IO
        ) from None
    except (FileNotFoundError, ConnectionRefusedError):
        raise ControlError(
            f"no broker listens at {path}; check that it runs, and with this data folder", ExitStatus.IO
        ) from None
    except PermissionError:
        raise ControlError(
            f"no permission to open {path}; run this command as the user of the broker", ExitStatus.IO
        ) from None
    except OSError as error:
        raise ControlError(
            f"the connection to the broker at {path} failed: {error.strerror or error}", ExitStatus.IO
        ) from None
    if not line.endswith(b"\n"):
        raise ControlError(f"the broker at {path} stopped before it answered", ExitStatus.IO)
    reply = json.loads(line)
    if "error" in reply:
        raise ControlError(str(reply["error"]), int(reply.get("status", ExitStatus.FAILED)))
    return reply.get("result")
