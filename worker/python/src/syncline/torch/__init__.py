"""Syncline for PyTorch: `Optimizer` stands where torch.optim's would, `elastic` where DistributedSampler would.

`wrap` and `hook` leave optimizers and DDP models as they are, and have their gradients averaged by servers; `compressed_hook`
needs no servers. torch.distributed knows the backend "syncline".
"""
import torch.distributed

from syncline.torch import elastic
from syncline.torch._average import HookState, hook
from syncline.torch._compressed import CompressedState, compressed_hook
from syncline.torch._elastic_state import State
from syncline.torch._local import DiLoCo, LocalSGD
from syncline.torch._optimizer import Optimizer
from syncline.torch._wrap import wrap

if torch.distributed.is_available():
    from syncline.torch import distributed as _distributed  # noqa: F401  registers the backend

__all__ = ["CompressedState", "DiLoCo", "HookState", "LocalSGD", "Optimizer", "State", "compressed_hook", "elastic", "hook", "wrap"]
