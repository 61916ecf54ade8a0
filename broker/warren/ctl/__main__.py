"""`python -m warren.ctl`: the same as `warren ctl`, where that is not on the path."""

from __future__ import annotations

import sys

from warren.command import Exit, UsageError
from warren.ctl.command import main

try:
    sys.exit(main(sys.argv[1:]))
except UsageError as error:
    print(f"warren ctl: {error}", file=sys.stderr)
    sys.exit(Exit.USAGE)
