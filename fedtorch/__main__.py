"""`python -m fedtorch COMMAND ...`: the same as `fedtorch COMMAND ...`."""

from __future__ import annotations

import sys

from fedtorch.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
