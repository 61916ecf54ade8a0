"""`python -m warren.cli.ctl`: `warren ctl` where the command `warren` is not on the PATH."""

from __future__ import annotations

import sys

from warren.cli.ctl.main import main
from warren.core.errors import ExitStatus, UsageError

try:
    sys.exit(main(sys.argv[1:]))
except UsageError as error:
    print(f"warren ctl: {error}", file=sys.stderr)
    sys.exit(ExitStatus.USAGE)
