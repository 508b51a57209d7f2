"""Who holds which questions of a prepared pool: the server, the clients, and the parts for evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedtorch.core.clients import DealtSizes
from fedtorch.core.errors import DataError
from fedtorch.core.names import Names
from fedtorch.core.seeds import generator_for
from fedtorch.data.deal import Deal, deal
from fedtorch.data.folder import client_file
from fedtorch.data.indexed import IndexedRows, load_integers
from fedtorch.data.manifest import check_split, split_facts
from fedtorch.data.prepare_wikisql import POOL
from fedtorch.data.wikisql import check_prepared

_ADVICE = "run `fedtorch data prepare wikisql --raw DIR --out DIR`"
CLIENT, PART = "client", "part"


@dataclass(frozen=True)
class QuestionPool:
    """A prepared folder and how it is shared out. Rows are read when asked for; only integers stay in memory.

    What the fields do is said where they are keys, in `tasks.wikisql.WikiSQL`.
    """

    folder: Path
    """that `data prepare wikisql` wrote"""
    server: int
    """`task.server_labelled`"""
    clients: int
    """`task.num_clients`"""
    sizes: tuple[int, int]
    """`task.client_size`"""
    seed: int
    """`task.deal_seed`"""
    max_words: int | None
    """`task.max_words`"""
    parts: int
    """`task.parts`"""
    limits: Mapping[str, int | None]
    """split -> at most so many questions, a fixed random subset; None: all"""

    @cached_property
    def dealt(self) -> Deal:
        """Who holds which training question."""
        return deal(self.usable("train"), server=self.server, clients=self.clients, sizes=self.sizes, seed=self.seed)

    @cached_property
    def manifest(self) -> DealtSizes:
        """Questions per client (`client000`, ...), then those of each part of dev and test (`part00`, ...)."""
        sizes, width = self.dealt.sizes.astype(np.int32), len(str(self.parts - 1))
        parts = {
            f"{PART}{part:0{width}}": {split: len(self._part(split, part)) for split in ("dev", "test")}
            for part in range(self.parts)
        }
        return DealtSizes(Names(parts, head=CLIENT, numbered=len(sizes)), sizes, [*parts.values()])

    def read_server(self) -> list[dict[str, Any]]:
        """The server's share of the training questions."""
        return self._read("train", [int(row) for row in self.dealt.server], labelled=True)

    def read(self, client: str, split: str) -> list[dict[str, Any]]:
        """The questions of a client or a part.

        Raises:
            DataError: there is no such client, or its files are damaged.
        """
        if client not in self.manifest:
            raise DataError(f"there is no client {ascii(client)[:60]} among {self.clients}")
        if self.is_part(client):
            return self._read(split, self._part(split, int(client.removeprefix(PART))), labelled=True)
        return self._read(split, self.dealt.of(int(client.removeprefix(CLIENT))), labelled=False)

    def usable(self, split: str) -> NDArray[np.int32]:
        """Row numbers of the questions that are short enough.

        Raises:
            DataError: the folder was not prepared by `prepare wikisql`.
        """
        path = self.folder / POOL / f"{split}.words.npy"
        try:
            lengths = load_integers(path)
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({type(error).__name__}); {_ADVICE}") from None
        rows = split_facts(self.folder, POOL, split).get("examples")
        if len(lengths) != rows:
            raise DataError(f"{path} is of {len(lengths)} questions but the manifest counts {rows or 0}; {_ADVICE}")
        is_short = lengths <= (self.max_words if self.max_words is not None else np.iinfo(np.int16).max)
        return np.flatnonzero(is_short).astype(np.int32)

    @staticmethod
    def is_part(client: str) -> bool:
        """Is it a part of dev and test rather than a client?"""
        return client.startswith(PART)

    def _read(self, split: str, numbers: list[int], *, labelled: bool) -> list[dict[str, Any]]:
        """Rows of a split's file, which is the one that the manifest tells of; each checked."""
        path = client_file(self.folder, POOL, f"{split}.jsonl")
        indexed = IndexedRows(path)
        check_split(self.folder, POOL, split, path, len(indexed))
        rows = indexed.read(numbers)
        for number, row in zip(numbers, rows, strict=True):
            check_prepared(row, f"{path}:{number + 1}", labelled=labelled)
        return rows

    def _part(self, split: str, part: int) -> list[int]:
        """Every `parts`-th of the split's questions, of the subset where there is a limit."""
        rows, limit = self.usable(split), self.limits.get(split)
        if limit is not None and limit < len(rows):
            order = torch.randperm(len(rows), generator=generator_for(0, "subset", split)).numpy()
            rows = np.sort(rows[order[:limit]])
        found: list[int] = rows[part :: self.parts].tolist()
        return found
