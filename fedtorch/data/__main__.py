"""`python -m fedtorch.data prepare NAME --out DIR`."""

from __future__ import annotations

import sys

from fedtorch.data.prepare import main

if __name__ == "__main__":
    sys.exit(main())
