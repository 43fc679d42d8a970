"""Somebody on the path of TLS connections, who changes what passes: a relay that knows where records begin.

    relay = Relay(target_port, [Plan(UP, "flip", 3), Plan(DOWN, "swap", 5)])
    ... whoever shall be tampered with dials relay.port ...
    relay.await_done(patience)
    relay.close()

Each plan is carried out once, in their order, and each on a connection that nothing was done to yet; all other bytes pass
as they are. A connection that outlives what was done to it is in `survivors`.
"""

import random
import socket
import threading
import time

UP, DOWN = 0, 1  # from whoever dialled, and to it
HEADER = 5  # bytes of a record
HANDSHAKE, SEALED = 0x16, 0x17
OUTLIVES = 64  # records after what was done to it
MOST_RECORDED = 200  # records of a connection


class Plan:
    """What is done to a record of one way: the first one from `record` on (1, 2, 3 …) that is sealed, or the very first."""

    def __init__(self, way, kind, record):
        self.way, self.kind, self.record = way, kind, record

    def __str__(self):
        return f"{self.kind} {('up', 'down')[self.way]} from record {self.record}"


class Connection:
    def __init__(self, dialler, target):
        self.sources = (dialler, target)  # by way
        self.outlets = [target, dialler]
        self.plan = None
        self.is_hit = self.is_closed = False
        self.passed = [0, 0]  # records
        self.since = 0  # of these after it was hit
        self.recorded = ([], [])


class Relay:
    def __init__(self, target, plans=(), seed=9):
        self.target = target
        self.random = random.Random(seed)
        self.lock = threading.RLock()
        self.plans = list(plans)
        self.survivors = []
        self.connections = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def is_done(self):
        """Every plan is carried out, and what was done to connections has ended them, or not."""
        with self.lock:
            return not self.plans and all(c.plan is None or c.is_closed for c in self.connections)

    def left(self):
        with self.lock:
            return f"left to do: {[str(plan) for plan in self.plans]}"

    def await_done(self, patience):
        deadline = time.monotonic() + patience
        while not self.is_done():
            if time.monotonic() > deadline:
                raise AssertionError(self.left())
            time.sleep(0.1)

    def close(self):
        self.listener.close()
        with self.lock:
            for connection in self.connections:
                self._end(connection)

    # ---- Connections ----

    def _accept(self):
        while True:
            try:
                dialler, _ = self.listener.accept()
            except OSError:
                return
            try:
                target = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                dialler.close()
                continue
            connection = Connection(dialler, target)
            with self.lock:
                self.connections.append(connection)
            for way in (UP, DOWN):
                threading.Thread(target=self._pump, args=(connection, way), daemon=True).start()

    def _end(self, connection):
        with self.lock:
            if connection.is_closed:
                return
            connection.is_closed = True
            if connection.plan is not None and not connection.is_hit:
                self.plans.insert(0, connection.plan)  # for another one
            for end in connection.sources:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has gone

    def _pump(self, connection, way):
        try:
            with connection.sources[way].makefile("rb") as source:
                while len(head := source.read(HEADER)) == HEADER:
                    record = head + source.read(int.from_bytes(head[3:], "big"))
                    outlet, passes, goes_on = self._treat(connection, way, record)
                    outlet.sendall(passes)
                    if not goes_on:
                        break
        except OSError:
            pass
        self._end(connection)

    # ---- What is done ----

    def _treat(self, connection, way, record):
        """Where bytes go, which, and whether the connection goes on."""
        with self.lock:
            connection.passed[way] += 1
            if len(connection.recorded[way]) < MOST_RECORDED:
                connection.recorded[way].append(record)
            if connection.is_hit:
                return self._treat_late(connection, way, record)
            if connection.plan is None and self.plans:
                connection.plan = self.plans.pop(0)
            plan = connection.plan
            passes = None
            # Records of other kinds than these only look like TLS 1.2: a peer ignores them.
            can_be_hit = plan is not None and way == plan.way and record[0] in (SEALED, HANDSHAKE)
            if can_be_hit and (plan.record == 1 or (record[0] == SEALED and connection.passed[way] >= plan.record)):
                passes = getattr(self, f"_{plan.kind}")(connection, record)
            connection.is_hit = passes is not None
            goes_on = not connection.is_hit or plan.kind != "half"
            return connection.outlets[way], passes if connection.is_hit else record, goes_on

    def _treat_late(self, connection, way, record):
        plan = connection.plan
        if plan.kind == "swap" and way == plan.way and connection.since == 0:
            record += plan.kept
        connection.since += 1
        if connection.since == OUTLIVES:
            self.survivors.append(str(plan))
        return connection.outlets[way], record, connection.since < OUTLIVES

    def _flip(self, _, record):
        # The head of a handshake's first record is proved by nobody.
        at = self.random.randrange(HEADER if record[0] == HANDSHAKE else 0, len(record))
        return record[:at] + bytes([record[at] ^ 1 << self.random.randrange(8)]) + record[at + 1 :]

    def _cut(self, _, record):
        """Some bytes are missing."""
        at = self.random.randrange(len(record))
        return record[:at] + record[self.random.randrange(at + 1, len(record) + 1) :]

    def _half(self, _, record):
        """The connection ends within it."""
        return record[: self.random.randrange(len(record))]

    def _drop(self, _, record):
        return b""

    def _swap(self, connection, record):
        connection.plan.kept = record
        return b""

    def _repeat(self, _, record):
        return record + record

    def _foreign(self, connection, record):
        """The record that another connection had in this place."""
        way = connection.plan.way
        at = connection.passed[way] - 1
        for other in self.connections:
            if other is not connection and len(other.recorded[way]) > at and other.recorded[way][at][0] == SEALED:
                return other.recorded[way][at]
        return None

    def _cross(self, connection, record):
        """From here on two connections say each other's."""
        way = connection.plan.way
        for other in self.connections:
            if other is connection or other.is_closed or other.is_hit or other.passed[way] < connection.plan.record:
                continue
            if other.plan is not None:
                self.plans.insert(0, other.plan)
            other.plan, other.is_hit = connection.plan, True
            connection.outlets[way], other.outlets[way] = other.outlets[way], connection.outlets[way]
            return record
        return None

    def _replay(self, connection, _):
        """All that an earlier one has said, instead."""
        way = connection.plan.way
        said = [c.recorded[way] for c in self.connections if c.is_closed and len(c.recorded[way]) > 5]
        return b"".join(said[-1]) if said else None

