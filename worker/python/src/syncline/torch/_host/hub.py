"""The leader of a host: adds up the gradients of the host's ranks, pushes the mean for all of them, and says when new weights are there.

The session's weights lie in memory that all ranks of the host map, so one copy from the servers serves them all. Each rank writes its
gradients to memory of its own, which the leader reads. One thread listens to the ranks, adds up gradients and pushes the means;
`_host/steps.py` decides when. A second thread waits for new weights.
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
from syncline.torch._host import wire
from syncline.torch._host.leader_connector import WaitLog
from syncline.torch._host.place import HostPlace
from syncline.torch._host.rank_connection import RankConnection
from syncline.torch._host.requests import Requests
from syncline.torch._host.steps import Given, Steps

_MOST_SAMPLES = 2**32 - 1
_LOOK_AGAIN_S = 0.02
_MOST_AT_ONCE = 64  # messages read from one rank before the others have their turn
# Answers and beats that a rank may leave unread. Messages about weights come on top: those of two steps at most.
_MOST_UNREAD = 4096
_SAY_AGAIN_S = 10.0  # between log lines about refused processes, which may connect at any rate
# After these errors accept() would fail on the same connection again at once.
_FOR_THE_TIME_BEING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LAST_LOSS_S = 1.0  # close() waits no longer for the last loss: a failing session may block the thread that reports it
# Number of failure timeouts that a rank may keep the others of its host waiting before it is dropped. It is less than five, after which
# the coordinator drops the whole host. A rank gives up after the same time without a message from the leader.
PATIENCE = 4


class Setup(NamedTuple):
    """The arguments of a Hub."""

    place: HostPlace
    session: Session
    tensors: Sequence[Tensor]  # as declared to `session`
    layout: wire.Layout
    weights: wire.Region
    digest: str  # hash of the tensors and options that must be the same on all ranks
    failure_timeout: float
    start_timeout: float


class Hub:
    """Leads the ranks of one host. The constructor starts to listen; `close` ends that.

    An error of the session ends all ranks of the host. `close` may be called from any thread; all else runs on the hub's two threads.
    """

    def __init__(self, address: bytes, setup: Setup) -> None:
        self._of = setup
        self._trained = [number for number, tensor in enumerate(setup.tensors) if not tensor.frozen]
        self._index = {number: index for index, number in enumerate(self._trained)}
        self._steps: Optional[Steps] = None  # None until the session has started
        self._connections: dict[int, RankConnection] = {}  # by descriptor
        self._ranks: dict[int, RankConnection] = {}  # by rank within the host: those that said HELLO and have not left
        self._sums: dict[int, torch.Tensor] = {}
        self._factors: dict[int, float] = {}
        self._arrivals: Counter[int] = Counter()  # by step: number of tensors whose new weights have arrived
        self._touched: set[int] = set()  # indices of trained tensors whose gradients may be complete now
        self._regions: dict[int, wire.Region] = {}  # by rank: gradients of the last connection that became a member
        self._requests = Requests(setup.session, setup.tensors, self._post)
        self._everyone = threading.Event()
        self._posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._handed: SimpleQueue[Optional[int]] = SimpleQueue()  # tensors whose weights to wait for; None: the hub ends
        self._waits = WaitLog()
        self._is_closing = threading.Event()
        self._is_over = False
        self.error: Optional[BaseException] = None  # the error that ended the hub
        self._left_after: Optional[BaseException] = None
        self._began = self._beaten = self._looked = time.monotonic()
        self._says_unheard = self._began  # earliest time of the next log line about a refused process
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
        deadline = time.monotonic() + self._of.failure_timeout  # an earlier process of this rank may be about to exit
        while True:
            try:
                return wire.listen(address)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise AlreadyExists(f"another process is rank {self._of.place.rank_of(0)} of job {self._of.session.job} on this host "
                                        f"already ({error}); end it, or give this run another job or run id") from error
            time.sleep(_LOOK_AGAIN_S)

    def close(self, is_clean: bool, error: Optional[BaseException] = None) -> None:
        """Leaves the job once the other ranks of the host have left. Waits failure_timeout for them at most.

        If `is_clean` is False it does not wait: this rank failed with `error`, and the others are told.
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
        if threading.current_thread() is not self._thread:  # the garbage collector may call this on any thread
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
        with contextlib.suppress(Error):  # the session may have failed already
            self._requests.tell_loss()
        told.set()

    def _admit_nobody(self) -> None:
        """Stops listening and disconnects ranks that are not members, so that they find the hub that may follow this one."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        members = self._steps.members if self._steps is not None else []
        for connection in list(self._connections.values()):
            if connection.rank not in members or self._ranks.get(connection.rank) is not connection:
                self._lose(connection, None)

    def _post(self, action: Callable[[], None]) -> None:
        """Runs `action` on the listening thread. Safe to call from any thread."""
        self._posted.put(action)
        with contextlib.suppress(OSError):  # a full socket wakes that thread anyway; a closed one means that the hub has ended
            self._wake.send(b"!")

    # ---- the thread that waits for weights ----

    def _wait_for_weights(self) -> None:
        try:
            while not self._everyone.wait(_LOOK_AGAIN_S):
                if self._is_closing.is_set():
                    return
            self._of.session.start()
            self._post(self._started)
            # Tensors come in the order of their pushes; those of a backward begin with the last layer.
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
                    elif (connection := self._connections.get(key.fd)) is not None:
                        self._serve(connection, events)
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
        """Ends the hub and tells all ranks why."""
        if self._is_closing.is_set() and not self._is_over:
            error = self._left()  # a failure now is only a consequence of closing the session
        self._is_over, self.error = True, self.error or error
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.link.send(wire.failure(error))
            connection.link.close()
        self._connections.clear()
        self._ranks.clear()
        self._is_closing.set()
        self._handed.put(None)

    def _accept(self) -> None:
        try:
            with wire.no_fork:
                connected, _ = self._listener.accept()
                link = wire.Link(connected)
        except BlockingIOError:  # it has disconnected already
            return
        except (OSError, PermissionDenied) as error:
            if time.monotonic() >= self._says_unheard:
                self._says_unheard = time.monotonic() + _SAY_AGAIN_S
                _log.logger.warning("could not accept a process: %s", error)
            if isinstance(error, OSError) and error.errno in _FOR_THE_TIME_BEING:
                time.sleep(_LOOK_AGAIN_S)
            return
        connected.setblocking(False)
        connection = RankConnection(link)
        self._connections[connected.fileno()] = connection
        self._selector.register(connected, selectors.EVENT_READ)

    def _serve(self, connection: RankConnection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                connection.flush()
            for _ in range(_MOST_AT_ONCE):  # then the other ranks have their turn
                if connection.link.socket.fileno() < 0:
                    return
                message, descriptors = connection.link.receive()
                if not message:
                    wire.close_all(descriptors)
                    return self._lose(connection, "its process has ended")
                self._take(connection, message, descriptors)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(connection, str(error))
        except Error as error:
            self._refuse(connection, error)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            self._refuse(connection, DataLoss(f"another rank of this host sent an invalid message: {error!r}"))

    def _take(self, connection: RankConnection, message: bytes, descriptors: list[int]) -> None:
        try:
            kind, said = wire.parse(message)
            if kind == wire.GIVE:
                self._take_gradient(connection, said)
            elif kind == wire.HELLO and connection.region is None:
                self._greet(connection, said, descriptors)
            elif kind == wire.ASK and connection.region is not None:
                self._requests.take(connection, said, descriptors)
            elif kind == wire.BYE:
                self._lose(connection, None)
            else:
                raise DataLoss("another rank of this host sent a message of an unknown kind")
        finally:
            wire.close_all(descriptors)

    def _greet(self, connection: RankConnection, said: Any, descriptors: list[int]) -> None:
        rank, place = int(said["local_rank"]), self._of.place
        if said["digest"] != self._of.digest or not descriptors:
            raise JobRefused(f"rank {place.rank_of(rank)} declares different tensors or options from rank "
                             f"{place.rank_of(0)}, which sends for it: all ranks must make the same model and "
                             "the same Optimizer")
        if rank in self._ranks and self._ranks[rank].link.is_gone:
            self._lose(self._ranks[rank], "it connected again")
        if rank in self._ranks or not 0 <= rank < place.local_ranks:
            raise JobRefused(f"process {connection.link.process} claims to be rank {place.rank_of(rank)}, which "
                             "another process of this host is already")
        connection.region, connection.rank = wire.Region(self._of.layout, descriptors.pop()), rank
        self._ranks[rank] = connection
        connection.send(wire.record(wire.BEAT))  # tells the rank that it was heard
        if self._steps is not None:
            self._steps.ask_to_join(rank)
        elif len(self._ranks) == place.local_ranks:
            self._everyone.set()

    def _started(self) -> None:
        self._steps = Steps(len(self._trained), self._of.session.step)
        for rank in self._ranks:
            self._steps.ask_to_join(rank)

    def _take_gradient(self, connection: RankConnection, said: wire.GiveMessage) -> None:
        now, given = time.monotonic(), Given(said.samples, said.rate_factor)
        index = self._index.get(said.tensor)
        if not 0 <= given.rate_factor <= wire.LARGEST_FACTOR:
            raise DataLoss(f"a learning rate of {given.rate_factor:g} times its own")
        if self._steps is None or index is None or not self._steps.give(connection.rank, index, said.step, given, now):
            raise DataLoss(f"a gradient of step {said.step} that rank {self._of.place.rank_of(connection.rank)} may not give now")
        self._touched.add(index)

    def _lose(self, connection: RankConnection, why: Optional[str]) -> None:
        """Goes on without this rank. `why` is None if it left in the regular way."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.link.socket)
        self._connections = {number: other for number, other in self._connections.items() if other is not connection}
        connection.link.close()
        if connection.rank < 0 or self._ranks.get(connection.rank) is not connection:
            return
        del self._ranks[connection.rank]
        assert connection.region is not None
        connection.region.drop()
        self._requests.forget(connection.rank)
        if self._steps is not None:
            self._steps.remove(connection.rank)
            self._touch_all()
        if why is not None and not self._is_closing.is_set():
            _log.logger.warning("rank %d of this host is gone (%s): %d of %d go on", self._of.place.rank_of(connection.rank), why,
                                len(self._ranks), self._of.place.local_ranks)

    def _refuse(self, connection: RankConnection, error: Error) -> None:
        with contextlib.suppress(OSError):
            connection.link.send(wire.failure(error))
        self._lose(connection, str(error))

    # ---- steps ----

    def _touch_all(self) -> None:
        """Has every tensor checked again, after a change of the members."""
        self._touched.update(range(len(self._trained)))

    def _advance(self) -> None:
        if (steps := self._steps) is None:
            return
        for rank in steps.admit(time.monotonic()):
            connection = self._ranks[rank]
            assert connection.region is not None
            self._regions[rank] = connection.region
            welcome = wire.record(wire.WELCOME, step=steps.step(0), loss_scale=self._of.session.loss_scale)
            connection.send(welcome, self._of.weights.descriptor)
            self._touch_all()
        # The session takes all tensors of a step before any of the next. If a tensor of a later step is whole, all of the earlier are.
        for _, index in sorted((steps.step(index), index) for index in self._touched):
            if steps.is_whole(index):
                self._hand(self._trained[index], steps.hand(index))
                self._handed.put(self._trained[index])
        self._touched.clear()
        self._requests.look(steps.members)

    def _look_at_the_clock(self) -> None:
        now, place = time.monotonic(), self._of.place
        for connection in self._connections.values():
            self._selector.modify(connection.link.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.is_behind else 0))
        if now - self._looked < _LOOK_AGAIN_S:
            return
        self._looked = now
        if now - self._beaten >= self._of.failure_timeout / 4:
            self._beaten = now
            for connection in self._ranks.values():
                if not connection.is_behind:
                    connection.send(wire.record(wire.BEAT))
        self._lose_idlers(now)
        missing = [str(place.rank_of(rank)) for rank in range(place.local_ranks) if rank not in self._ranks]
        if not self._everyone.is_set() and missing:
            self._waits.say(f"rank {', '.join(missing)} of this host")
        if not self._everyone.is_set() and now - self._began > self._of.start_timeout:
            raise DeadlineExceeded(f"of the {place.local_ranks} ranks of this host rank {', '.join(missing)} did "
                                   f"not arrive within {self._of.start_timeout:g} s: have their processes ended?")
        patience = PATIENCE * self._of.failure_timeout
        for rank in self._steps.late(now, patience) if self._steps is not None else ():
            error = Dropped(f"rank {place.rank_of(rank)} was dropped by the other ranks of its host, which had "
                            f"waited {patience:g} s for its gradients")
            if rank == 0:
                raise error
            self._refuse(self._ranks[rank], error)

    def _lose_idlers(self, now: float) -> None:
        """Drops connections that never say HELLO or do not read their messages: both would take more and more memory."""
        for connection in list(self._connections.values()):
            if connection.rank < 0 and now - connection.came > self._of.failure_timeout:
                self._refuse(connection, DataLoss(f"process {connection.link.process} has not said for "
                                                  f"{self._of.failure_timeout:g} s which rank it is"))
            elif connection.unread > _MOST_UNREAD + 4 * len(self._of.tensors):
                self._lose(connection, f"it leaves {connection.unread} messages unread")

    def _hand(self, number: int, given: list[tuple[int, Given]]) -> None:
        """Pushes the mean of the ranks' gradients, weighted by samples and added up in the order of ranks; skips if there are none."""
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
            raise InvalidArgument(f"{tensor.name}: the ranks of this host have {total} samples together, more "
                                  f"than {_MOST_SAMPLES}: the numbers only weight gradients, so let each rank of "
                                  "each host pass a thousandth of its number, for example")
        session.push_pull(tensor, self._mean(number, parts, total), total)

    def _mean(self, number: int, parts: list[tuple[int, int]], total: int) -> torch.Tensor:
        mean = self._sums.get(number)
        if mean is None:
            mean = self._sums[number] = torch.empty(self._of.tensors[number].memory.shape, dtype=torch.float32)
        first, samples = parts[0]
        mean.copy_(self._gradient(first, number))
        if samples != total:
            mean.mul_(samples / total)  # as servers do; exact if the ranks are equal and their number is a power of two
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
