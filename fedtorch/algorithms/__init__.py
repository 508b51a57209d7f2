"""Algorithms: what clients compute and how the server combines it. Names here are values of `algorithm.name`."""

ALGORITHMS = {
    "fedavg": "fedtorch.algorithms.fedavg:FedAvg",
    "fedopt": "fedtorch.algorithms.fedavg:FedOpt",
    "fedprox": "fedtorch.algorithms.fedprox:FedProx",
    "scaffold": "fedtorch.algorithms.scaffold:Scaffold",
    "feddyn": "fedtorch.algorithms.feddyn:FedDyn",
    "fednova": "fedtorch.algorithms.fednova:FedNova",
    "ditto": "fedtorch.algorithms.ditto:Ditto",
    "pfedme": "fedtorch.algorithms.pfedme:PFedMe",
    "fewfedweight": "fedtorch.algorithms.fewfedweight:FewFedWeight",
    "silo_augmented": "fedtorch.algorithms.fewfedweight:SiloAugmented",
    "metaweighting": "fedtorch.algorithms.metaweighting:MetaWeighting",
    "fedassistant": "fedtorch.algorithms.fedassistant:FedAssistant",
    "streaming_diloco": "fedtorch.algorithms.streaming:StreamingDiLoCo",
    "local": "fedtorch.algorithms.local:Local",
    "rolora": "fedtorch.algorithms.adapters.rolora:RoLoRA",
    "hetlora": "fedtorch.algorithms.adapters.hetlora:HetLoRA",
    "flexlora": "fedtorch.algorithms.adapters.ranks:FlexLoRA",
    "flora": "fedtorch.algorithms.adapters.stacks:FLoRA",
    "fedex": "fedtorch.algorithms.adapters.stacks:FedEx",
    "fedparsing": "fedtorch.algorithms.fedparsing:FedParsing",
}
