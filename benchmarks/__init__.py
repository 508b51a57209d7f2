"""Measurements of fedtorch, one program each; see README.md there."""

import fedtorch.core.devices  # noqa: F401  # before peft, whose bitsandbytes would look for kernels elsewhere
