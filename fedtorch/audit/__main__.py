"""`python -m fedtorch.audit`: see `command_line`."""

from __future__ import annotations

import sys

from fedtorch.audit.command_line import main

if __name__ == "__main__":
    sys.exit(main())
