"""The optimizer whose weights and state live on the servers."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Callable, Optional

import torch

from syncline import _exit, _log
from syncline.errors import Error, FailedPrecondition, InvalidArgument
from syncline.session import Option, Session
from syncline.torch._elastic.sampler import ExactlyOnceSampler
from syncline.torch._host.place import is_wanted
from syncline.torch._host.session import HostSession, close_after, join
from syncline.torch._optimizer import state as _state
from syncline.torch._optimizer.backward import Backward, cannot_end, say_what_left
from syncline.torch._optimizer.check import check_of
from syncline.torch._optimizer.given import check_devices, check_kinds
from syncline.torch._optimizer.groups import NOTES, Group, check_apart, make_groups, merged, option_string
from syncline.torch._optimizer.hooks import Hook, ReadHook
from syncline.torch._optimizer.one_each import check_only_one, note_hooks
from syncline.torch._optimizer.passes import watch_passes
from syncline.torch._optimizer.restart import RestartBarrier
from syncline.torch._optimizer.sent import SCALES_THERE
from syncline.torch._optimizer.spelling import check_spelling
from syncline.torch._optimizer.step import Step
from syncline.torch._optimizer.weight import Weight, memory_order, wait_all, wait_before_forward


class Optimizer(torch.optim.Optimizer):
    """Trains `model` together with all other workers of the job.

        optimizer = syncline.torch.Optimizer(model, "adamw", lr=1e-3, weight_decay=0.01)
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()     # sends each gradient as soon as it is there
            optimizer.step()    # the next forward waits, layer by layer, for the new weights

    The constructor joins the job and fills the weights: the job begins with the first worker's values. If no coordinator is given, it
    starts its own servers (syncline.Session).

    `optimizer` and `**options` are those of server/optimizer/README.md, with torch's names. `params` are torch's parameter groups,
    which may have their own `lr` and options. By default they are all parameters that require gradients; parameters in no group stay
    as they are. `push` and `publish` are the encodings of gradients and weights (docs/compression.md), by default bf16. `schedule`,
    `gradient` and `loss_scaling` say what else the servers do (docs/training.md). `mode` says which workers wait for which: "bsp",
    "bsp:quorum=3", "ssp:4" or "asp" (docs/modes.md). The default is the mode of `syncline run --mode`, or "bsp". `session` has further
    options of syncline.Session.

    `state_dict` is the state with which the job begins: a result of state_dict() of this optimizer or of torch's optimizer of the same
    kind. All workers must give the same. It is not used if the job runs already or continues from a checkpoint of the servers.

    `samples` is the number of samples of which a gradient is the mean; set it when batches differ. By default all workers count the
    same, as with DistributedDataParallel.

    `check="weights:every=100"` compares all ranks' weights after every 100th step. If they differ it raises syncline.NotEqual on all
    ranks, with the first rank, tensor and index that differ, and the step. `check="grad_norm:z=6,every=10"` raises it if the norm of a
    rank's gradients is unlike those of the others (docs/pytorch.md).

    `sampler` is a syncline.torch.elastic.ExactlyOnceSampler, for jobs whose workers come and go.

    With `local_aggregation` the ranks of a host add up their gradients and send them once, and weights come once for all of them
    (docs/pytorch.md#one-gradient-for-each-host). None: as `syncline run --local-aggregation` says; otherwise off.
    """

    def __init__(self, model: torch.nn.Module, optimizer: str = "sgd", lr: Optional[float] = None, *,
                 params: Optional[Iterable[Any]] = None, push: Option = None, publish: Option = None,
                 schedule: Option = None, gradient: Option = None, loss_scaling: Option = None, mode: Option = None,
                 samples: int = 1, state_dict: Optional[Mapping[str, Any]] = None, sampler: Optional[ExactlyOnceSampler] = None,
                 check: Option = None, local_aggregation: Optional[bool] = None,
                 session: Optional[Mapping[str, Option]] = None, **options: Any) -> None:
        _exit.set_up()
        check_kinds(model, optimizer)
        check_spelling(type(self), options)
        self._name = optimizer
        self.samples = samples
        self._model = model
        self._base_lr = lr
        self._has_schedule = schedule is not None or (session or {}).get("schedule") is not None
        self._pushes = True  # not inside no_sync
        self._backward = Backward()
        self._hooks: list[Any] = []
        self._lets_norms_be_read = False
        self._left_out: list[tuple[str, torch.nn.Parameter]] = []  # parameters that required no gradient
        self._weights: list[Weight] = []
        defaults = dict(options) if lr is None else {"lr": lr, **options}
        groups = make_groups(model, params, defaults)
        check_devices(model)
        check_apart(model)
        check_only_one(parameter for group in groups for parameter in group["params"])
        super().__init__(groups, defaults)
        self.param_groups: list[Group] = groups  # torch may have copied them
        settings = option_string(defaults)
        self._settings = merged({
            "optimizer": f"{optimizer}:{settings}" if settings else optimizer, "push": push, "publish": publish,
            "schedule": schedule, "gradient": gradient, "loss_scaling": loss_scaling, "mode": mode}, session or {})
        self._check = check_of(check, self._settings)
        self._sampler = sampler
        if sampler is not None:
            self._settings = sampler.settings(self._settings)
        self._trains_all = params is None
        self._aggregates = is_wanted(local_aggregation)
        self._join(state_dict)

    def _join(self, state_dict: Optional[Mapping[str, Any]] = None) -> None:
        self.session = join(self._settings, self._aggregates)
        self._settings["job"] = self.session.job  # kept for rejoining: by then the automatic name may be another one
        try:
            if self._sampler is not None and isinstance(self.session, HostSession):
                raise InvalidArgument("sampler= does not work with local aggregation: it counts which workers "
                                      "contributed to each step, but here a whole host contributes as one; pass "
                                      "local_aggregation=False, or use an ElasticDistributedSampler")
            self._declare(self._trains_all)
            given = None if state_dict is None else self._give(state_dict)
            self.session.start()
        except BaseException as error:
            self._close_after(error)
            raise
        for weight in self._weights:
            weight.started()
            weight.takes_one = self._lets_norms_be_read
        if self._check is not None:
            self._check.begin(self.session)
        self._step = self._first_step()
        self._joined_at = self.steps
        self._fix_groups()
        if given is not None:
            self._take_rates(given)
        self._add_hooks()

    def _first_step(self) -> Step:
        return Step(self.session, self._weights, self._backward, self._sampler, self._check)

    def rejoin(self) -> None:
        """Joins the job again after this worker was dropped, with a new session, the current weights and no gradients.

        `steps` is then the job's present step. Learning rates that the program has set stay.
        """
        if isinstance(self.session, HostSession) and self.session.join_again():  # others of its host may yet come to this call, or have been there
            return self._joined_again()
        self._leave()
        rates = [group.get("lr") for group in self.param_groups]
        self._forget()
        self._settings["rejoin"] = "1"  # if the others have left the run, it must not begin another one
        self._join()
        for group, rate in zip(self.param_groups, rates):
            if rate is not None and rate != group["lr"]:
                group["lr"] = rate

    def _restore(self) -> None:
        """Gives the model the job's weights again. Call it before the first step."""
        if not isinstance(self.session, HostSession):
            return self.rejoin()
        # Ranks of a host share its weights. If each left and joined again, some would meet a leader that is about to leave.
        self.session.restore_weights()
        self._joined_again()

    def _joined_again(self) -> None:
        """Starts from the job's weights, which the model has, in the same session."""
        for weight in self._weights:
            weight.joined_again()
        for parameter in self._model.parameters():
            parameter.grad = None
        self._pushes, self._joined_at = True, self.steps
        self._step = self._first_step()
        self._backward.is_over()

    def _begin_anew(self, state_dict: Mapping[str, Any]) -> None:
        """Restarts the job with this state and the weights that the model has now. Call it before the first step, on all workers."""
        barrier = RestartBarrier(self._settings, self.session.world_size)
        self._leave()
        barrier.wait()
        self._forget()
        self._join(state_dict)

    def _forget(self) -> None:
        """Forgets all that belongs to the session that it has left."""
        for group in self.param_groups:
            group.is_fixed = False
            if "lr" in group:
                group["lr"] = group.declared
        self._weights, self._left_out, self._pushes = [], [], True
        self._backward.is_over()
        for parameter in self._model.parameters():
            parameter.grad = None

    def _give(self, state_dict: Mapping[str, Any]) -> _state.Given:
        given = _state.Given(_state.kind_of(self._name, self.defaults), self.param_groups, state_dict)
        for weight in self._weights:
            given.set(weight)
        return given

    def _take_rates(self, given: _state.Given) -> None:
        """Takes learning rates, and what torch's lr_schedulers noted, from a state_dict, as torch's load_state_dict does."""
        if self.steps > 0:
            return _log.logger.info("state_dict= is not used: the job has run for %d steps and has its own state", self.steps)
        for group, saved in zip(self.param_groups, given.groups):
            group.update({key: saved[key] for key in ("initial_lr",) if key in saved})
            if "lr" in group and not self._has_schedule and saved.get("lr", group["lr"]) != group["lr"]:
                group["lr"] = float(saved["lr"])

    def _declare(self, trains_all: bool) -> None:
        group_of = {id(parameter): group for group in self.param_groups for parameter in group["params"]}
        for name, parameter in self._model.named_parameters():
            group = group_of.get(id(parameter))
            if group is None:
                if trains_all:
                    self._left_out.append((name, parameter))
                self.session.declare(name, parameter.detach().permute(memory_order(parameter)), frozen=True)
            else:
                self._weights.append(Weight(self.session, name, parameter, **self._options_of(group)))
        if self._sampler is not None:
            self._sampler.declare(self, self.session)

    def _options_of(self, group: Group) -> dict[str, Any]:
        changed = {name: value for name, value in group.items()
                   if name not in ("params", "lr", *NOTES) and self.defaults.get(name) != value}
        scale = 1.0
        if "lr" in group and group["lr"] != self._base_lr:
            if not self._base_lr:
                raise InvalidArgument("a parameter group has an lr of its own: give the Optimizer an lr, too")
            scale = group["lr"] / self._base_lr
        return {"learning_rate_scale": scale, "options": option_string(changed)}

    def _fix_groups(self) -> None:
        of = {id(weight.parameter): weight for weight in self._weights}
        for group in self.param_groups:
            weights = [of[id(parameter)] for parameter in group["params"]]
            group.declared = group.get("lr")
            group.take_rate = functools.partial(self._take_rate, weights, group.declared)
            group.is_fixed = True

    def _take_rate(self, weights: list[Weight], declared: float, rate: float) -> None:
        """Sets a group's learning rate for gradients that are pushed from now on."""
        if declared == 0 and rate != 0:
            raise InvalidArgument(
                f"lr={rate:g}, but the Optimizer was made with lr=0, which no factor can change; give it the "
                "highest rate, and set group[\"lr\"] = 0 afterwards where training begins with 0")
        if self._has_schedule:
            raise FailedPrecondition(
                "the Optimizer has a schedule=, which the servers follow; leave it out to change lr yourself or by torch's "
                "lr_schedulers")
        for weight in weights:
            if weight.is_pushed:
                raise FailedPrecondition(
                    f"{weight.name}: its gradient is on its way with the learning rate it had; change lr, and call "
                    "scheduler.step(), after optimizer.step()")
        if self._joined_at > 0:
            _log.logger.info("joined the job at step %d, so advance an lr_scheduler to it: `for _ in "
                             "range(optimizer.steps): scheduler.step()`; until then the workers that joined "
                             "earlier set the rate", self._joined_at)
            self._joined_at = 0
        for weight in weights:
            weight.rate_factor = 1.0 if rate == declared else rate / declared

    def _add_hooks(self) -> None:
        for weight in self._weights:
            self._hooks.append(weight.on_gradient(functools.partial(self._on_gradient, weight)))
        of = {id(weight.parameter): weight for weight in self._weights}
        for module in self._model.modules():
            own = [of[id(p)] for p in module.parameters(recurse=False) if id(p) in of]
            if own:
                self._add_forward_hook(module, functools.partial(wait_before_forward, own))
                self._hooks.append(module._register_state_dict_hook(ReadHook(functools.partial(wait_all, own))))
        self._add_forward_hook(self._model, self._before_model)
        self._hooks.append(self._model._register_state_dict_hook(ReadHook(self.synchronize)))
        self._hooks += watch_passes(self.session, self._model)
        note_hooks(self, "Optimizer", {id(weight.parameter): weight.name for weight in self._weights})

    def _add_forward_hook(self, module: torch.nn.Module, action: Callable[[], None]) -> None:
        hook = module.register_forward_pre_hook(Hook(action))
        module._forward_pre_hooks.move_to_end(hook.id, last=False)  # before hooks that read weights, such as that of spectral_norm
        self._hooks.append(hook)

    def _on_gradient(self, weight: Weight) -> None:
        if self._pushes:
            if self._step.is_whole:
                self._step.take()
            self._backward.goes_on()
            weight.push(self.samples)

    def _before_model(self) -> None:
        for weight in self._weights:
            if weight.waits_early:
                weight.wait()

    # ---- the interface of torch's optimizers ----

    def step(self, closure: Optional[Callable[[], Any]] = None, *, grad_scaler: Any = None) -> Any:
        """Ends the step: sends what no_sync kept back, and skips parameters without a gradient.

        `.grad` is None afterwards. The next forward of each module waits for its new weights.
        """
        loss = None
        try:
            self._step.is_ending = closure is None  # a closure calls zero_grad(), too
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            if self._step.settle() and all(weight.parameter.grad is None for weight in self._weights):
                return loss
            self._step.is_ending = True
            self._send_rest(grad_scaler)
            self._step.end(self._weights)
        except Error:
            self._step.is_ending = False  # what the program may mend zero_grad() does not throw away
            raise
        return loss

    def _send_rest(self, grad_scaler: Any) -> None:
        if grad_scaler is not None or getattr(self, "grad_scale", None) is not None:
            raise FailedPrecondition(SCALES_THERE)
        for name, parameter in self._left_out:
            if parameter.grad is not None:
                raise FailedPrecondition(
                    f"{name}: has a gradient, but required none when the Optimizer was made, and so was left "
                    "out; pass it in params=, as params=model.parameters() does, and unfreeze it later")
        for weight in self._weights:
            if not weight.is_pushed and weight.parameter.grad is not None:
                weight.push(self.samples)

    # Makes a GradScaler call step() before it touches gradients; step() refuses it then.
    _step_supports_amp_scaling = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients that were not sent. step() also does so.

        If an exception broke off a backward, the gradients that were sent cannot be taken back. zero_grad then ends that step, which has
        only these gradients of this worker (docs/pytorch.md#a-backward-that-fails).
        """
        self._step.settle()
        sent = self._step.sent
        if sent and not (self._backward.is_under_way or self._step.is_ending):
            raise FailedPrecondition(
                f"{sent[0].name}: its gradient is on its way already; call step() first, or run a backward whose gradients "
                "may be thrown away in no_sync()")
        for weight in self._weights:
            weight.parameter.grad = None
        if not self._step.is_begun:
            self._step.is_ending = False
            return self._backward.is_over()
        say_what_left(self.steps, len(sent), len(self._weights))
        try:
            self._step.end([])  # nobody compares the norm of what there is
        except FailedPrecondition as error:
            if type(error) is not FailedPrecondition:  # it says by itself what to do
                raise
            raise cannot_end(error) from None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises FailedPrecondition: a job's tensors are set when it starts, so the constructor needs all groups."""
        if self._weights:
            raise FailedPrecondition("the tensors of a job are declared when it starts; give all groups to the Optimizer")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Fetches the state from the servers, in the form of torch's optimizer of the same kind, which can continue from it.

        It works for the optimizers that torch also has (docs/pytorch.md). Any worker may call it, alone, between step() and the next
        backward. In mode ssp it waits until the others have come to this worker's step, and the model's weights are of that step
        afterwards; so save the weights after it. Raises FailedPrecondition in mode asp, in which tensors have no common step.
        """
        self.synchronize()
        of = {id(weight.parameter): weight for weight in self._weights}
        return _state.fetch(_state.kind_of(self._name, self.defaults), self.param_groups, of)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state_dict of this optimizer or of torch's optimizer of the same kind. All workers call it before the first step.

        The job starts over with it, and with the weights that the model has now: load the model before. A job that had run when
        this worker joined goes on with its own, which the model gets back. After the first step it raises, unless it says what
        state_dict() says anyway.
        """
        kind = _state.kind_of(self._name, self.defaults)
        if self._step.has_ended_one or any(weight.is_pushed for weight in self._weights):
            if not _state.same(state_dict, self.state_dict()):
                raise FailedPrecondition(
                    "the servers hold the optimizer's state, and accept another one only before the first step: "
                    "call load_state_dict() then, after the model's own, or make the Optimizer with state_dict=")
            return
        given = _state.Given(kind, self.param_groups, state_dict)
        for weight in self._weights:
            given.of(weight)  # raises while this worker is in the job yet
        if given.is_empty and not any(weight.was_changed for weight in self._weights):
            self._take_rates(given)  # as accelerate does when it takes the optimizer
        elif self.steps > 0:
            _log.logger.info("load_state_dict(): the job has run for %d steps, and goes on with its own state and weights", self.steps)
            self._restore()
        else:
            self._begin_anew(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises FailedPrecondition: copy, deepcopy and pickle do not work."""
        raise FailedPrecondition(
            "an Optimizer cannot be copied or pickled: its state is on the servers, and it stands for this "
            "worker in the job; copy the model (after synchronize()), and make another Optimizer with a job of "
            "its own")

    # ---- beyond the interface of torch's optimizers ----

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which backward only accumulates gradients. A later backward outside, or step(), sends the sum."""
        before = self._pushes
        try:
            self._pushes = False
            yield
        finally:
            self._pushes = before

    def step_without_gradients(self) -> None:
        """A step of the others, in which this worker has no batch: no step of the program's, whose lr_schedulers do not count it."""
        if not self._step.settle():
            self._step.end(self._weights)
        self.synchronize()

    def synchronize(self) -> None:
        """Waits for all new weights. Call it before code that reads weights outside of forward and state_dict."""
        wait_all(self._weights)

    def let_norms_be_read(self) -> None:
        """Allows `clip_grad_norm_(parameters, float("inf"))`, by which some programs read the norm of gradients."""
        self._lets_norms_be_read = True
        for weight in self._weights:
            weight.takes_one = True

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss on which to call backward: with loss_scaling, it is multiplied by the servers' scale."""
        return loss * self.session.loss_scale

    @property
    def scales_loss(self) -> bool:
        """Whether it was made with loss_scaling."""
        return self._settings.get("loss_scaling") not in (None, "", "none")

    def await_scale(self) -> None:
        """Until the last step is over, and with it the present one's scale is known."""
        if not self._step.is_begun:
            self.synchronize()

    def report_loss(self, loss: Any) -> None:
        """Reports the loss of this step, for `syncline status` and `syncline lr-range`. Call it between backward and step()."""
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss  # torch warns about a loss that requires a gradient
        self.session.report_loss(float(value), samples=self.samples)

    @property
    def steps(self) -> int:
        """The number of the job's present step, from 0."""
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
        """Waits for the last weights and leaves the job. This happens by itself at the end of the program.

        If gradients were sent and step() was not called, close ends that step: what was sent cannot be taken back. It drops the others.
        """
        try:
            self._step.settle()
            if self._step.is_begun:
                for weight in (one for one in self._weights if not one.is_pushed):  # an exception broke backward off
                    weight.parameter.grad = None
                self._step.end(self._weights)
            self.synchronize()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._remove_hooks()
        self.session.close()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            if hasattr(hook, "remove"):
                hook.remove()
        self._hooks, self._pushes = [], False

    def __enter__(self) -> Optimizer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is not None:
            return self._close_after(error)
        self.close()

    def _close_after(self, error: BaseException) -> None:
        self._remove_hooks()
        close_after(self.session, error)
