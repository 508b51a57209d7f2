"""Files that somebody else has made: their bytes, and the JSON in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedtorch.core.errors import DataError
from fedtorch.core.regular_file import check_regular, shown_path


def read_bytes(path: Path, advice: str) -> bytes:
    """All of a regular file; a FIFO is refused before it is opened.

    Raises:
        DataError: it is missing, of which `advice` says what to do, no regular file, or cannot be read.
    """
    if not path.exists():
        raise DataError(f"{shown_path(path)} is missing; {advice}")
    check_regular(path, "the file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{shown_path(path)} cannot be read ({error.strerror}); check its rights") from None


def read_json(path: Path, advice: str) -> Any:
    """Read a file's content.

    Raises:
        DataError: as `read_bytes`, or it is not JSON.
    """
    return parse_json(read_bytes(path, advice), str(path))


def parse_json(data: bytes | str, where: str, advice: str = "correct it or download it again") -> Any:
    """Parse a JSON text whose strings can be written in UTF-8. where: file, or file and line, for the message.

    Raises:
        DataError: it is none; says where, and quotes nothing of it.
    """
    try:
        found = json.loads(data)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{where}: line {line} is not UTF-8; {advice}") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DataError(f"{where} is not JSON ({error.msg}, {place}); {advice}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets thousands deep
        raise DataError(f"{where} is not usable JSON ({type(error).__name__}); {advice}") from None
    if has_half_pairs(data, found):
        raise DataError(f"{where} has half of a surrogate pair (\\ud…) in it, which is no text; {advice}")
    return found


def has_half_pairs(data: bytes | str, found: Any) -> bool:
    """Is half of a surrogate pair in what was read of `data`, in whatever list of it? No tokenizer takes such text."""
    if (b"\\ud" if isinstance(data, bytes) else "\\ud") not in data.lower():  # type: ignore[operator]
        return False
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return True
    return False
