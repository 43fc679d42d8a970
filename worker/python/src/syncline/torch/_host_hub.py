"""The leader of a host: adds up the gradients of the host's ranks, pushes the mean for all of them, and says when new weights are there.

The session's weights lie in memory that all ranks of the host map, so that one copy from the servers serves them all; each rank's
gradients lie in memory of its own, which the leader reads. One thread listens to the ranks, adds and pushes (`_host_steps.py` says
when); another one waits for weights.
"""
from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, Callable, NamedTuple, Optional

import torch

from syncline import _log
from syncline.errors import AlreadyExists, DataLoss, DeadlineExceeded, Dropped, Error, InvalidArgument, JobRefused, PermissionDenied
from syncline.session import Session, Tensor
from syncline.torch import _host_wire as wire
from syncline.torch._host_door import Waits
from syncline.torch._host_guest import Guest
from syncline.torch._host_place import HostPlace
from syncline.torch._host_requests import Requests
from syncline.torch._host_steps import Given, Steps

_MOST_SAMPLES = 2**32 - 1
_LOOK_AGAIN_S = 0.02
_MOST_AT_ONCE = 64  # messages of one rank, until others are heard
_MOST_UNREAD = 4096  # answers and beats; of weights a rank that takes part has those of two steps at most
_SAY_AGAIN_S = 10.0  # that a process was not heard, which may come as often as it likes
# After these the same connection would be tried at once again.
_FOR_THE_TIME_BEING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LAST_LOSS_S = 1.0  # a session that fails may hold the thread that tells it
# So many failure timeouts a rank may keep the others of its host waiting: fewer than the five after which the coordinator drops the
# host. As long a rank hears nothing of the leader until it gives up.
PATIENCE = 4


class Setup(NamedTuple):
    """What a hub is made of."""

    place: HostPlace
    session: Session
    tensors: Sequence[Tensor]  # of the session
    layout: wire.Layout
    weights: wire.Region
    digest: str  # of what all ranks are to declare alike
    failure_timeout: float
    start_timeout: float


class Hub:
    """Begins to listen; `close` ends it. Errors of the session end all ranks of the host."""

    def __init__(self, address: bytes, setup: Setup) -> None:
        self._of = setup
        self._trained = [number for number, tensor in enumerate(setup.tensors) if not tensor.frozen]
        self._index = {number: index for index, number in enumerate(self._trained)}
        self._steps: Optional[Steps] = None  # once the session has started
        self._guests: dict[int, Guest] = {}  # by descriptor
        self._ranks: dict[int, Guest] = {}  # by rank within the host: who said hello and did not go
        self._sums: dict[int, torch.Tensor] = {}
        self._factors: dict[int, float] = {}
        self._arrivals: Counter[int] = Counter()  # by step: tensors whose weights are there
        self._touched: set[int] = set()  # tensors that may be whole now
        self._regions: dict[int, wire.Region] = {}  # by rank: of its life that is or was a member
        self._requests = Requests(setup.session, setup.tensors, self._post)
        self._everyone = threading.Event()
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._handed: SimpleQueue[Optional[int]] = SimpleQueue()  # tensors whose weights are to come; nothing: the hub ends
        self._waits = Waits()
        self._is_closing = threading.Event()
        self._is_over = False
        self.error: Optional[BaseException] = None  # after which it was over
        self._left_after: Optional[BaseException] = None
        self._began = self._beaten = self._looked = time.monotonic()
        self._says_unheard = self._began  # from when on
        self._listener = self._listen(address)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="syncline-host", daemon=True)
        self._waiter = threading.Thread(target=self._wait_for_weights, name="syncline-host-weights", daemon=True)
        self._thread.start()
        self._waiter.start()

    def _listen(self, address: bytes) -> socket.socket:
        deadline = time.monotonic() + self._of.failure_timeout  # an earlier life may be about to end
        while True:
            try:
                return wire.listen(address)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise AlreadyExists(f"another process is rank {self._of.place.rank_of(0)} of job {self._of.session.job} on this host "
                                        f"already ({error}); end it, or give this run another job or run id") from error
            time.sleep(_LOOK_AGAIN_S)

    def close(self, is_clean: bool, error: Optional[BaseException] = None) -> None:
        """Leaves the job, when the other ranks of the host are gone; later than failure_timeout it does not wait for them.

        Not clean: after `error`, which they hear of.
        """
        self._left_after = error
        try:
            if is_clean:
                self._await_leaving()
        finally:
            self._leave()

    def _await_leaving(self) -> None:
        deadline = time.monotonic() + self._of.failure_timeout
        self._post(self._admit_nobody)
        while self._ranks and not self._is_over and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)

    def _leave(self) -> None:
        if threading.current_thread() is not self._thread:  # as the collector of garbage may run in any
            told = threading.Event()
            self._post(lambda: self._tell_last_loss(told))
            told.wait(_LAST_LOSS_S if self._thread.is_alive() else 0)
        self._is_closing.set()
        self._of.session.close()
        self._handed.put(None)
        self._post(lambda: self._end(self._left()))
        for thread in (self._thread, self._waiter):
            if thread is not threading.current_thread():
                thread.join()

    def _tell_last_loss(self, told: threading.Event) -> None:
        with contextlib.suppress(Error):  # the session may have failed, and be closed for that
            self._requests.tell_loss()
        told.set()

    def _admit_nobody(self) -> None:
        """Who comes now, or is not let in yet, is to find the hub that may come after this one."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        members = self._steps.members if self._steps is not None else []
        for guest in list(self._guests.values()):
            if guest.rank not in members or self._ranks.get(guest.rank) is not guest:
                self._lose(guest, None)

    def _post(self, action: Callable[[], None]) -> None:
        """Has the listening thread do it."""
        self._posted.put(action)
        with contextlib.suppress(OSError):  # it is full, and wakes that thread anyway; or all is over
            self._wake.send(b"!")

    # ---- the thread that waits for weights ----

    def _wait_for_weights(self) -> None:
        try:
            while not self._everyone.wait(_LOOK_AGAIN_S):
                if self._is_closing.is_set():
                    return
            self._of.session.start()
            self._post(self._started)
            # In the order of pushes: those that a backward makes begin with the last layer.
            while (number := self._handed.get()) is not None and not self._is_closing.is_set():
                self._of.session.wait(self._of.tensors[number])
                self._post(lambda number=number: self._arrived(number))  # type: ignore[misc]
        except Exception as error:
            failed = error
            if not self._is_closing.is_set():
                self._post(lambda: self._end(failed))

    # ---- the thread that listens ----

    def _run(self) -> None:
        try:
            while not self._is_over:
                for key, events in self._selector.select(self._of.failure_timeout / 8):
                    if key.fileobj is self._woken:
                        self._woken.recv(4096)
                    elif key.fileobj is self._listener:
                        self._accept()
                    elif (guest := self._guests.get(key.fd)) is not None:
                        self._serve(guest, events)
                while not self._posted.empty() and not self._is_over:
                    self._posted.get()()
                if not self._is_over:
                    self._advance()
                    self._look_at_the_clock()
        except Exception as error:
            self._end(error)
        finally:
            self._listener.close()
            self._selector.close()
            self._wake.close()
            self._woken.close()

    def _left(self) -> Dropped:
        why = "" if self._left_after is None else f" after {type(self._left_after).__name__}: {self._left_after}"
        return Dropped(f"rank {self._of.place.rank_of(0)}, which sends for all ranks of this host, has left the job{why}; start this rank again")

    def _end(self, error: BaseException) -> None:
        """Tells all ranks why."""
        if self._is_closing.is_set() and not self._is_over:
            error = self._left()  # what fails now fails since the session is closed
        self._is_over, self.error = True, self.error or error
        for guest in list(self._guests.values()):
            with contextlib.suppress(OSError):
                guest.link.send(wire.failure(error))
            guest.link.close()
        self._guests.clear()
        self._ranks.clear()
        self._is_closing.set()
        self._handed.put(None)

    def _accept(self) -> None:
        try:
            with wire.no_fork:
                connected, _ = self._listener.accept()
                link = wire.Link(connected)
        except BlockingIOError:  # it has gone again
            return
        except (OSError, PermissionDenied) as error:
            if time.monotonic() >= self._says_unheard:
                self._says_unheard = time.monotonic() + _SAY_AGAIN_S
                _log.logger.warning("a process was not heard: %s", error)
            if isinstance(error, OSError) and error.errno in _FOR_THE_TIME_BEING:
                time.sleep(_LOOK_AGAIN_S)
            return
        connected.setblocking(False)
        guest = Guest(link)
        self._guests[connected.fileno()] = guest
        self._selector.register(connected, selectors.EVENT_READ)

    def _serve(self, guest: Guest, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                guest.flush()
            for _ in range(_MOST_AT_ONCE):  # others have their turn, too
                if guest.link.socket.fileno() < 0:
                    return
                message, descriptors = guest.link.receive()
                if not message:
                    wire.close_all(descriptors)
                    return self._lose(guest, "its process has ended")
                self._take(guest, message, descriptors)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(guest, str(error))
        except Error as error:
            self._refuse(guest, error)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            self._refuse(guest, DataLoss(f"a message of another rank of this host is none of ours: {error!r}"))

    def _take(self, guest: Guest, message: bytes, descriptors: list[int]) -> None:
        try:
            kind, said = wire.parse(message)
            if kind == wire.GIVE:
                self._take_gradient(guest, said)
            elif kind == wire.HELLO and guest.region is None:
                self._greet(guest, said, descriptors)
            elif kind == wire.ASK and guest.region is not None:
                self._requests.take(guest, said, descriptors)
            elif kind == wire.BYE:
                self._lose(guest, None)
            else:
                raise DataLoss("a message that no rank of this host sends")
        finally:
            wire.close_all(descriptors)

    def _greet(self, guest: Guest, said: Any, descriptors: list[int]) -> None:
        rank, place = int(said["local_rank"]), self._of.place
        if said["digest"] != self._of.digest or not descriptors:
            raise JobRefused(f"rank {place.rank_of(rank)} declares other tensors, or has other options, than rank {place.rank_of(0)}, with which "
                             "it is to send as one: all ranks make the same model and the same Optimizer")
        if rank in self._ranks and self._ranks[rank].link.is_gone:
            self._lose(self._ranks[rank], "it comes again")
        if rank in self._ranks or not 0 <= rank < place.local_ranks:
            raise JobRefused(f"process {guest.link.process} says that it is rank {place.rank_of(rank)}, which another one of this host is already")
        guest.region, guest.rank = wire.Region(self._of.layout, descriptors.pop()), rank
        self._ranks[rank] = guest
        guest.send(wire.record(wire.BEAT))  # it was heard
        if self._steps is not None:
            self._steps.ask_to_join(rank)
        elif len(self._ranks) == place.local_ranks:
            self._everyone.set()

    def _started(self) -> None:
        self._steps = Steps(len(self._trained), self._of.session.step)
        for rank in self._ranks:
            self._steps.ask_to_join(rank)

    def _take_gradient(self, guest: Guest, said: wire.GiveMessage) -> None:
        now, given = time.monotonic(), Given(said.samples, said.rate_factor)
        index = self._index.get(said.tensor)
        if not 0 <= given.rate_factor <= wire.LARGEST_FACTOR:
            raise DataLoss(f"a learning rate of {given.rate_factor:g} times its own")
        if self._steps is None or index is None or not self._steps.give(guest.rank, index, said.step, given, now):
            raise DataLoss(f"a gradient of step {said.step} that rank {self._of.place.rank_of(guest.rank)} may not give now")
        self._touched.add(index)

    def _lose(self, guest: Guest, why: Optional[str]) -> None:
        """Goes on without it; no reason: it has left."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.link.socket)
        self._guests = {number: other for number, other in self._guests.items() if other is not guest}
        guest.link.close()
        if guest.rank < 0 or self._ranks.get(guest.rank) is not guest:
            return
        del self._ranks[guest.rank]
        assert guest.region is not None
        guest.region.drop()
        self._requests.forget(guest.rank)
        if self._steps is not None:
            self._steps.remove(guest.rank)
            self._touch_all()
        if why is not None and not self._is_closing.is_set():
            _log.logger.warning("rank %d of this host is gone (%s): %d of %d go on", self._of.place.rank_of(guest.rank), why,
                                len(self._ranks), self._of.place.local_ranks)

    def _refuse(self, guest: Guest, error: Error) -> None:
        with contextlib.suppress(OSError):
            guest.link.send(wire.failure(error))
        self._lose(guest, str(error))

    # ---- steps ----

    def _touch_all(self) -> None:
        """After a change of who is waited for."""
        self._touched.update(range(len(self._trained)))

    def _advance(self) -> None:
        if (steps := self._steps) is None:
            return
        for rank in steps.admit(time.monotonic()):
            guest = self._ranks[rank]
            assert guest.region is not None
            self._regions[rank] = guest.region
            guest.send(wire.record(wire.WELCOME, step=steps.step(0), loss_scale=self._of.session.loss_scale), self._of.weights.descriptor)
            self._touch_all()
        # The session wants all tensors of a step before any of the next; those of an earlier one are whole if a later one is.
        for _, index in sorted((steps.step(index), index) for index in self._touched):
            if steps.is_whole(index):
                self._hand(self._trained[index], steps.hand(index))
                self._handed.put(self._trained[index])
        self._touched.clear()
        self._requests.look(steps.members)

    def _look_at_the_clock(self) -> None:
        now, place = time.monotonic(), self._of.place
        for guest in self._guests.values():
            self._selector.modify(guest.link.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.is_behind else 0))
        if now - self._looked < _LOOK_AGAIN_S:
            return
        self._looked = now
        if now - self._beaten >= self._of.failure_timeout / 4:
            self._beaten = now
            for guest in self._ranks.values():
                if not guest.is_behind:
                    guest.send(wire.record(wire.BEAT))
        self._lose_idlers(now)
        missing = [str(place.rank_of(rank)) for rank in range(place.local_ranks) if rank not in self._ranks]
        if not self._everyone.is_set() and missing:
            self._waits.say(f"rank {', '.join(missing)} of this host")
        if not self._everyone.is_set() and now - self._began > self._of.start_timeout:
            raise DeadlineExceeded(f"of the {place.local_ranks} ranks of this host rank {', '.join(missing)} did not come within "
                                   f"{self._of.start_timeout:g} s: have their processes ended?")
        patience = PATIENCE * self._of.failure_timeout
        for rank in self._steps.late(now, patience) if self._steps is not None else ():
            error = Dropped(f"rank {place.rank_of(rank)} was dropped by the others of its host, which had waited {patience:g} s for its gradients")
            if rank == 0:
                raise error
            self._refuse(self._ranks[rank], error)

    def _lose_idlers(self, now: float) -> None:
        """Whose connections and messages would take more and more memory."""
        for guest in list(self._guests.values()):
            if guest.rank < 0 and now - guest.came > self._of.failure_timeout:
                self._refuse(guest, DataLoss(f"process {guest.link.process} has not said for {self._of.failure_timeout:g} s which rank it is"))
            elif guest.unread > _MOST_UNREAD + 4 * len(self._of.tensors):
                self._lose(guest, f"it leaves {guest.unread} messages unread")

    def _hand(self, number: int, given: list[tuple[int, Given]]) -> None:
        """Pushes the mean of what ranks gave, added up in their order."""
        session, tensor = self._of.session, self._of.tensors[number]
        factor = given[0][1].rate_factor if given else 1.0
        if given and factor != self._factors.get(number, 1.0):
            session.scale_learning_rate(tensor, factor)
            self._factors[number] = factor
        parts = [(rank, one.samples) for rank, one in given if one.samples]
        if not parts:
            return session.skip([tensor])
        total = sum(samples for _, samples in parts)
        if total > _MOST_SAMPLES:
            raise InvalidArgument(f"{tensor.name}: the ranks of this host have {total} samples together, more than {_MOST_SAMPLES}: they only weigh "
                                  "gradients, so let each rank of each host give a thousandth of them, for example")
        session.push_pull(tensor, self._mean(number, parts, total), total)

    def _mean(self, number: int, parts: list[tuple[int, int]], total: int) -> torch.Tensor:
        mean = self._sums.get(number)
        if mean is None:
            mean = self._sums[number] = torch.empty(self._of.tensors[number].memory.shape, dtype=torch.float32)
        first, samples = parts[0]
        mean.copy_(self._gradient(first, number))
        if samples != total:
            mean.mul_(samples / total)  # as servers do: by a power of two, where equal ranks are that many, this rounds nothing
        for rank, samples in parts[1:]:
            mean.add_(self._gradient(rank, number), alpha=samples / total)
        return mean

    def _gradient(self, rank: int, number: int) -> torch.Tensor:
        return self._regions[rank].tensor(number)

    def _arrived(self, number: int) -> None:
        steps = self._steps
        assert steps is not None
        index = self._index[number]
        step = steps.step(index)
        steps.arrive(index, time.monotonic())
        if steps.holds_back:
            self._touch_all()
        self._say(steps, wire.view(number, step))
        self._arrivals[step] += 1
        if self._arrivals[step] == len(self._trained):
            del self._arrivals[step]
            self._say(steps, wire.end(step, self._of.session.loss_scale))

    def _say(self, steps: Steps, message: bytes) -> None:
        for rank in steps.members:
            if rank in self._ranks:
                self._ranks[rank].send(message)
