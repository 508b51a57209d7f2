"""Everything that leaves a silo, by kind, and the line of a policy that allows it.

A kind that no line allows is refused. Three things leave in every run and need no line, for without them there is none:
facts of the start (`START`), signs of life (`LIFE`), and signatures with the keys and shares of a secure sum.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """Something that can leave a silo."""

    name: str
    """Word for it, in a policy's `may_leave.reports` where it stands there."""
    line: str
    """Key of the policy that allows it; empty: no line does, so that it is always refused."""
    about: str
    """What it is, for messages."""
    fields: tuple[str, ...] = ()
    """Fields of a client's report that it is made of, as `core.update.Report` has them."""


REPORTS = (
    Kind("status", "may_leave.reports", "whether a client is done or has failed, and the kind of its error"),
    Kind("steps", "may_leave.reports", "how many steps a client has taken, with signs of life too"),
    Kind(
        "examples", "may_leave.reports", "how many examples and characters there are, digests of files", ("examples",)
    ),
    Kind(
        "losses",
        "may_leave.reports",
        "losses of the training, one for each step",
        ("loss_first", "loss_last", "loss_max", "loss_min", "loss_mean", "curve"),
    ),
    Kind("norms", "may_leave.reports", "norm and largest number of an update", ("norm", "max_abs")),
    Kind("seconds", "may_leave.reports", "how long a client has trained", ("seconds",)),
    Kind("figures", "may_leave.reports", "further numbers of the algorithm", ("extra",)),
    Kind("states", "may_leave.reports", "sizes and digests of what clients keep from round to round"),
)
"""Numbers that go with a client's update, and with a checkpoint."""
PARAMETERS = Kind("parameters", "may_leave.parameters", "updates of parameters")
SCORES = Kind("scores", "may_leave.scores", "scores of the silo's own rows")
MESSAGES = Kind("messages", "", "compressed updates, or some places of an update alone, which the gate does not read")
KEYS_VALUES = Kind("keys and values", "", "keys and values of a model's layers")
EXAMPLE_SCORES = Kind("scores of single examples", "", "a score of each example")
KINDS = (*REPORTS, PARAMETERS, SCORES, MESSAGES, KEYS_VALUES, EXAMPLE_SCORES)
"""All kinds."""
NAMES = tuple(kind.name for kind in REPORTS)
"""Words that may stand in `may_leave.reports`."""
START = (
    "name and address of the host, versions of Python, torch and the package, model and number of the GPUs, digests of "
    "config, code, list of members and names of parameters"
)
"""Leaves at every start."""
LIFE = "phase, round and name of the client, about once a second"
"""Leaves all the time."""
