"""Tests of SDK, test kit, store and broker with no more of the system than Windows offers: make test-portable.

It repeats tests that `make test` runs with all that Linux offers, so that it is run by hand.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = ("testing", "sdk", "unit/core", "unit/store", "broker")
LINUX_ONLY: Final = {
    "tests/broker/test_alarms.py": "resident memory of Windows is not known here",
    "tests/broker/test_blocked_clients.py": "the end of a socket that is not read is seen with epoll",
    "tests/broker/test_descriptors.py": "limits of descriptors",
    "tests/broker/test_stall_monitor.py": "the event loop of `warren broker` on Linux",
}
UNIX_SOCKETS: Final = (
    "tests/broker/management/test_control_socket.py::test_a_request_that_is_too_large_is_refused",
    "tests/broker/management/test_control_socket.py::test_idle_connections_are_closed",
)
"""Tests that connect to the control socket by themselves."""
CANCELLED_ACCEPTS: Final = (
    "tests/broker/http_api/test_server.py::test_the_server_ends_what_still_starts_when_it_is_closed",
    "tests/broker/test_proxy_protocol.py::test_a_stop_does_not_wait_for_a_header",
)
"""Tests in which a connection arrives while accepting is cancelled.

The event loop of Windows closes it; that of Linux, which stands in for it here, leaves it to the garbage collector.
"""
BYTES: Final = (
    "tests/broker/http_api/test_statistics.py::test_a_virtual_host_counts_the_bytes_of_its_connections",
)
"""Tests of what a system counts for each socket; Windows does not."""


def main() -> int:
    """Run the tests, and return pytest's exit status."""
    skipped = [f"--ignore={file}" for file in LINUX_ONLY] + [
        f"--deselect={test}" for test in (*UNIX_SOCKETS, *CANCELLED_ACCEPTS, *BYTES)
    ]
    options = ("-q", "-p", "tests.support.windows_like", "-p", "no:cacheprovider", "--tier", "check")
    folders = (f"tests/{folder}" for folder in FOLDERS)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *skipped, *folders], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
