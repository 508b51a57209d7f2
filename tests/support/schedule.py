"""What several workers (`--workers`) may run beside each other: units, each of which is run in order by one worker."""

from __future__ import annotations

# By file: SLURM is there once; a clock that is watched by two tests at once on two cores is watched badly.
# DeepSpeed's first step in a process imports for seconds; parsing all files of the package takes seconds too.
TOGETHER = {
    "tests/comm/test_rendezvous": "clocks",
    "tests/faults/test_combining": "clocks",
    "tests/faults/test_hang": "clocks",
    "tests/faults/test_signals": "clocks",
    "tests/launchers/test_real_slurm": "slurm",
    "tests/safety/test_source": "source",
    "tests/test_package": "source",
    "tests/test_rules": "source",
    "tests/train/test_deepspeed_": "deepspeed",
}

FIRST = ("deepspeed",)
"""The units that take longest."""


def unit_of(nodeid: str) -> str:
    """The unit of a test: its file, unless that stands in TOGETHER."""
    path = nodeid.partition("::")[0]
    return next((unit for start, unit in TOGETHER.items() if path.startswith(start)), path)


# Whole runs in the tests' own process, or engines that take seconds to build: not what is run after every change.
FEDERATIONS = (
    "tests/audit/",
    "tests/cli/test_main_job",
    "tests/configs/test_diloco_configs",
    "tests/configs/test_fewfedweight_configs",
    "tests/configs/test_smoke_configs",
    "tests/docs/test_stats_page",
    "tests/faults/test_logs",
    "tests/invariance/",
    "tests/lifecycle/",
    "tests/papers/test_diloco_characters",
    "tests/papers/test_fedassistant_rounds",
    "tests/papers/test_fedassistant_task",
    "tests/papers/test_fewfedweight",
    "tests/papers/test_paper_adapters",
    "tests/privacy/test_data_ledger",
    "tests/privacy/test_neighbours",
    "tests/privacy/test_records_tell_nobody",
    "tests/rounds/test_overlap.py::test_a_job_",
    "tests/rounds/test_overlap.py::test_a_run_",
    "tests/tasks/test_adapters",
    "tests/tasks/test_chosen_metrics",
    "tests/tasks/test_own_text",
    "tests/tasks/test_qa",
    "tests/tasks/test_text2sql_as_seq2seq",
    "tests/tasks/test_text_classification",
    "tests/tasks/test_token_classification",
    "tests/test_main",
    "tests/train/test_deepspeed",
    "tests/train/test_zero_",
)


def trains_federations(nodeid: str) -> bool:
    """Does this test belong to those that train whole runs?"""
    return nodeid.startswith(FEDERATIONS)
