"""`python -m fedtorch.report`: see `command_line`."""

from __future__ import annotations

import sys

from fedtorch.report.command_line import main

if __name__ == "__main__":
    sys.exit(main())
