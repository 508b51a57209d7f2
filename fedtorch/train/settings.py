"""The `client` and `engine` sections of a config: local training and what it runs on. Imports no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fedtorch.core.choices import Named
from fedtorch.core.errors import ConfigError
from fedtorch.core.ranges import BelowOne, Count, NotNegative, Positive, Whole
from fedtorch.core.settings import refuse_unused


@dataclass(frozen=True)
class TrainerConfig:
    """`client.trainer`: what trains a client in place of the package's own loop."""

    name: str
    """`transformers`; `trl.SFT`, `trl.DPO`, `trl.KTO`, `trl.Reward`; or `module:function`, a function of your own that
    is called as train(model, rows, context)."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the library's trainer, or what a function finds as `context.args`."""
    rows: Literal["examples", "raw"] | None = None
    """What it is given: the task's tokenised examples, or rows as they stand in the source; null: raw for TRL, examples
    for others."""
    check: bool = False
    """Train one client twice, with another between, and end the run where the weights differ."""

    @property
    def is_function(self) -> bool:
        """Is it a function of the user's, who may keep something in `context.state`?"""
        return ":" in self.name

    def __hash__(self) -> int:
        return hash((self.name, json.dumps(self.args, sort_keys=True, default=str), self.rows, self.check))


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


@dataclass(frozen=True)
class RateOverRounds:
    """`client.lr_over_rounds`: a learning rate for every round, over which `client.schedule` goes within the round."""

    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate falls from `client.lr` in the first round: as half a cosine, as a line, or not at all."""
    min: NotNegative = 0.0
    """Where it would be in the round after the last one; at most `client.lr`."""

    def __post_init__(self) -> None:
        if self.schedule == "constant" and self.min:
            raise ConfigError(
                f"client.lr_over_rounds.min is {self.min} but client.lr_over_rounds.schedule is constant, which does "
                "not use it; remove client.lr_over_rounds.min or set the schedule to cosine or linear"
            )

    def rate(self, lr: float, round: int, rounds: int) -> float:
        """The rate of a round, from 0 on, of `rounds` that begin with `lr`.

        cosine: min + ½ (lr − min) (1 + cos πt/T), t the round and T all rounds, as in OpenFedLLM's code; linear:
        min + (lr − min) (1 − t/T). So the last round is one step above `min`.
        """
        if self.schedule == "constant":
            return lr
        rounds = max(1, rounds)
        now = min(round, rounds)
        left = 1.0 - now / rounds if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * now / rounds))
        return self.min + (lr - self.min) * left


@dataclass(frozen=True)
class ClientConfig:
    """`client`: local training, for every client; `per_client` changes single fields for single clients."""

    optimizer: Literal["sgd", "adam", "adamw", "adafactor", "muon"] = "adamw"
    """Local optimiser; adafactor is the one of transformers, muon torch's for `muon_for` and AdamW for the rest."""
    lr: NotNegative = 1e-3
    """Learning rate at its highest point. No effect with `relative_step`."""
    weight_decay: NotNegative = 0.0
    """Of all optimisers; decoupled for adamw, adafactor and muon, added to the gradient for sgd and adam."""
    no_decay: tuple[str, ...] = ()
    """Parameters without weight decay, by shell patterns over their names, such as `*bias`."""
    momentum: BelowOne = 0.0
    """Of sgd."""
    muon_for: tuple[str, ...] = ("*.[0-9]*.*",)
    """Matrices that muon steps, by shell patterns over parameter names; of other shapes none. The default takes all in
    numbered layers, so neither embeddings nor a head."""
    muon_momentum: BelowOne = 0.95
    """Share of the old in muon's moving mean of gradients."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Of adam, adamw and muon's AdamW: decay of the two moments."""
    eps: Positive = 1e-8
    """Of adam, adamw and muon's AdamW: added to the root of the second moment."""
    adafactor_eps: tuple[Positive, Positive] = (1e-30, 1e-3)
    """Of adafactor: added to the squared gradient; lower bound of the parameter scale."""
    clip_threshold: Positive = 1.0
    """Of adafactor: largest root mean square of an update."""
    decay_rate: Annotated[float, Field(lt=0)] = -0.8
    """Of adafactor: the second moment of step k decays with 1 - k^decay_rate."""
    scale_parameter: bool = False
    """Of adafactor: multiply the rate by the parameter's root mean square."""
    relative_step: bool = False
    """Of adafactor: its own rate, falling with the step, in place of `lr`; needs `schedule: constant`."""
    schedule: Literal["constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt"] = "constant"
    """The rate, by the names of transformers: constant; falling to 0 over the steps of `schedule_span`; or as
    1 / sqrt(step), from the end of the warm-up, without which it hardly falls."""
    schedule_cycles: Count = 1
    """Of cosine_with_restarts: how often it falls to 0."""
    schedule_power: Positive = 1.0
    """Of polynomial: (what is left of the steps)^power; 1 is linear."""
    schedule_floor: BelowOne = 0.0
    """Of linear, cosine, cosine_with_restarts and polynomial: the share of `lr` to which they fall in place of 0; a
    share s of theirs becomes floor + (1 - floor) s. The warm-up still rises from 0."""
    schedule_span: Literal["round", "run"] = "round"
    """What one schedule goes over: each round anew, or all the steps that a client is expected to take in the run
    (rounds times its chance to be drawn, times the steps of a round); beyond them the rate stays where it ended."""
    warmup_steps: Whole = 0
    """Steps at the start of the schedule in which the rate rises from 0."""
    warmup_ratio: BelowOne = 0.0
    """The same as a share of the schedule's steps, rounded up."""
    lr_over_rounds: RateOverRounds | None = None
    """The rate of each round in place of `lr` in all: `{schedule: cosine, min: 1.0e-6}` falls from `lr` over the run's
    rounds, and algorithms that read `lr` read the round's. `schedule` is then about the steps within a round. Rates
    of an algorithm's own (`algorithm.personal_lr`) and the server's stay as they are."""
    max_grad_norm: Positive | None = None
    """Gradients with a larger L2 norm are scaled down to it before each step; null: no limit."""
    batch_size: Count = 8
    """Examples per forward pass (micro-batch)."""
    shuffle: bool = True
    """A new order of the examples in every epoch; false: as they stand in the file."""
    group_by_length: bool = False
    """Examples of like length share a micro-batch, so less is padded: stretches of 50 steps of the shuffled order are
    sorted by length, as Hugging Face's trainers do. For tasks that tell lengths."""
    max_tokens_per_batch: Count | None = None
    """Tokens per micro-batch, padding included, in place of `batch_size`: as many examples as fit. One that is longer
    is a micro-batch of its own. Epochs count as passes over the data; how many steps one has depends on its order."""
    accumulation: Count = 1
    """Micro-batches per optimiser step."""
    accumulation_rule: Literal["exact", "spill"] = "exact"
    """The last, incomplete group of an epoch. exact: a step with the mean of what there is;
    spill: its gradient and loss go into the next epoch's first step (Lorar's code)."""
    epochs: Count | None = None
    """Passes over the training set per round; 1 when neither `epochs` nor `steps` is given."""
    steps: Count | None = None
    """Optimiser steps per round in place of `epochs`; the next round goes on where this one stopped in the data."""
    total_epochs: Count | None = None
    """Epochs of the run, numbered through its rounds, after which nothing is trained any more; null: no limit."""
    optimizer_state: Literal["reset", "keep"] = "reset"
    """The optimiser's state at the start of a round: fresh, or as the client left it."""
    trainer: Annotated[TrainerConfig, BeforeValidator(_named), Named()] | None = None
    """What trains in place of the package's own loop; a name, or a mapping with `args`. Of this section it uses
    `steps`, `epochs`, `optimizer_state` and `schedule_span`; rate, optimiser and batches are its own."""

    @property
    def spills(self) -> bool:
        """Can a group of micro-batches be incomplete, and is it then carried over an epoch's end?"""
        return self.accumulation_rule == "spill" and self.accumulation > 1

    @property
    def keeps_state(self) -> bool:
        """Does a client keep anything from round to round: an optimiser, a place in its data or in a schedule?"""
        is_function = self.trainer is not None and self.trainer.is_function
        return self.optimizer_state == "keep" or self.steps is not None or self.schedule_span == "run" or is_function

    @property
    def can_halve_batches(self) -> bool:
        """Can a micro-batch be cut in two where memory is short?"""
        return self.trainer is None and (self.batch_size > 1 or self.max_tokens_per_batch is not None)

    def in_round(self, round: int, rounds: int) -> ClientConfig:
        """The settings of one round, from 0 on, of `rounds`: with its rate as `lr`, and without `lr_over_rounds`."""
        if self.lr_over_rounds is None:
            return self
        return replace(self, lr=self.lr_over_rounds.rate(self.lr, round, rounds), lr_over_rounds=None)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise ConfigError(
                f"client.epochs is {self.epochs} and client.steps is {self.steps} but only one of them can be set; "
                f"set the other to null"
            )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        if self.warmup_steps and self.warmup_ratio:
            raise ConfigError(
                f"client.warmup_steps is {self.warmup_steps} and client.warmup_ratio is {self.warmup_ratio} but only "
                f"one of them can be set; set the other to 0"
            )
        if self.group_by_length and not self.shuffle:
            raise ConfigError(
                "client.group_by_length is true, which sorts a shuffled order, but client.shuffle is false; set only "
                "one of them"
            )
        if self.steps is not None and self.total_epochs is not None:
            raise ConfigError(
                f"client.total_epochs is {self.total_epochs} but rounds are counted in client.steps = {self.steps}; "
                f"set client.epochs in place of client.steps, or client.total_epochs to null"
            )
        adam, adafactor = ("adam", "adamw", "muon"), ("adafactor",)
        used_by = {"momentum": ("sgd",), "betas": adam, "eps": adam}
        used_by |= dict.fromkeys(("muon_for", "muon_momentum"), ("muon",))
        used_by |= dict.fromkeys(
            ("adafactor_eps", "clip_threshold", "decay_rate", "scale_parameter", "relative_step"), adafactor
        )
        refuse_unused("client", self, used_by)
        self._check_schedule()
        self._check_rounds()
        if self.trainer is not None:
            self._check_beside_trainer(self.trainer.name)

    def _check_beside_trainer(self, name: str) -> None:
        used = ("trainer", "steps", "epochs", "optimizer_state", "schedule_span")
        for known in fields(self):
            if known.name not in used and (value := getattr(self, known.name)) != known.default:
                raise ConfigError(
                    f"client.{known.name} is {value} but client.trainer is {name}, which has its own; remove "
                    f"client.{known.name}, and say it in client.trainer.args"
                )

    def _check_schedule(self) -> None:
        if self.relative_step and self.schedule != "constant":
            raise ConfigError(
                f"client.relative_step is true but client.schedule is {self.schedule}; set client.schedule to constant"
            )
        used_with = {"schedule_cycles": "cosine_with_restarts", "schedule_power": "polynomial"}
        for key, schedule in used_with.items():
            if getattr(self, key) != 1 and self.schedule != schedule:
                raise ConfigError(
                    f"client.{key} is {getattr(self, key)} but client.schedule is {self.schedule}, which does not use "
                    f"it; remove client.{key} or set client.schedule to {schedule}"
                )
        if self.schedule_floor and self.schedule in ("constant", "inverse_sqrt"):
            raise ConfigError(
                f"client.schedule_floor is {self.schedule_floor} but client.schedule is {self.schedule}, which does "
                "not fall to 0; remove client.schedule_floor or set client.schedule to cosine or linear"
            )

    def _check_rounds(self) -> None:
        if self.lr_over_rounds is None:
            return
        if self.relative_step:
            raise ConfigError(
                "client.lr_over_rounds is set but client.relative_step is true, a rate of adafactor's own that does "
                "not use client.lr; remove client.lr_over_rounds or set client.relative_step to false"
            )
        if self.schedule_span == "run":
            raise ConfigError(
                "client.lr_over_rounds is set but client.schedule_span is run, and both go over the whole run; remove "
                "client.lr_over_rounds or set client.schedule_span to round"
            )
        if self.lr_over_rounds.min > self.lr:
            raise ConfigError(
                f"client.lr_over_rounds.min is {self.lr_over_rounds.min} but client.lr, from which the rate falls, is "
                f"{self.lr}; set client.lr_over_rounds.min to at most that"
            )


_USED = {"torch": ("activation_checkpointing",), "fsdp": ("offload_parameters", "activation_checkpointing")}
"""Kind of engine that does not use all fields -> those that it uses beside those of every kind."""


@dataclass(frozen=True)
class EngineConfig:
    """`engine`: what trains a client's model; `stage` and `offload_optimizer` are for DeepSpeed."""

    kind: Literal["torch", "fsdp", "deepspeed"] = "torch"
    """torch: one whole model per rank; fsdp: parameters, gradients and optimiser state over the ranks of a worker, by
    torch alone; deepspeed: ZeRO over the ranks of a worker."""
    stage: Annotated[int, Field(ge=0, le=3)] = 0
    """Parts that the ranks of a worker share out with deepspeed: 0 nothing, 1 optimiser state, 2 also gradients, 3 also
    parameters."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Numbers of forward passes, of evaluation too. 16 bits in torch: autocast over fp32 parameters and gradients; in
    fsdp: the same over 16-bit copies of gathered parameters; in deepspeed: 16-bit parameters and activations over
    fp32 masters. tf32: GPUs round what they multiply, backward too; CPUs do not have it and compute in fp32. Optimiser
    state and what is exchanged stay fp32."""
    initial_scale_power: Annotated[int, Field(ge=0, le=24)] = 12
    """Of fp16: the loss is multiplied by 2 to this power at a client's start. A step whose gradients overflow is left
    out, though its learning rate is used up, and halves the factor; 1000 steps without one double it."""
    offload_optimizer: bool = False
    """Keep optimiser state and masters in the host's memory, and take the steps there; of deepspeed."""
    offload_parameters: bool = False
    """Keep parameters in the host's memory until a layer needs them; of stage 3, and of fsdp, with which gradients and
    optimiser state lie there too, and the steps are taken there."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass in place of keeping them: less memory, a forward pass more."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """How models of transformers compute attention. auto: as the model came, which is sdpa where its class has it;
    eager: in plain operations; flash_attention_2: the package flash-attn, in 16 bits on GPUs. Last bits differ."""

    @property
    def splits_parameters(self) -> bool:
        """Do the ranks of a worker of several share out the parameters, so that none has all of them?"""
        return self.kind == "fsdp" or (self.kind == "deepspeed" and self.stage == 3)

    def __post_init__(self) -> None:
        common = ("kind", "precision", "initial_scale_power", "attention")
        for known in fields(self) if self.kind in _USED else ():
            if (value := getattr(self, known.name)) != known.default and known.name not in common + _USED[self.kind]:
                raise ConfigError(
                    f"engine.{known.name} is {str(value).lower()} but engine.kind is {self.kind}, which does not use "
                    f"it; remove engine.{known.name} or set engine.kind to deepspeed"
                )
        is_cast = self.kind == "deepspeed" and self.precision in ("bf16", "fp16")
        needs = {
            "precision": (is_cast, 1, "fp32 masters begin there; on one rank it splits nothing"),
            "offload_optimizer": (self.offload_optimizer, 1, "on one rank it splits nothing"),
            "offload_parameters": (self.offload_parameters, 3, "the others keep whole parameters on the device"),
        }
        for name, (is_set, stage, reason) in needs.items():
            if is_set and self.stage < stage and self.kind == "deepspeed":
                raise ConfigError(
                    f"engine.{name} is {str(getattr(self, name)).lower()} but engine.stage is {self.stage}; set "
                    f"engine.stage to {stage} or more ({reason})"
                )
        if self.initial_scale_power != 12 and self.precision != "fp16":
            raise ConfigError(
                f"engine.initial_scale_power is {self.initial_scale_power} but engine.precision is {self.precision}, "
                "which needs no loss scale; remove engine.initial_scale_power or set engine.precision to fp16"
            )
