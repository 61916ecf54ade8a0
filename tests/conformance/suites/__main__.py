"""`python -m tests.conformance.suites [NAME...]`: public clients' test suites against Warren, or against RabbitMQ.

Prints one line for each suite, also if its sources or packages are unavailable, which is not a failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.suites.clients import SUITES
from tests.conformance.suites.suite import Missing, Target, play
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.processes import free_port
from tests.support.rabbitmq import rabbitmq_server

LARGEST = 128 * 1024 * 1024
"""Message limit of RabbitMQ 3.10; some suites send 20 MiB."""


@contextmanager
def broker(folder: Path, on_rabbitmq: bool) -> Iterator[Target]:
    authority = Authority(folder)
    certificate, key = authority.issue("server", "/CN=localhost")
    authority.issue("client", "/CN=client")
    Authority(folder, "elsewhere").issue("stranger", "/CN=stranger")
    tls_port = free_port()
    if on_rabbitmq:
        files = {"authority.pem": authority.certificate, "server.pem": certificate, "server.key": key}
        lines = [
            f"listeners.ssl.1 = 127.0.0.1:{tls_port}",
            "ssl_options.cacertfile = {folder}/authority.pem",
            "ssl_options.certfile = {folder}/server.pem",
            "ssl_options.keyfile = {folder}/server.key",
        ]
        with rabbitmq_server(configuration=lines, files=files) as server:
            yield Target("RabbitMQ", "localhost", server.port, tls_port, authority.certificate)
        return
    options = ["--tls-listeners", f"127.0.0.1:{tls_port}", "--tls-ca", str(authority.certificate)]
    options += ["--tls-certificate", str(certificate), "--tls-key", str(key), "--log-level", "error"]
    options += ["--max-message-size", str(LARGEST)]
    with BrokerProcess(folder / "data", *options) as process:
        yield Target("Warren", "localhost", process.port, tls_port, authority.certificate)
        assert process.child is not None
        assert not process.child.errors, process.child.errors


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.suites", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SUITES)} (default: all)")
    parser.add_argument("--rabbitmq", action="store_true", help="against Debian's RabbitMQ, to compare")
    parser.add_argument(
        "--sources", type=Path, help="a folder with git repositories, in the place of the public ones"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    failed = False
    for name in options.names or SUITES:
        with tempfile.TemporaryDirectory(prefix="warren-suite-") as place:
            folder = Path(place)
            with broker(folder, options.rabbitmq) as target:
                try:
                    outcome = play(SUITES[name], target, folder, options.sources)
                except Missing as missing:
                    print(f"{name}: skipped: {missing}", flush=True)
                    continue
        verdict = "failed" if outcome.unexpected else "passed"
        print(f"{name} on {target.name}: {verdict}: {outcome.closing}", flush=True)
        for test in outcome.excused:
            (why,) = [why for part, why in SUITES[name].exceptions.items() if part in test]
            print(f"  may fail: {test}: {why}", flush=True)
        for test in outcome.unexpected:
            print(f"  {test}", flush=True)
        if outcome.unexpected:
            failed = True
            print(outcome.output[-6000:], file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
