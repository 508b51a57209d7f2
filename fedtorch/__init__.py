"""fedtorch: federated training of NLP models over torch.distributed."""

__version__ = "0.1.0"
