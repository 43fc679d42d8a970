"""Syncline for PyTorch: `Optimizer` stands where torch.optim's would, `elastic` where DistributedSampler would."""
from syncline.torch import elastic
from syncline.torch._local import DiLoCo, LocalSGD
from syncline.torch._optimizer import Optimizer

__all__ = ["DiLoCo", "LocalSGD", "Optimizer", "elastic"]
