"""Process of one load: `python -m benchmarks.stalls.load_process NAME COUNT URL CONTROL-SOCKET`.

It prepares the load, prints `ready`, waits for a line on standard input, causes the load, and prints `done`.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from benchmarks.stalls.catalogue import BY_NAME
from benchmarks.stalls.load_client import Control, LoadClient


def main() -> None:
    name, count, url, path = sys.argv[1:]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    client = LoadClient(url)
    steps = BY_NAME[name].generator(client, Control(Path(path)), int(count))
    next(steps)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in steps:
        raise RuntimeError(f"the load {name} yields twice")
    print("done", flush=True)
    # Its connections stay open until what they caused has ended.
    sys.stdin.readline()


if __name__ == "__main__":
    main()
