"""What clients compute and how the server combines it. Names here are the values of `algorithm.name` in YAML."""

ALGORITHMS = {
    "fedavg": "fedtorch.algorithms.fedavg:FedAvg",
    "fedopt": "fedtorch.algorithms.fedavg:FedAvg",  # FedAvg with a `server.optimizer`
    "fedprox": "fedtorch.algorithms.fedprox:FedProx",
    "scaffold": "fedtorch.algorithms.scaffold:Scaffold",
    "fednova": "fedtorch.algorithms.fednova:FedNova",
    "ditto": "fedtorch.algorithms.ditto:Ditto",
    "pfedme": "fedtorch.algorithms.pfedme:PFedMe",
    "local": "fedtorch.algorithms.local:Local",
}
