"""Syncline for PyTorch.

`Optimizer` takes the place of an optimizer of torch.optim, and the samplers of `elastic` that of DistributedSampler. `wrap` and `hook`
leave optimizers and DDP models as they are, and average their gradients by servers; `compressed_hook` does so without servers.
Importing this package registers the torch.distributed backend "syncline".
"""
import torch.distributed

from syncline.torch import elastic
from syncline.torch._ddp.average import HookState, hook
from syncline.torch._ddp.compressed import CompressedState, compressed_hook
from syncline.torch._elastic.state import State
from syncline.torch._gossip.gossip import Gossip
from syncline.torch._local.local_sgd import DiLoCo, LocalSGD
from syncline.torch._optimizer.optimizer import Optimizer
from syncline.torch._optimizer.scaler import GradScaler
from syncline.torch._progress import progress
from syncline.torch._wrap import wrap

if torch.distributed.is_available():
    from syncline.torch import distributed as _distributed  # noqa: F401  registers the backend

__all__ = ["CompressedState", "DiLoCo", "Gossip", "GradScaler", "HookState", "LocalSGD", "Optimizer", "State", "compressed_hook", "elastic", "hook",
           "progress", "wrap"]
