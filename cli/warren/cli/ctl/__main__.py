"""`python -m warren.cli.ctl`: `warren ctl` where the command `warren` is not on the PATH."""

from __future__ import annotations

import sys

from warren.core.command_output import prepare_streams, run_command

prepare_streams()

from warren.cli.ctl.main import main  # noqa: E402 - no file that an import opens may get the number of a closed stream

sys.exit(run_command("warren ctl", lambda: main(sys.argv[1:])))
