"""The engines whose memory and speed benchmarks compare: the plain one, and DeepSpeed's stages."""

from __future__ import annotations

from fedtorch.config.schema import EngineConfig

ENGINES = {
    "torch": EngineConfig(),
    "stage 0": EngineConfig(kind="deepspeed", stage=0),
    "stage 1": EngineConfig(kind="deepspeed", stage=1),
    "stage 2": EngineConfig(kind="deepspeed", stage=2),
    "stage 3": EngineConfig(kind="deepspeed", stage=3),
    "stage 2 bf16": EngineConfig(kind="deepspeed", stage=2, precision="bf16"),
    "stage 3 bf16": EngineConfig(kind="deepspeed", stage=3, precision="bf16"),
    "stage 2 offload": EngineConfig(kind="deepspeed", stage=2, offload_optimizer=True),
    "stage 3 offload": EngineConfig(kind="deepspeed", stage=3, offload_optimizer=True, offload_parameters=True),
}
