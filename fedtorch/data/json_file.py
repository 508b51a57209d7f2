"""A JSON file that somebody else has made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError


def read_json(path: Path, advice: str) -> Any:
    """Read a file's content.

    Raises:
        DataError: it is missing, of which `advice` says what to do, or not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {advice}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
