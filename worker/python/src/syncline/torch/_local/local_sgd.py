"""Optimizers that run on the worker and synchronise with the other workers after a number of steps."""
from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Callable, Optional

import torch

from syncline import _exit, _log
from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option, Session
from syncline.torch._host.place import is_wanted
from syncline.torch._host.session import close_after, join
from syncline.torch._local.adaptive import AdaptiveRhythm, rhythm_of
from syncline.torch._local.decoupled import LateRounds, has_quorum
from syncline.torch._local.fragment import Fragment, Replica, cut
from syncline.torch._local.presets import settings_of
from syncline.torch._local.rhythm import Every
from syncline.torch._optimizer.groups import merged, option_string
from syncline.torch._optimizer.spelling import check_spelling

_TRIES = 8  # number of rounds in which a leaving worker tries to hand over what quorums left out


class LocalSGD(torch.optim.Optimizer):
    """Trains `model` with `optimizer`, any of torch's, on this worker, and averages all workers' weights every `sync_every` steps.

        inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer = syncline.torch.LocalSGD(model, inner, sync_every=32)
        for inputs, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()        # synchronises with the other workers every 32nd time
        optimizer.close()           # synchronises what was trained since then

    The constructor joins the job and fills the weights: the job begins with the first worker's values. A worker that joins later
    takes the current ones, and begins when the others synchronise next. If a worker dies, what it trained since the last
    synchronisation is lost.

    A worker pushes the weights at the start of the round minus its present ones. The servers take the difference for a gradient and
    give it to the outer optimizer: `outer`, `lr` and further options are those of server/optimizer/README.md. sgd with lr=1 averages.
    `push` and `publish` are the encodings (docs/compression.md), by default fp32.

    With `fragments`, parts of the model take turns, each once in `sync_every` steps. With `overlap` the worker trains that many steps
    between push and pull; `alpha` is the share of its own weights that it then keeps beside the new ones, by default a half.

    `sync_every` may be a function that returns the number of steps of a round from its number, counted from 0:
    `lambda round: min(100, 10 + round)`. All workers must give the same. With "adaptive:100" the fastest worker takes 100 steps a round,
    and each other one as many as its speed allows in that time (docs/local_sgd.md#adaptive-rounds).

    With mode="bsp:quorum=K" a round waits for K workers. What another worker pushes too late is kept and goes with its next round, as
    a mean of both that is weighted by samples.

    With mode="asp" and `momentum_every=W`, an option of sgd with nesterov, a round waits for nobody: each worker's push is a W-th part of
    an outer step (docs/local_sgd.md#asynchronous-rounds).

    With `local_aggregation` the ranks of a host send the mean of their differences as one worker
    (docs/pytorch.md#one-gradient-for-each-host).

    `samples` is the number of samples of a step; set it when batches differ. A worker's weight is the number of its samples since the
    last synchronisation. `session` has further options of syncline.Session.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: Every, *, outer: str = "sgd",
                 lr: float = 1.0, push: Option = "fp32", publish: Option = "fp32", fragments: int = 1, overlap: int = 0,
                 alpha: Optional[float] = None, mode: Option = None, samples: int = 1,
                 local_aggregation: Optional[bool] = None, session: Optional[Mapping[str, Option]] = None, **options: Any) -> None:
        _exit.set_up()
        check_spelling(type(self), options)
        self._inner = checked_optimizer(model, optimizer)
        self._overlap = overlap
        self._rhythm = rhythm_of(sync_every, fragments, lambda steps: _checked_times(steps, overlap, fragments))
        self._alpha = _checked_alpha(alpha, overlap)
        self.samples = samples
        self._was_cut_short = False
        settings = option_string({"lr": lr, **options})
        given = merged({"optimizer": f"{outer}:{settings}", "push": push, "publish": publish, "mode": mode}, session or {})
        given = self._rhythm.settings(given)
        is_decoupled = has_quorum(given.get("mode"), fragments, float(options.get("momentum_every", 1)))
        self.session = join(given, is_wanted(local_aggregation))
        self.session.steps_are = "rounds"
        if samples == 1:  # by default each step counts as one sample
            self.session.samples_are = "steps"
        try:
            replicas = [Replica(self.session, name, parameter) for name, parameter in model.named_parameters()]
            trained = [replica for replica in replicas if not replica.tensor.frozen]
            self._parameters = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
            self._fragments = cut(self.session, trained, fragments, LateRounds(self.session) if is_decoupled else None)
            self._check_groups()
            if (rider := self._rhythm.declare(self.session, model.parameters())) is not None:
                self._fragments[-1].carry(rider)
            self.session.start()
            for replica in replicas:
                replica.take(0)
            if self.session.step > 0:
                self._catch_up()
            self._begin_round()
        except BaseException as error:
            close_after(self.session, error)
            raise
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self._share()

    @staticmethod
    def preset(name: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **changes: Any) -> LocalSGD:
        """Returns a LocalSGD with the settings of a published method: "diloco", "streaming-diloco", "sparseloco", "post-local-sgd" or
        "demo".

            optimizer = syncline.torch.LocalSGD.preset("sparseloco", model, inner, sync_every=100)

        `changes` are arguments of LocalSGD that replace those of the preset (docs/local_sgd.md).
        """
        _exit.set_up()
        return LocalSGD(model, optimizer, **settings_of(name, changes))

    def _share(self) -> None:
        """Shares groups and state with the inner optimizer, so that torch's lr_schedulers may take either of the two.

        A GradScaler must be given this one in all its calls. After `scaler.step(inner)` this one would not know that a step was taken;
        one call with each of the two would unscale the gradients twice.
        """
        self.param_groups, self.state, self.defaults = self._inner.param_groups, self._inner.state, self._inner.defaults

    def _check_groups(self) -> None:
        for group in self._inner.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._parameters:
                    raise InvalidArgument(
                        f"the optimizer has a tensor of shape {list(parameter.shape)} that is not a parameter of "
                        "the model, or requires no gradient")

    def _catch_up(self) -> None:
        """Waits for the end of the round that the others are in when this worker joins; it contributes nothing to that round."""
        for fragment in self._fragments:
            fragment.push()
        for fragment in self._fragments:
            fragment.pull()

    def _begin_round(self) -> None:
        number = self.session.step
        self._length, self._dues = self._rhythm.steps(number), self._rhythm.dues(number)
        self._taken = 0  # number of steps taken in this round

    # ---- the interface of torch's optimizers ----

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Takes a step of the inner optimizer, then pushes and pulls the fragments that are due."""
        loss = self._inner.step(closure) if closure is not None else self._inner.step()
        self._taken += 1
        self._rhythm.took_step()
        for fragment in self._fragments:
            fragment.took_step(self.samples)
        if self._taken in self._dues or any(self._is_due_back(fragment) for fragment in self._fragments):
            with self._rhythm.synchronizing():
                self._exchange()
        if self._taken == self._length:
            self._begin_round()
        return loss

    def _exchange(self) -> None:
        """Pushes the fragments whose turn it is after this step, and pulls those that were pushed `overlap` steps ago."""
        for due, fragment in zip(self._dues, self._fragments):
            if self._taken == due:
                fragment.push()
        for fragment in self._fragments:
            if self._is_due_back(fragment):
                fragment.pull(self._alpha)

    def _is_due_back(self, fragment: Fragment) -> bool:
        return fragment.is_under_way and fragment.age == self._overlap

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls zero_grad of the inner optimizer."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the inner optimizer. That of the outer one is on the servers."""
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads the state of the inner optimizer."""
        self._inner.load_state_dict(state_dict)
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters that required gradients when this was made: a job's tensors are set when it starts."""
        if not hasattr(self, "param_groups") or self.param_groups is not self._inner.param_groups:
            super().add_param_group(param_group)  # torch's constructor calls this
        else:
            self._inner.add_param_group(param_group)
            self._check_groups()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises FailedPrecondition: copy, deepcopy and pickle do not work."""
        raise FailedPrecondition(
            "it cannot be copied or pickled, because it stands for this worker in the job; copy the model and "
            "the inner optimizer")

    # ---- beyond the interface of torch's optimizers ----

    def synchronize(self) -> None:
        """Synchronises now, wherever in a round this worker is, and begins a new round. All workers call it at the same point.

        Call it at the end and before the model is saved: afterwards all workers have the same weights. In the middle of a round (with
        fragments anywhere) it makes `steps` jump ahead, which ElasticDistributedSampler refuses. With that sampler, call it after the
        last epoch or, without fragments, when `steps` is a multiple of `sync_every`.
        """
        with self._rhythm.synchronizing():
            if self._taken:
                self._end_round(self._taken)
            if any(fragment.samples for fragment in self._fragments):  # trained since they were pushed in this round
                self._end_round(0)
            for fragment in self._fragments:
                if fragment.is_under_way:
                    fragment.pull()
        self._rhythm.pause()

    def _end_round(self, taken: int) -> None:
        """Ends a round after `taken` of its steps: pushes the fragments that were not pushed yet, and pulls all."""
        self._was_cut_short = True
        for due, fragment in zip(self._dues, self._fragments):
            if due > taken:
                if fragment.is_under_way:
                    fragment.pull(self._alpha)
                fragment.push()
        for fragment in self._fragments:
            if fragment.is_under_way:
                fragment.pull()
        self._begin_round()

    def report_loss(self, loss: Any) -> None:
        """Reports the loss of this round so far, for `syncline status`."""
        self.session.report_loss(float(loss), samples=self.samples)

    @property
    def steps(self) -> int:
        """The number of the present step, from 0, on all workers: the steps of all rounds before, and those of this round.

        A round that synchronize() cut short counts as a whole one, or as two. With adaptive rounds it is the step of the fastest worker:
        a worker that takes half as many counts each of them twice.
        """
        return self._rhythm.done(self.session.step, self._taken, self._length)

    @property
    def was_cut_short(self) -> bool:
        """Whether synchronize() ended a round of this worker early. `steps` is then more than it has trained."""
        return self._was_cut_short

    @property
    def is_adaptive(self) -> bool:
        """Whether the workers' rounds have different numbers of steps."""
        return isinstance(self._rhythm, AdaptiveRhythm)

    @property
    def round_steps(self) -> int:
        """Number of steps of this worker's present round."""
        return self._length

    @property
    def rounds(self) -> int:
        """Number of times that the job has synchronised. It does not begin at 0 if this worker joined a running job."""
        return self.session.step

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self.session.rank

    @property
    def world_size(self) -> int:
        """The number of workers with which the job began."""
        return self.session.world_size

    def close(self) -> None:
        """Synchronises what was trained since the last synchronisation, and leaves the job."""
        try:
            self.synchronize()
            self._hand_over()
        finally:
            self.session.close()

    def _hand_over(self) -> None:
        """Pushes what a quorum left out, before this worker leaves, in rounds that contain nothing else."""
        for _ in range(_TRIES):
            if not any(fragment.kept_samples for fragment in self._fragments):
                return
            self._end_round(0)
        _log.logger.warning("leaves with %d samples that no round has counted: %d rounds in a row ended without "
                            "this worker, which is slower than a quorum of the others even when it computes "
                            "nothing",
                            self._fragments[0].kept_samples, _TRIES)

    def __enter__(self) -> LocalSGD:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is None:
            self.close()
        else:
            close_after(self.session, error)


class DiLoCo(LocalSGD):
    """LocalSGD whose outer optimizer has momentum (Douillard et al., arXiv 2311.08105), by default Nesterov's.

        inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
        optimizer = syncline.torch.DiLoCo(model, inner, sync_every=100, push="int4")

    `outer` is "nesterov", "sgd" with `momentum`, or any other optimizer of the servers with its own options. With `fragments` and
    `overlap` it is Streaming DiLoCo (arXiv 2501.18512). It also helps a job of one worker.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, sync_every: Every = 100, *, outer: str = "nesterov",
                 lr: float = 0.7, momentum: Optional[float] = None, **options: Any) -> None:
        if outer in ("nesterov", "sgd"):
            options["momentum"] = 0.9 if momentum is None else momentum
        elif momentum is not None:
            raise InvalidArgument(f"momentum={momentum}: this is an option of outer=\"nesterov\" and \"sgd\", "
                                  f"not of {outer!r}")
        if outer == "nesterov":
            outer, options["nesterov"] = "sgd", True
        super().__init__(model, optimizer, sync_every, outer=outer, lr=lr, **options)


def checked_optimizer(model: Any, optimizer: Any) -> torch.optim.Optimizer:
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"the first argument is a {type(model).__name__}; give the model itself, which names its parameters")
    if not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "session"):
        raise InvalidArgument(
            f"the optimizer is {optimizer!r}; give one of torch's, which runs on the worker: torch.optim.AdamW(model.parameters(), …)")
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise InvalidArgument(f"{name}: is on the meta device, where it has no values; call "
                                  "model.to_empty(device=\"cpu\") and initialise it before")
    return optimizer


def _checked_times(sync_every: int, overlap: int, fragments: int) -> tuple[int, int]:
    if not isinstance(sync_every, int) or sync_every < 1:
        raise InvalidArgument(f"sync_every={sync_every!r}: steps between two synchronisations, 1 or more")
    if not 0 <= overlap < sync_every:
        raise InvalidArgument(f"overlap={overlap!r}: steps between push and pull, 0 to {sync_every - 1}, less than sync_every={sync_every}")
    if not 1 <= fragments <= sync_every:
        raise InvalidArgument(f"fragments={fragments!r}: each has a step of its own, so there are 1 to sync_every={sync_every} of them")
    return sync_every, overlap


def _checked_alpha(alpha: Optional[float], overlap: int) -> float:
    if alpha is None:
        return 0.5 if overlap else 0.0
    if not 0 <= alpha < 1 or (alpha and not overlap):
        raise InvalidArgument(
            f"alpha={alpha!r}: the share of its own weights that a worker keeps is 0 to 1 (not 1), and 0 without overlap")
    return float(alpha)
