"""Part `fault` of the benchmark of GPUs: one client asks the device for what is not there; how does the run end?

On a CPU that is an error of this client. On CUDA a kernel's assertion fails, after which every call raises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_part import Ended, Setting, ended_as, last_lines
from fedtorch.tasks.text2sql import Example, Text2SQL

CLIENT = "hospital"
"""One of the synthetic clients, in the middle of a round."""
MARK = "beyond"
KINDS = {"id": "an id outside the vocabulary", "loss": "an index out of range in the loss"}


@dataclass(frozen=True)
class Faulty(Text2SQL):
    """Text to SQL, but one client's batches ask for what is not there."""

    fault: str = "id"
    """id: a token that the model has no embedding for; loss: an index that only the device sees"""

    def load(self, client: str, split: str) -> list[Example]:
        """The examples, those of the faulty client marked."""
        examples = super().load(client, split)
        return [each._replace(sql=MARK) for each in examples] if (client, split) == (CLIENT, "train") else examples

    def collate(self, examples: Sequence[Example], train: bool) -> dict[str, Any]:
        """A batch; in a marked one the fault."""
        batch = super().collate(examples, train)
        is_marked = examples[0].sql == MARK
        if is_marked and self.fault == "id":
            batch["input_ids"][0, 0] = len(self.vocabulary) + 1000
        if self.fault == "loss":
            batch["beyond"] = torch.tensor([7 if is_marked else 0])
        return batch

    def loss(self, model: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, int]:
        """Cross entropy, and an entry of a vector of three."""
        total, count = super().loss(model, batch)
        if "beyond" in batch:
            total = total + torch.zeros(3, device=total.device)[batch["beyond"]].sum()
        return total, count


def fault(setting: Setting) -> None:
    """Each fault in one process, and under the launcher, which may start again what it only repeats."""
    cases = [(kind, way) for kind in KINDS for way in (("one process",) if setting.small else ("one process", "local"))]
    with ThreadPoolExecutor(setting.jobs) as pool:
        for case, ended in zip(cases, pool.map(lambda case: _one(setting, *case), cases), strict=True):
            kind, way = case
            attempts = len(re.findall(r"attempt \d|start(?:s|ed|ing)? (?:it |all )?again|restart", ended.text))
            said = [line for line in ended.text.splitlines() if re.search(r"error|assert|fail|code", line, re.I)]
            setting.note(
                f"{KINDS[kind]}, {way}",
                "ok" if ended.code is not None else ended_as(ended),
                seconds=ended.seconds,
                exit_code=ended.code,
                lines_of_restarts=attempts,
                first_said=last_lines("\n".join(said[:2])),
                last_said=last_lines(ended.text, 4),
            )


def _one(setting: Setting, kind: str, way: str) -> Ended:
    folder = setting.folder / f"{kind}-{way.replace(' ', '-')}"
    folder.mkdir(parents=True, exist_ok=True)
    words = ["-m", "fedtorch.main"] if way == "one process" else ["-m", "launchers.local", "--ranks", "2"]
    settings = ["task.name=benchmarks.gpu_fault:Faulty", f"task.fault={kind}", f"system.device={setting.device}"]
    words += ["--config", "smoke/fedavg", "--set", *settings, "track.tensorboard=false"]
    return setting.python(words, f"{folder.name}.log", setting.limit_s - 10, cwd=folder)
