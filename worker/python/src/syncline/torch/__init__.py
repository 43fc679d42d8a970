"""Syncline for PyTorch: `Optimizer` stands where torch.optim's would."""
from syncline.torch._optimizer import Optimizer

__all__ = ["Optimizer"]
