"""The state that a worker keeps for itself while it trains, and training loops that join the job again after they were dropped."""
from __future__ import annotations

import copy
import functools
from typing import Any, Callable, Optional, TypeVar, Union

import torch

from syncline import _log
from syncline.errors import Dropped, FailedPrecondition
from syncline.torch._local.local_sgd import LocalSGD
from syncline.torch._optimizer.optimizer import Optimizer

Result = TypeVar("Result")


class State:
    """A worker's model, optimizer and sampler, and the program's own values, which it commits and restores.

        state = syncline.torch.State(model, optimizer, sampler, best=float("inf"), scheduler=scheduler)

        @syncline.torch.elastic.run
        def train(state):
            while state.sampler.epoch < 10:
                for inputs, labels in loader:
                    ...
                    optimizer.step()
                    state.best = min(state.best, loss.item())
                    state.commit()

        train(state)

    `commit` keeps only `values`, which are this worker's own: by their state_dict if they have one, as a copy otherwise. Weights and
    the optimizer's state need no commit, because the servers hold them and each step is a commit.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Union[Optimizer, LocalSGD], sampler: Optional[Any] = None, **values: Any) -> None:
        for name in values:
            if hasattr(type(self), name) or name in ("model", "optimizer", "sampler"):
                raise FailedPrecondition(f"{name}= is a name that State itself uses; choose another")
        self.model, self.optimizer, self.sampler = model, optimizer, sampler
        self._names = tuple(values)
        self.__dict__.update(values)
        self.commit()

    @property
    def step(self) -> int:
        """The job's present step."""
        return self.optimizer.steps

    def commit(self) -> None:
        """Keeps the values as they are now."""
        self._committed = {name: copy.deepcopy(value.state_dict() if hasattr(value, "state_dict") else value)
                           for name, value in ((name, getattr(self, name)) for name in self._names)}

    def restore(self) -> None:
        """Sets the values to what they were at the last commit."""
        for name, kept in self._committed.items():
            value = getattr(self, name)
            if hasattr(value, "load_state_dict"):
                value.load_state_dict(copy.deepcopy(kept))
            else:
                setattr(self, name, copy.deepcopy(kept))

    def rejoin(self) -> None:
        """Joins the job again after this worker was dropped, with the current weights and the values of the last commit."""
        if not isinstance(self.optimizer, Optimizer):
            raise FailedPrecondition("a worker of LocalSGD that was dropped must start over: let `syncline run "
                                     "--max-restarts` start it again")
        self.restore()
        self.optimizer.rejoin()


def run(train: Callable[..., Result]) -> Callable[..., Result]:
    """Makes a training loop join the job again after its worker was dropped, stopped or cut off for too long while others went on.

    It is called again then, and goes on where the job is. All other errors are raised, and the drop itself where the optimizer
    cannot join again (LocalSGD), where a collective operation lost another rank, and where no step was made since the worker last
    joined. A process that died is started again by `syncline run --max-restarts`, and needs none of this.
    """
    @functools.wraps(train)
    def elastic(state: State, *arguments: Any, **options: Any) -> Result:
        dropped: Optional[Dropped] = None
        joined_at = -1
        while True:
            try:
                if dropped is not None:
                    _log.logger.warning("joining the job again: %s", dropped)
                    state.rejoin()
                    dropped, joined_at = None, state.step
                    _log.logger.info("joined the job again at step %d", joined_at)
                return train(state, *arguments, **options)
            except Dropped as error:
                is_own = error.rank is None and isinstance(state.optimizer, Optimizer)
                if not is_own or dropped is not None or state.step <= joined_at:
                    raise
                dropped = error
    return elastic
