"""The keys of ServerState and ClientState that the package itself reads and writes; an algorithm's own are in its file.

They stand in checkpoints, so the words stay as they are. Tensors and numbers have dictionaries of their own, hence the
same word may be a key in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

# --- tensors of a client

PRIVATE = "private"
"""private weights, flat over the private layout; written by `ClientJob.train` after every training"""

PERSONAL = "personal"
"""a model of the client's own, flat over the shared layout; written by rules of `PersonalModel`"""

TRAINED = "trained"
"""shared weights after the client's last training, flat; written by `ClientTrainer` with `eval.point: trained`"""

BEST_WEIGHTS = "best/weights"
"""shared weights of the best round, flat, where they are not the server's; written by `BestModel`"""

BEST_PRIVATE = "best/private"
"""private weights of the best round, flat; written by `BestModel`"""

# --- numbers of a client

TRAINED_ROUND = "trained/round"
"""the round (from 0) of `TRAINED`; written with it"""

BEST_IS_RECEIVED = "best/is_received"
"""1: the client's best model has the server's best weights, 0: it has `BEST_WEIGHTS`; written by `BestModel`"""

NOT_EVALUATED = "unjudged"
"""1: trained since its last evaluation; written by algorithms that exchange nothing, removed by the evaluation"""

# --- numbers of the server, and of a client that chooses a best round for itself

BEST_ROUND = "best_round"
"""rounds done when the best score was measured; written by `BestModel`"""

BEST_SCORE = "best_score"
"""the best score so far; written by `BestModel`"""

BEST_LOSS = "best_loss"
"""the loss measured with the best score, where `eval.ties` looks at it; missing where none was measured; written by
`BestModel`"""

WITHOUT_GAIN = "evaluations_without_gain"
"""evaluations since the best one; written by `BestModel`"""

STOPPED = "stopped"
"""1: `eval.patience` is used up, so the run ends or the client rests; written by `BestModel`"""

# --- tensors of the server

WEIGHTS = "weights"
"""the shared weights, flat; the other exchanged vectors stand beside them under their own names"""

BEST = "best"
"""the shared weights of the best round, flat; written by `BestModel`"""

MOMENTUM = "momentum"
"""buffer of `server.optimizer: sgd`, flat; this and the next two are written by `ServerOptimizer`"""

FIRST_MOMENT = "first_moment"
"""of adam, yogi, adagrad and adamw, flat"""

SECOND_MOMENT = "second_moment"
"""of the same, flat"""

LEFT_OUT = "residual"
"""what the second selection has left out so far, flat; written by FedAssistant. Where every rank sums a slice of the
messages each has its own slice under this name, and the server all of it in a checkpoint. In a client's state: what its
own messages have left out, with error feedback of FedAssistant or of `exchange`"""

# --- tensors and numbers of the server

SERVER_JOB = "server/"
"""how the entries begin that the server's training on its own data keeps, as a client's would; by `ServerTraining`"""

# --- numbers of the server

SERVER_STEPS = "server_steps"
"""steps taken by the server's optimiser; written by `ServerOptimizer`"""

EVALUATED = "evaluated"
"""rounds done at the last evaluation that counts; written by `Runner`"""

SERVER_TRAINED = "server_trained"
"""rounds done at the server's last training on its own data; written by `Runner`"""

VOID_ROUNDS = "void_rounds"
"""rounds in a row with too few usable updates; written by `apply_verdict`"""

SUM_EXPONENT = "sum/exponent"
"""of the power of two at which the next round's updates are summed, where `system.sum_scale` is previous; written by
`PreviousScale`"""

VERSION = "async/version/"
"""how the entries of the server's tensors begin that are older versions of its vectors, of which jobs are under way in
asynchronous rounds; the number of the version follows. Written by `Versions`"""

PLAN = "async/plan"
"""48 bits of the digest of the asynchronous rounds that are over, by their plan; written by `JobTrainer`"""

FAILED_SAVES = "failed_saves"
"""checkpoints in a row that could not be written; written by `save`"""

CLIP = "privacy/clip"
"""the next round's clip, where it moves; this and the next one are written by the privacy mechanism's `release`"""

NOISE_KEY = "privacy/key_check"
"""40 bits of a check of the key that noise was drawn with"""

OF_BEST = frozenset(
    {BEST_WEIGHTS, BEST_PRIVATE, BEST_IS_RECEIVED, BEST_ROUND, BEST_SCORE, BEST_LOSS, WITHOUT_GAIN, STOPPED}
)
"""what an evaluation leaves in the state of a client, also of one that has never trained"""

DECIDING = (STOPPED, EVALUATED, SERVER_TRAINED, BEST_ROUND)
"""what decides about the round loop, so that every rank knows it"""


# --- of trainings, each with a purpose (`train`, `personal`, ...)


def cursor(purpose: str) -> str:
    """Number of a client: optimiser steps' place in its data, where rounds are counted in steps."""
    return f"{purpose}/cursor"


def epoch(purpose: str) -> str:
    """Number of a client: the epoch that the cursor counts from, where epochs have different numbers of steps."""
    return f"{purpose}/epoch"


def steps(purpose: str) -> str:
    """Number of a client: steps taken in the run, where the schedule spans it."""
    return f"{purpose}/steps"


def best(name: str) -> str:
    """Tensor of the server: one of `Algorithm.travels.varying` in the best round; written by `BestModel`."""
    return f"{BEST}/{name}"


TRAINER = "trainer/"
"""how the entries begin that a `client.trainer` keeps in tensors and numbers of a client"""

OPTIMIZER = "/optimizer/"
"""between purpose and name in tensors and numbers of a client: what its optimiser keeps"""


def has_no_optimizer(purpose: str) -> str:
    """Number of a client: 1 where its optimiser is kept and has nothing to keep, as all it was given was zero."""
    return f"{purpose}/has_no_optimizer"


def optimizer(purpose: str) -> str:
    """How the entries of a client's optimiser begin, where it keeps one."""
    return f"{purpose}{OPTIMIZER}"


def part_of(entries: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin with the prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in entries.items() if name.startswith(prefix)}
