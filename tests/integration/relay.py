"""A relay on the path of TLS connections that changes their bytes. It knows where records begin.

    relay = Relay(target_port, [Plan(UP, "flip", 3), Plan(DOWN, "swap", 5)])
    ... the client connects to relay.port ...
    relay.await_done(patience)
    relay.close()

Plans are carried out in order, each once, and each on a connection that was not changed yet. All other bytes pass
unchanged. `survivors` has the plans whose connections survived them.
"""

import random
import socket
import threading
import time

UP, DOWN = 0, 1  # from the client, and to the client
HEADER = 5  # bytes of a record
HANDSHAKE, SEALED = 0x16, 0x17
OUTLIVES = 64  # number of records after which a changed connection has survived
MOST_RECORDED = 200  # largest number of records that are kept of a connection


class Plan:
    """A change of one record in one direction: the first sealed one from number `record` on, or record 1."""

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
        """Whether every plan was carried out, and its connection has ended or survived."""
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
                self.plans.insert(0, connection.plan)  # another connection gets it
            for end in connection.sources:
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the connection is closed

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

    # ---- Changes ----

    def _treat(self, connection, way, record):
        """Returns the destination, the bytes to send, and whether the connection continues."""
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
            # Records of other kinds only imitate TLS 1.2, and peers ignore them.
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
        # Nothing authenticates the head of a handshake's first record.
        at = self.random.randrange(HEADER if record[0] == HANDSHAKE else 0, len(record))
        return record[:at] + bytes([record[at] ^ 1 << self.random.randrange(8)]) + record[at + 1 :]

    def _cut(self, _, record):
        """Removes some bytes."""
        at = self.random.randrange(len(record))
        return record[:at] + record[self.random.randrange(at + 1, len(record) + 1) :]

    def _half(self, _, record):
        """Ends the connection within the record."""
        return record[: self.random.randrange(len(record))]

    def _drop(self, _, record):
        return b""

    def _swap(self, connection, record):
        connection.plan.kept = record
        return b""

    def _repeat(self, _, record):
        return record + record

    def _foreign(self, connection, record):
        """Sends the record that another connection had in this place."""
        way = connection.plan.way
        at = connection.passed[way] - 1
        for other in self.connections:
            if other is not connection and len(other.recorded[way]) > at and other.recorded[way][at][0] == SEALED:
                return other.recorded[way][at]
        return None

    def _cross(self, connection, record):
        """Exchanges the bytes of two connections from here on."""
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
        """Sends everything that an earlier connection has sent, instead."""
        way = connection.plan.way
        said = [c.recorded[way] for c in self.connections if c.is_closed and len(c.recorded[way]) > 5]
        return b"".join(said[-1]) if said else None

