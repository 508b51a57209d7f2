"""The `server` section of a config: the optimiser in `core/server.py`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, NotNegative, Positive


def refuse_unused(section: str, config: Any, used_by: dict[str, tuple[str, ...]]) -> None:
    """A value that would have no effect under the chosen optimiser is an error."""
    for known in fields(config):
        users = used_by.get(known.name)
        value = getattr(config, known.name)
        if users and config.optimizer not in users and value != known.default:
            raise ConfigError(
                f"{section}.{known.name} is {value} but {section}.optimizer is {config.optimizer}, which does not use "
                f"it; remove {section}.{known.name} or set {section}.optimizer to {' or '.join(users)}"
            )


@dataclass(frozen=True)
class ServerConfig:
    """`server`: the optimiser that applies the combined update (the FedOPT family)."""

    optimizer: Literal["none", "sgd", "adam", "yogi", "adagrad", "adamw"] = "none"
    """none: add the combined update (FedAvg); the others take a step along it (FedAvgM, FedAdam, ...)."""
    lr: NotNegative | None = None
    """Server learning rate; null: 1.0 for sgd. The adaptive ones need a number."""
    momentum: BelowOne = 0.0
    """Of sgd: b <- momentum b + g, without dampening."""
    nesterov: bool = False
    """Step along g + momentum b in place of b, of sgd with momentum (DiLoCo's outer step)."""
    beta1: BelowOne | None = None
    """Of adam, yogi, adagrad, adamw: decay of the first moment; null: 0.9, for adagrad 0."""
    beta2: BelowOne = 0.99
    """Of adam, yogi and adamw: decay of the second moment."""
    tau: Positive = 1e-3
    """Of the adaptive ones: added to the root of the second moment, which starts at tau squared."""
    bias_correction: bool = False
    """Of the adaptive ones: correct both moments for their start; the second moment then starts at 0."""
    eps: Positive = 1e-8
    """Of adamw: added to the root of the second moment."""
    weight_decay: NotNegative = 0.0
    """Of adamw: decoupled weight decay."""
    no_decay: tuple[str, ...] = ()
    """Of adamw: parameters without weight decay, by shell patterns over their names."""
    schedule: Literal["constant", "linear"] = "constant"
    """Of adamw: the rate over the run's rounds: constant, or falling to 0."""
    warmup_ratio: BelowOne = 0.0
    """Of adamw: share of the rounds, rounded up, in which the rate rises from 0."""

    def __post_init__(self) -> None:
        adaptive = ("adam", "yogi", "adagrad")
        used_by = {
            "lr": ("sgd", *adaptive, "adamw"),
            **dict.fromkeys(("momentum", "nesterov"), ("sgd",)),
            "beta1": (*adaptive, "adamw"),
            "beta2": ("adam", "yogi", "adamw"),
            "tau": adaptive,
            "bias_correction": adaptive,
            **dict.fromkeys(("eps", "weight_decay", "no_decay", "schedule", "warmup_ratio"), ("adamw",)),
        }
        refuse_unused("server", self, used_by)
        if self.nesterov and not self.momentum:
            raise ConfigError(
                "server.nesterov is true but server.momentum is 0, without which it would be plain sgd; set "
                "server.momentum, for example to 0.9, or server.nesterov to false"
            )
        if self.optimizer in (*adaptive, "adamw") and self.lr is None:
            raise ConfigError(
                f"server.lr is null but server.optimizer is {self.optimizer}; set it, for example to 0.01"
            )

    def resolved(self) -> ServerConfig:
        """Replace null by the number it stands for (with `optimizer: none` both stay null)."""
        if self.optimizer == "none":
            return self
        if self.optimizer == "sgd":
            return replace(self, lr=1.0 if self.lr is None else self.lr)
        default = 0.0 if self.optimizer == "adagrad" else 0.9
        return replace(self, beta1=default if self.beta1 is None else self.beta1)
