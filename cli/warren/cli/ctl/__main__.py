"""`python -m warren.cli.ctl`: the same as `warren ctl`, where that is not on the path."""

from __future__ import annotations

import sys

from warren.cli.ctl.main import main
from warren.core.errors import ExitStatus, UsageError

try:
    sys.exit(main(sys.argv[1:]))
except UsageError as error:
    print(f"warren ctl: {error}", file=sys.stderr)
    sys.exit(ExitStatus.USAGE)
