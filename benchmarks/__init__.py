"""Measurements of fedtorch, one program each; README.md beside them has the results."""

import fedtorch.core.devices  # noqa: F401  # before peft, whose bitsandbytes would look for kernels elsewhere
