"""An object store that speaks S3's protocol over HTTP (moto's server), on a free loopback port, with one bucket."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from moto.server import ThreadedMotoServer


@contextmanager
def s3_server(bucket: str = "blobs") -> Iterator[str]:
    """Run one for as long as the block lasts; its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")) as answer:
            assert answer.status == 200
        yield url
    finally:
        server.stop()
