"""Networks that no library has, in torch, transformers and safetensors alone.

This folder is copied beside their weights as `network`, so that they load where fedtorch is not installed:
`sys.path.insert(0, FOLDER)`, then `from network import load`.
"""

from .loading import load

__all__ = ["load"]
