"""The optimizer that lives on the servers."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Callable, Optional

import torch

from syncline import _exit, _log, _staging
from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option, Session
from syncline.torch._groups import NOTES, Group, check_apart, make_groups, merged, option_string
from syncline.torch import _state
from syncline.torch._anew import Meeting
from syncline.torch._backward import Backward, cannot_end, say_what_left
from syncline.torch._check import check_of
from syncline.torch._exactly_once import ExactlyOnceSampler
from syncline.torch._hooks import Hook, ReadHook
from syncline.torch._host_place import is_wanted
from syncline.torch._host_session import HostSession, close_after, join
from syncline.torch._sent import SCALES_THERE
from syncline.torch._spelling import check_spelling
from syncline.torch._weight import Weight, memory_order


class Optimizer(torch.optim.Optimizer):
    """Trains `model` together with all other workers of the job.

        optimizer = syncline.torch.Optimizer(model, "adamw", lr=1e-3, weight_decay=0.01)
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()     # sends each gradient as soon as it is there
            optimizer.step()    # the next forward waits, layer by layer, for the new weights

    Making it joins the job and fills the weights: the first worker's values are the job's. It does so with servers of
    its own when it is told of none (syncline.Session).

    `optimizer` and `**options` are those of server/optimizer/README.md, named as torch names them. `params` are torch's
    parameter groups with an `lr` and options of their own, all parameters that require gradients unless told otherwise;
    those in no group stay as they are. `push` and `publish` say how gradients and weights travel (docs/compression.md;
    bf16 unless told otherwise), `schedule`, `gradient` and `loss_scaling` what else the servers do (docs/training.md).
    `mode` says who waits for whom: "bsp", "bsp:quorum=3", "ssp:4" or "asp" (docs/modes.md); unless told otherwise that of
    `syncline run --mode`, or "bsp". `session` has further options of syncline.Session.

    `state_dict` is what state_dict() returned, of this or of torch's optimizer of the same kind, and what the job begins
    with: all workers give the same. A job that runs already, or goes on from a checkpoint of the servers, has its own.

    `samples` says how many samples a gradient is the mean of; set it when batches differ. By default all workers count
    the same, as with DistributedDataParallel.

    `check="weights:every=100"` compares all ranks' weights after every 100th step, and raises syncline.NotEqual on all of them where
    they differ: with the first rank, tensor and index, and the step. `check="grad_norm:z=6,every=10"` likewise raises where the norm of
    a rank's gradients is not as that of the others (docs/pytorch.md).

    `sampler` is a syncline.torch.elastic.ExactlyOnceSampler, for jobs whose workers come and go.

    With `local_aggregation` the ranks of a host add up their gradients and send them once, and weights come once for all of them
    (docs/pytorch.md#one-gradient-for-each-host); None: as `syncline run --local-aggregation` says, or not.
    """

    def __init__(self, model: torch.nn.Module, optimizer: str = "sgd", lr: Optional[float] = None, *,
                 params: Optional[Iterable[Any]] = None, push: Option = None, publish: Option = None,
                 schedule: Option = None, gradient: Option = None, loss_scaling: Option = None, mode: Option = None,
                 samples: int = 1, state_dict: Optional[Mapping[str, Any]] = None, sampler: Optional[ExactlyOnceSampler] = None,
                 check: Option = None, local_aggregation: Optional[bool] = None,
                 session: Optional[Mapping[str, Option]] = None, **options: Any) -> None:
        _exit.set_up()
        _check_kinds(model, optimizer)
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
        self._left_out: list[tuple[str, torch.nn.Parameter]] = []  # as they required no gradient
        self._weights: list[Weight] = []
        defaults = dict(options) if lr is None else {"lr": lr, **options}
        groups = make_groups(model, params, defaults)
        _check_devices(model)
        check_apart(model)
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
        self._settings["job"] = self.session.job  # when it joins again, other sessions may have come or gone
        try:
            if self._sampler is not None and isinstance(self.session, HostSession):
                raise InvalidArgument("sampler= is not for local aggregation: it counts whose contribution each step was made of, and here that is "
                                      "a whole host's; pass local_aggregation=False, or take an ElasticDistributedSampler")
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
        self._has_stepped = False
        self._joined_at = self.steps
        self._fix_groups()
        if given is not None:
            self._take_rates(given)
        self._add_hooks()

    def rejoin(self) -> None:
        """Joins the job again, after this worker was dropped from it: with a new session, the current weights, and no gradients.

        `steps` is where the job is now. Rates that the program set stay.
        """
        if isinstance(self.session, HostSession) and self.session.join_again():  # others of its host may yet come to this call, or have been there
            return self._joined_again()
        self._leave()
        rates = [group.get("lr") for group in self.param_groups]
        self._forget()
        self._settings["rejoin"] = "1"  # so that it begins no other run where the others have finished this one
        self._join()
        for group, rate in zip(self.param_groups, rates):
            if rate is not None and rate != group["lr"]:
                group["lr"] = rate

    def _restore(self) -> None:
        """Before the first step: the model has the job's weights again."""
        if not isinstance(self.session, HostSession):
            return self.rejoin()
        # Ranks of a host have its weights at hand. If each left and joined again, some would meet a leader that is about to leave, too.
        self.session.restore_weights()
        self._joined_again()

    def _joined_again(self) -> None:
        """In the same session: the model has the job's weights."""
        for weight in self._weights:
            weight.joined_again()
        for parameter in self._model.parameters():
            parameter.grad = None
        self._pushes, self._has_stepped, self._joined_at = True, False, self.steps
        self._backward.is_over()

    def _begin_anew(self, state_dict: Mapping[str, Any]) -> None:
        """Before the first step: the job, with this state, and the weights that the model has now."""
        meeting = Meeting(self._settings, self.session.world_size)
        self._leave()
        meeting.hold()
        self._forget()
        self._join(state_dict)

    def _forget(self) -> None:
        """What it knew of the session that it has left."""
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
        """Learning rates and notes of torch's lr_schedulers, as torch's load_state_dict does."""
        if self.steps > 0:
            return _log.logger.info("state_dict= is not used: the job has run for %d steps, and has a state of its own", self.steps)
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
        """A group's new learning rate: that of the gradients that are pushed from now on."""
        if declared == 0 and rate != 0:
            raise InvalidArgument(
                f"lr={rate:g}, but the Optimizer was made with lr=0, which no factor makes another rate; give it the highest rate, "
                "and set group[\"lr\"] = 0 afterwards where training begins with 0")
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
            _log.logger.info("joined the job at step %d, so take an lr_scheduler there: `for _ in range(optimizer.steps): "
                             "scheduler.step()`; until then those who joined earlier decide", self._joined_at)
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
                self._add_forward_hook(module, functools.partial(_before_forward, own))
                self._hooks.append(module._register_state_dict_hook(ReadHook(functools.partial(_wait, own))))
        self._add_forward_hook(self._model, self._before_model)
        self._hooks.append(self._model._register_state_dict_hook(ReadHook(self.synchronize)))

    def _add_forward_hook(self, module: torch.nn.Module, action: Callable[[], None]) -> None:
        hook = module.register_forward_pre_hook(Hook(action))
        module._forward_pre_hooks.move_to_end(hook.id, last=False)  # before those that read weights, as spectral_norm's
        self._hooks.append(hook)

    def _on_gradient(self, weight: Weight) -> None:
        if self._pushes:
            weight.push(self.samples)
            self._backward.goes_on()

    def _before_model(self) -> None:
        for weight in self._weights:
            if weight.waits_early:
                weight.wait()

    # ---- what torch's optimizers have ----

    def step(self, closure: Optional[Callable[[], Any]] = None, *, grad_scaler: Any = None) -> Any:
        """Ends the step: sends what no_sync kept back, and says of which parameters there is no gradient.

        Gradients are taken: `.grad` is None afterwards. New weights are waited for by the next forward of each module.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if grad_scaler is not None or getattr(self, "grad_scale", None) is not None:
            raise FailedPrecondition(SCALES_THERE)
        for name, parameter in self._left_out:
            if parameter.grad is not None:
                raise FailedPrecondition(
                    f"{name}: has a gradient, but required none when the Optimizer was made, which left it out; name it in "
                    "params=, as params=model.parameters() does, and unfreeze it later")
        for weight in self._weights:
            if not weight.is_pushed and weight.parameter.grad is not None:
                weight.push(self.samples)
        self._end_step(self._weights)
        return loss

    def _end_step(self, checked: list[Weight]) -> None:
        rest = [weight for weight in self._weights if not weight.is_pushed]
        _wait(rest)
        if rest:
            self.session.skip(weight.tensor for weight in rest)
            for weight in rest:
                weight.skipped()
        if self._sampler is not None:
            self._sampler.push(self.session)
        if self._check is not None:
            self._check.before_step(self.session, checked)
        for weight in self._weights:
            weight.end_step()
        self._backward.is_over()
        self._has_stepped = True
        if self._check is not None:
            self._check.after_step(self.session, self._weights)

    # With it a GradScaler asks step() before it touches gradients, which then refuses it.
    _step_supports_amp_scaling = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients that are not on their way. step() does so, too.

        What had left of a backward that an exception broke off cannot be taken back: it ends that step, which has these gradients and
        no others of this worker (docs/pytorch.md#a-backward-that-fails).
        """
        sent = [weight for weight in self._weights if weight.is_pushed]
        if sent and not self._backward.is_under_way:
            raise FailedPrecondition(
                f"{sent[0].name}: its gradient is on its way already; call step() first, or run a backward whose gradients "
                "may be thrown away in no_sync()")
        for weight in self._weights:
            weight.parameter.grad = None
        if sent:
            say_what_left(self.steps, len(sent), len(self._weights))
            try:
                self._end_step([])  # nobody compares the norm of what there is
            except FailedPrecondition as error:
                if type(error) is not FailedPrecondition:  # it says by itself what to do
                    raise
                raise cannot_end(error) from None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """All groups are given to the constructor: the servers know the tensors of a job from its start."""
        if self._weights:
            raise FailedPrecondition("the tensors of a job are declared when it starts; give all groups to the Optimizer")
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """That of torch's optimizer of the same kind, which goes on with it as this one would. Fetched from the servers.

        Of those that torch has, too (docs/pytorch.md). Any worker may call it, by itself, between step() and the next
        backward. In mode ssp it waits until the others have come to this worker's step, and the model's weights are of that step
        afterwards: save those after it. FailedPrecondition in mode asp, where no step is common to all tensors.
        """
        self.synchronize()
        of = {id(weight.parameter): weight for weight in self._weights}
        return _state.fetch(_state.kind_of(self._name, self.defaults), self.param_groups, of)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """What state_dict() returned, of this or of torch's optimizer of the same kind. Before the first step, by all workers.

        The job begins anew with it, and with the weights that the model has now: load the model before. A job that had run when
        this worker joined goes on with its own, which the model gets back. After the first step it raises, unless it says what
        state_dict() says anyway.
        """
        kind = _state.kind_of(self._name, self.defaults)
        if self._has_stepped or any(weight.is_pushed for weight in self._weights):
            if not _state.same(state_dict, self.state_dict()):
                raise FailedPrecondition(
                    "the servers hold the optimizer's state, and take another one only before the first step: call load_state_dict() there, "
                    "after the model's own, or make the Optimizer with state_dict=")
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
        """Raises: for copy, deepcopy and pickle."""
        raise FailedPrecondition(
            "an Optimizer cannot be copied or pickled: its state is on the servers, and its place in the job is this one's; "
            "copy the model (after synchronize()), and make another Optimizer with a job of its own")

    # ---- what they have not ----

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside only accumulates gradients; a later backward outside, or step(), sends the sum."""
        before, self._pushes = self._pushes, False
        try:
            yield
        finally:
            self._pushes = before

    def step_without_gradients(self) -> None:
        """A step of the others, in which this worker has no batch: no step of the program's, whose lr_schedulers do not count it."""
        self._end_step(self._weights)
        self.synchronize()

    def synchronize(self) -> None:
        """Waits for all new weights. For code that reads weights outside of forward and state_dict."""
        _wait(self._weights)

    def let_norms_be_read(self) -> None:
        """Lets `clip_grad_norm_(parameters, float("inf"))` pass, with which some programs read the norm of gradients."""
        self._lets_norms_be_read = True
        for weight in self._weights:
            weight.takes_one = True

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call backward on: times the servers' scale, with loss_scaling."""
        return loss * self.session.loss_scale

    def report_loss(self, loss: Any) -> None:
        """The loss of this step, for `syncline status` and `syncline lr-range`. Between backward and step()."""
        value = loss.detach() if isinstance(loss, torch.Tensor) else loss  # torch warns of one that requires a gradient
        self.session.report_loss(float(value), samples=self.samples)

    @property
    def steps(self) -> int:
        """The number of the present step, from 0; what a worker that joins a running job begins with."""
        return self.session.step

    @property
    def rank(self) -> int:
        """Which worker this is."""
        return self.session.rank

    @property
    def world_size(self) -> int:
        """With how many workers the job began."""
        return self.session.world_size

    def close(self) -> None:
        """Waits for the last weights and leaves the job. At the end of the program it comes by itself.

        A step whose backward came and whose step() did not is ended: what was sent cannot be taken back.
        """
        try:
            if any(weight.is_pushed for weight in self._weights):
                self._end_step(self._weights)
            self.synchronize()
        finally:
            self._leave()

    def _leave(self) -> None:
        for hook in self._hooks:
            if hasattr(hook, "remove"):
                hook.remove()
        self._hooks = []
        self._pushes = False
        self.session.close()

    def __enter__(self) -> Optimizer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is None:
            self.close()
        else:
            self._close_after(error)

    def _close_after(self, error: BaseException) -> None:
        close_after(self.session, error)


def _before_forward(weights: list[Weight]) -> None:
    for weight in weights:
        weight.is_waited_for = True
    _wait(weights)


def _wait(weights: list[Weight]) -> None:
    for weight in weights:
        weight.wait()


def _check_kinds(model: Any, optimizer: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"the first argument is a {type(model).__name__}; give the model itself, Optimizer(model, …), which names its "
            "parameters; params= says which of them to train")
    if not isinstance(optimizer, str):
        name = getattr(optimizer, "__name__", "adamw").lower()
        raise InvalidArgument(f'the optimizer is {optimizer!r}; give its name in lower case, such as Optimizer(model, "{name}", …)')


def _check_devices(model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        _staging.device_of(parameter, name)
