"""Prepared folders that a test changes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fedtorch.data.folder import folder_name


def seal(root: Path) -> Path:
    """Make the manifest tell of the files as they lie there now: their rows and digests; returns `root`."""
    path = root / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for client, entry in manifest["clients"].items():
        for split, facts in entry["splits"].items():
            file = root / folder_name(client) / f"{split}.jsonl"
            if file.is_file():
                data = file.read_bytes()
                facts["examples"] = sum(bool(line.strip()) for line in data.split(b"\n"))
                facts["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return root
