"""Data of one's own in the prepared format: two clients of question and SQL, written in a few lines.

python docs/examples/own_clients.py OUT    # then: --set task.data=OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedtorch.data.folder import atomic_folder, write_client, write_manifest
from fedtorch.text.sentencepiece import train_vocabulary

CLIENTS = {"rivers": 40, "lakes": 24}


def write(out: Path) -> None:
    """A folder per client, a vocabulary, and the manifest, which comes last."""
    clients, texts = {}, []
    with atomic_folder(out) as folder:
        for name, size in CLIENTS.items():
            rows = [
                {
                    "question": f"which of the {name} exceeds {i} km ?",
                    "sql": f"SELECT name FROM {name} WHERE km > {i} ;",
                }
                for i in range(size)
            ]
            splits = {"train": rows[8:], "dev": rows[:4], "test": rows[4:8]}
            clients[name] = write_client(folder, name, splits, facts={"schema": f"| {name} : name , km"})
            texts += [row[key].lower() for row in splits["train"] for key in ("question", "sql")]
        train_vocabulary(texts, folder / "tokenizer", size=120)
        write_manifest(folder, "text2sql", clients=clients, record={"made by": "own_clients.py"})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
