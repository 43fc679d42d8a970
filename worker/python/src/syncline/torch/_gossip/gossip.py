"""An optimizer whose workers average their weights in pairs, without servers."""
from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Callable, NamedTuple, Optional

import torch

from syncline import _exit, _group, _log
from syncline.errors import Cancelled, DeadlineExceeded, Dropped, Error, FailedPrecondition, InvalidArgument, Unavailable
from syncline.torch._gossip.circle import Circle, find_launch, servers_of_the_run
from syncline.torch._host.place import warn_unheeded
from syncline.torch._local.local_sgd import checked_optimizer

_FP32 = 0  # the library's number of the type
_SLICE_S = 0.1  # longest time without handling signals
_LEAVE_S = 5.0


class GossipStats(NamedTuple):
    """Statistics of this worker so far."""

    rounds: int
    exchanges: int
    """Rounds in which it had a partner, and the exchange was done."""
    bytes_sent: int
    plain_bytes: int
    """What FP32 would have sent in the same exchanges."""
    bytes_kept: int
    """What encodings of compressed codecs are compared with: 8 a parameter for each partner that it has had, and 4 more."""
    members: int
    deaths: int
    consensus_distance: Optional[float]
    """The last one measured."""
    waited_seconds: float


class Gossip(torch.optim.Optimizer):
    """Trains `model` with `optimizer`, any of torch's, on this worker. Every `every` steps it averages its weights with another worker.

        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = syncline.torch.Gossip(model, inner, graph="exponential")
        for inputs, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()        # exchanges with another worker each time
        optimizer.average()         # takes the mean of all workers, for evaluation
        optimizer.close()

    It needs no servers: start the program by `syncline run --standalone --servers 0` or torchrun, or call init_process_group before. The
    constructor waits for all workers and gives them the first one's weights and buffers. All workers must take the same number of steps.

    `graph` says which workers meet: "ring", "exponential" or "random" (drawn by `seed`). `push` is the encoding of weights: "fp32",
    "bf16", or any quantizer or selector of docs/compression.md, which encodes what has changed since the two workers met last. `gamma`,
    in (0, 1], is how far the two move towards each other. The default is 0.5, the mean of both, for "fp32" to "int4", and less for
    "onebit" and "topk". Each of them conserves the mean over all workers. With `overlap` an exchange goes on while the next `every`
    steps are computed, and its result is added after them.

    Every `measure_every` rounds all workers measure `consensus_distance()`, for which they wait for each other. 0: never.

    If a worker dies, the exchanges of all workers end; the others form another group and go on (docs/gossip.md says what is lost). They
    wait `timeout` for each other.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, graph: str = "exponential", *, every: int = 1,
                 push: str = "fp32", gamma: Optional[float] = None, overlap: bool = False, seed: int = 0, measure_every: int = 0,
                 timeout: datetime.timedelta = datetime.timedelta(minutes=5)) -> None:
        _exit.set_up()
        self._inner = checked_optimizer(model, optimizer)
        _check(every, gamma, overlap, measure_every)
        self._every, self._overlap, self._measure_every = every, overlap, measure_every
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise InvalidArgument("the model has no parameter to train")
        if any(parameter.is_complex() for parameter in self._parameters):
            raise InvalidArgument("Gossip averages real parameters only; one of the model's is complex")
        self._values = torch.empty(sum(parameter.numel() for parameter in self._parameters), dtype=torch.float32, device="cpu")
        self._delta = torch.zeros_like(self._values)
        self._settings = _group.GossipSettings(graph=graph, codec=push, gamma=gamma or 0.0, seed=seed, count=self._values.numel()).checked()
        if (servers := servers_of_the_run()) is not None:
            raise FailedPrecondition(f"{servers}, but Gossip needs no servers: workers exchange weights in "
                                     "pairs. Start the run with --servers 0, or use syncline.torch.LocalSGD or "
                                     "Optimizer, whose weights are on servers")
        _log.set_up()
        warn_unheeded("Gossip, whose workers exchange weights in pairs and send none to servers")
        self._process = os.getpid()
        self._steps = self._rounds = self._exchanges = self._deaths = self._sent_before = 0
        self._actions = 0  # number of actions so far: exchanges, measurements and means, which all ranks do in the same order
        self._resume = 0  # number of the first action of the present group
        self._distance: Optional[float] = None
        self._pending: Optional[_Call] = None  # an exchange that goes on meanwhile
        self._calls: list[_Call] = []  # that may be under way, an exchange that Ctrl-C has ended here among them
        self._operation: Optional[_group.Handle] = None  # under way, or ended by an exception, which may refer to it for long
        self._waited, self._began = 0.0, time.monotonic()
        self._circle: Optional[Circle] = Circle(find_launch(timeout), timeout)
        self._first_rank, self._world_size = self._circle.rank, len(self._circle.members)
        self._begin_alike(model)
        self._pair = self._meet()
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups, self.state, self.defaults = self._inner.param_groups, self._inner.state, self._inner.defaults
        _open.add(self)

    # ---- how values travel ----

    def _begin_alike(self, model: torch.nn.Module) -> None:
        """Gives all workers the first one's weights and buffers."""
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                there = tensor.detach().to("cpu").contiguous()
                self._operate(_group.BROADCAST, output=there.data_ptr(), count=there.numel() * there.element_size(), keeps=there)
                tensor.copy_(there)

    def _operate(self, op: int, **call: Any) -> None:
        """An operation of all."""
        self._operation = self._present.start(op, **call)
        self._operation.wait()
        self._operation = None

    @property
    def _present(self) -> _group.Group:
        if self._circle is None:
            raise FailedPrecondition("the Gossip is closed")
        if self._process != os.getpid():
            raise FailedPrecondition("the Gossip belongs to the process that forked this one; make a new one here")
        return self._circle.group

    def _meet(self) -> _group.PairGossip:
        """Exchanges in the present group. What pairs know of each other starts over, with the first one's weights."""
        base = self._gathered().clone()
        self._operate(_group.BROADCAST, output=base.data_ptr(), count=4 * base.numel(), keeps=base)
        return _group.PairGossip(self._present, self._settings, base.data_ptr())

    def _gathered(self) -> torch.Tensor:
        at = 0
        for parameter in self._parameters:
            self._values[at:at + parameter.numel()].copy_(parameter.detach().reshape(-1))
            at += parameter.numel()
        return self._values

    def _spread(self, put: Callable[[torch.Tensor, torch.Tensor], Any], values: torch.Tensor) -> None:
        at = 0
        for parameter in self._parameters:
            part = values[at:at + parameter.numel()].view(parameter.shape)
            put(parameter.detach(), part.to(parameter.device, parameter.dtype))
            at += parameter.numel()

    # ---- actions, which all ranks do in the same order ----

    def _act(self, what: Callable[[], Any]) -> Any:
        """Does the next action, and does it again in the next group if this one ends.

        Returns None if the remaining ranks have done it already.
        """
        number, self._actions = self._actions, self._actions + 1
        while number >= self._resume:
            began = time.monotonic()
            try:
                return what()
            except Error as error:
                self._go_on(error, number)
            finally:
                self._waited += time.monotonic() - began
        return None

    def _go_on(self, error: Error, number: int) -> None:
        """Without those who are gone. Raises what is no death."""
        lost = (Dropped, DeadlineExceeded, Unavailable, Cancelled)  # the last, by one that Ctrl-C has ended in the middle
        if not isinstance(error, lost) or self._circle is None or self._world_size == 1:
            raise error
        while True:
            before = len(self._circle.members)
            self._forget_pair()  # before its group
            self._resume = self._circle.reform(error, number)
            self._deaths += before - len(self._circle.members)
            _log.logger.warning("%s; goes on with %d of %d workers", error, len(self._circle.members), self._world_size)
            try:
                self._pair = self._meet()
                return
            except lost as another:
                error = another

    def _forget_pair(self) -> None:
        if (pair := self.__dict__.pop("_pair", None)) is not None:
            self._sent_before += pair.sent_bytes
            pair.close()

    def _run(self, call: Callable[[], Any]) -> Any:
        """In a thread, so that Ctrl-C is heard meanwhile. It then ends the group: what the library uses is in use until the thread is over."""
        running = _Call(call, self._calls)
        try:
            return running.result()
        except BaseException:
            if not running.is_over(0):
                self._present.abort()
                running.await_end()
            raise

    def _exchange_now(self) -> None:
        values, delta = self._gathered(), self._delta
        partner = self._run(lambda: self._pair.exchange(self._rounds, values.data_ptr(), delta.data_ptr()))
        self._add(partner)

    def _add(self, partner: Optional[int]) -> None:
        if partner is not None:
            self._exchanges += 1
            self._spread(lambda parameter, part: parameter.add_(part), self._delta)

    def _take_pending(self) -> None:
        """Waits for the exchange under way and adds its result."""
        if self._pending is None:
            return
        began = time.monotonic()
        try:
            partner = self._pending.result()  # after Ctrl-C it goes on, and the next call waits for it
            self._pending = None
            self._add(partner)
        except Error as error:
            self._pending = None
            self._go_on(error, self._actions)  # its delta is lost
        finally:
            self._waited += time.monotonic() - began

    def _start_exchange(self) -> None:
        number, self._actions = self._actions, self._actions + 1
        if number < self._resume:
            return
        values, delta, pair, this_round = self._gathered(), self._delta, self._pair, self._rounds
        self._pending = _Call(lambda: pair.exchange(this_round, values.data_ptr(), delta.data_ptr()), self._calls)

    def _round(self) -> None:
        if self._overlap:
            self._take_pending()
            self._start_exchange()
        else:
            self._act(self._exchange_now)
        self._rounds += 1
        if self._measure_every and self._rounds % self._measure_every == 0:
            self.measure()

    # ---- the interface of torch's optimizers ----

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Takes a step of the inner optimizer, and makes the exchange that is due."""
        _ = self._present  # raises before anything changes if it is closed
        loss = self._inner.step(closure) if closure is not None else self._inner.step()
        self._steps += 1
        if self._steps % self._every == 0:
            self._round()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Calls zero_grad of the inner optimizer."""
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the inner optimizer."""
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads the state of the inner optimizer."""
        self._inner.load_state_dict(state_dict)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises FailedPrecondition after construction, which settles the parameters that are averaged."""
        if hasattr(self, "param_groups") and self.param_groups is self._inner.param_groups:
            raise FailedPrecondition("the parameters to exchange were chosen when the Gossip was made; add the "
                                     "group to the inner optimizer before that")
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises: for copy, deepcopy and pickle."""
        raise FailedPrecondition("it cannot be copied or pickled, because it stands for this worker; copy the "
                                 "model and the inner optimizer")

    # ---- beyond the interface of torch's optimizers ----

    def average(self) -> None:
        """Gives all workers the mean of their weights, for evaluation and at the end. All call it at the same point."""
        self._take_pending()
        if not self._act(self._average_now):
            raise Unavailable("a worker died while the mean was computed; others have the mean and have gone "
                              "on, but this worker still has its own weights")

    def _average_now(self) -> bool:
        mean = self._gathered()
        self._operate(_group.ALL_REDUCE, dtype=_FP32, reduction=_group.AVERAGE, output=mean.data_ptr(), count=mean.numel(), keeps=mean)
        self._spread(lambda parameter, part: parameter.copy_(part), mean)
        return True

    def measure(self) -> Optional[float]:
        """Measures `consensus_distance()` now. All call it at the same point. It waits for all workers and sends 32 KiB."""
        self._take_pending()
        self._act(self._measure_now)
        return self._distance

    def _measure_now(self) -> None:
        values = self._gathered()
        self._distance = self._run(lambda: self._pair.distance(values.data_ptr()))

    def consensus_distance(self) -> Optional[float]:
        """Returns sqrt(mean over workers of |weights - mean|^2) as measured last; None: not measured yet.

        The value is within 4 % if there are more than 4,096 weights.
        """
        return self._distance

    @property
    def stats(self) -> GossipStats:
        """Statistics of this worker so far."""
        now = getattr(self, "_pair", None)
        return GossipStats(self._rounds, self._exchanges, self._sent_before + (now.sent_bytes if now else 0), 4 * self._values.numel() * self._exchanges,
                           now.kept_bytes if now else 0, len(self._circle.members) if self._circle else 0, self._deaths, self._distance, self._waited)

    @property
    def gamma(self) -> float:
        """How far partners move towards each other."""
        return self._settings.gamma

    @property
    def rank(self) -> int:
        """This worker's rank at the start, which never changes."""
        return self._first_rank

    @property
    def world_size(self) -> int:
        """The number of workers at the start."""
        return self._world_size

    def summary(self) -> str:
        """Returns one line about this worker's rounds."""
        stats, seconds = self.stats, max(time.monotonic() - self._began, 1e-6)
        less = f" ({stats.plain_bytes / stats.bytes_sent:.3g}x less than FP32)" if stats.bytes_sent and stats.plain_bytes > 1.05 * stats.bytes_sent else ""
        apart = "" if self._distance is None else f"; consensus distance {self._distance:.3g}"
        return (f"worker {self._first_rank}: {stats.rounds} rounds of gossip ({self._settings.graph}, {self._settings.codec}) in {seconds:.1f} s; sent "
                f"{stats.bytes_sent / 2**20:.4g} MiB{less}; waits: {100 * stats.waited_seconds / seconds:.0f} %{apart}")

    def close(self) -> None:
        """Adds the result of an exchange under way and leaves. It does not average; call `average()` for that."""
        if self._circle is None or self._process != os.getpid():
            return
        self._take_pending()
        if self._first_rank == 0:
            _log.logger.info("%s", self.summary())
        self._leave()

    def _leave(self) -> None:
        circle, self._circle = self._circle, None
        if circle is None or self._process != os.getpid():
            return
        for call in self._calls:
            if not call.is_over(_LEAVE_S):
                circle.group.abort()
                call.await_end()
        self._pending = None
        if self._operation is not None:
            self._operation.free()
            self._operation = None
        self._forget_pair()
        circle.end()

    def __enter__(self) -> Gossip:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is None:
            self.close()
        else:
            self._leave()


class _Call(threading.Thread):
    """A call of the library, in a thread of its own that does not call torch."""

    def __init__(self, call: Callable[[], Any], calls: list[_Call]) -> None:
        super().__init__(name="syncline-gossip", daemon=True)
        self._call = call
        self._value: Any = None
        self._error: Optional[BaseException] = None
        self._ended = threading.Event()  # Thread.join takes a thread for ended once Ctrl-C has interrupted it (before Python 3.13)
        calls[:] = [*(other for other in calls if not other.is_over(0)), self]
        self.start()

    def run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def is_over(self, timeout: float) -> bool:
        """Waits for it for so many seconds at most."""
        return self._ended.wait(timeout)

    def await_end(self) -> None:
        """Though Ctrl-C comes again: until then the library uses what it was given."""
        while self.ident is not None:  # otherwise it has not begun
            with contextlib.suppress(KeyboardInterrupt):
                if self.is_over(_SLICE_S):
                    return

    def result(self) -> Any:
        """Waits for it; raises what it raised."""
        while not self.is_over(_SLICE_S):
            pass
        error, self._error = self._error, None  # its traceback refers to this thread
        if error is not None:
            raise error
        return self._value


_open: weakref.WeakSet[Gossip] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    for gossip in list(_open):
        gossip._leave()


def _check(every: Any, gamma: Any, overlap: Any, measure_every: Any) -> None:
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise InvalidArgument(f"every={every!r}: steps between two exchanges, 1 or more")
    if gamma is not None and (not isinstance(gamma, (int, float)) or not 0 < gamma <= 1):
        raise InvalidArgument(f"gamma={gamma!r}: how far two partners move towards each other, above 0 and at most 1; 0.5 is the mean of both")
    if not isinstance(overlap, bool):
        raise InvalidArgument(f"overlap={overlap!r}: True or False")
    if not isinstance(measure_every, int) or measure_every < 0:
        raise InvalidArgument(f"measure_every={measure_every!r}: rounds between two measurements, 0 for none")
