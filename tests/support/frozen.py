"""What a fork server imports last: what is there by then stays, and the ranks' collections of garbage pass it over.

Without it every collection in a rank goes through, and copies, all that torch and transformers have made.
"""

import gc
from pathlib import Path

from fedtorch.config.load import load

# What checks a config is built once for each task and algorithm, which is half of what a rank of a toy computes.
for path in (Path(__file__).parents[2] / "configs" / "smoke").glob("*.yaml"):
    load(path)
gc.collect()
gc.freeze()
