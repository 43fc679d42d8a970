#!/usr/bin/env python3
"""A seeded storm of faults over one job of real processes: nothing is lost, and nothing counts twice.

    tests/chaos/storm.py --bin build/release [--seed N] [--seconds S | --minutes M] [--no-namespaces] [--list]

A seed is a schedule of faults. The job must continue after each of them. In the end the workers' weights equal a replay
of the journals, bit for bit. They are also a ledger in which every contribution that a worker saw made counts once
(ledger.py). With --minutes there is one storm after the other, each with the next seed. Faults of the network need root
and iproute2; without them, the storm says which faults it omits.
"""

import argparse
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "integration")]
from checkpoints_test import read_safetensors
from ledger import Ledger
from network import hosts
from storm_cluster import FAILURE_TIMEOUT, PATIENCE, RANKS, SLOTS, STATE_UNUSABLE, Cluster, StormError

TOLERATED = 0.4 * FAILURE_TIMEOUT  # no process ends
TOO_LONG = 0.85 * FAILURE_TIMEOUT  # the lease of 0.6 F has expired
SERVERS, WORKERS = 2, 3
SKIPPED = 77
ENDS_THE_JOURNAL = ("full", "write-fails", "stuck")
STEPS_BETWEEN = 3  # steps that all workers must make after each fault

ON_ANY_MACHINE = (
    "worker killed", "worker stopped", "worker stopped for too long", "server killed", "server stopped",
    "server stopped for too long", "server without power", "servers without power", "server and worker killed",
    "coordinator killed", "coordinator stopped", "server and coordinator killed", "all without power", "disk full",
    "disk write-fails", "disk sync-fails", "disk short", "disk slow, then without power",
    "disk stuck",
)  # fmt: skip
OF_THE_NETWORK = (
    "control cable cut", "data cable cut", "control cable of a worker cut for too long",
    "control cable of a server cut for too long", "data cable slow",
)  # fmt: skip


class Event(NamedTuple):
    kind: str
    server: str
    worker: str
    host: str  # any host
    direction: str
    seconds: float
    pause: float  # seconds before the event
    seed: int  # determines what a power cut leaves

    def __str__(self):
        return f"{self.kind}: {self.server}, {self.worker}, {self.host} {self.direction}, {self.seconds:.2f} s"


def schedule(seed, has_hosts, count=400):
    """Returns `count` events: all kinds in a random order, then all in another order, and so on."""
    rng = random.Random(seed)
    servers = [f"server{i}" for i in range(SERVERS)]
    workers = [f"worker{i}" for i in range(WORKERS)]
    events = []
    while len(events) < count:
        kinds = [*ON_ANY_MACHINE, *OF_THE_NETWORK]
        rng.shuffle(kinds)
        for kind in kinds:
            event = Event(kind, rng.choice(servers), rng.choice(workers), rng.choice(["coordinator", *servers, *workers]),
                          rng.choice(("both", "out", "in")), rng.uniform(0.2, 1.0), rng.uniform(0.0, 0.5),
                          rng.randrange(2**32))  # fmt: skip
            if has_hosts or kind in ON_ANY_MACHINE:
                events.append(event)
    return events[:count]


class Storm:
    def __init__(self, cluster):
        self.cluster = cluster
        self.lost_bytes = 0  # bytes lost by power cuts

    def strike(self, event):
        """Carries out the event. Returns when it is over and the job continues."""
        time.sleep(event.pause)
        words = event.kind.split()
        if words[0] == "disk":
            self._disk(event, words[1].rstrip(","))
        elif "cut" in words or words[-1] == "slow":
            self._cable(event)
        elif words[1] == "stopped" or words[-2:] == ["too", "long"]:
            target = {"worker": event.worker, "server": event.server}.get(words[0], "coordinator")
            self._stop(target, TOO_LONG if words[-1] == "long" else TOLERATED * event.seconds)
        elif event.kind == "all without power":
            self._all(event)
        else:
            self._kill(event, words)
        self.cluster.await_steps(STEPS_BETWEEN)

    def _kill(self, event, words):
        names = [name for word, name in (("server", event.server), ("worker", event.worker),
                                         ("coordinator", "coordinator")) if word in words]  # fmt: skip
        names += self.cluster.servers if "servers" in words else []
        self.cluster.kill(names)
        if "power" in words:
            self._cut_power(names, event)
        time.sleep(event.seconds)
        self._start(names)

    def _start(self, names):
        for name in sorted(names, key=self.cluster.names.index):  # the coordinator first, because others need its address
            self.cluster.start(name)

    def _cut_power(self, names, event):
        for name in names:
            self.lost_bytes += self.cluster.disks[name].cut_power(random.Random(event.seed))

    def _stop(self, name, seconds):
        self.cluster.signal(name, signal.SIGSTOP)
        try:
            self.cluster.await_that(f"{name} is stopped", lambda: self.cluster.state(name) == "T")
            time.sleep(seconds)
        finally:
            self.cluster.signal(name, signal.SIGCONT)

    def _all(self, event):
        """Checks that the job equals its journals, and has every step that a worker had seen."""
        cluster = self.cluster
        cluster.kill(cluster.names)
        furthest = cluster.furthest()
        self._cut_power(cluster.servers, event)
        cluster.replay("--checkpoint-out", cluster.checkpoints)
        before = {name: cluster.log(name).count("joined step=") for name in cluster.workers}
        cluster.start_all()
        for name in cluster.workers:
            cluster.await_times(name, "joined step=", before[name] + 1)
            joined = int(cluster.log(name).rsplit("joined step=", 1)[1].split()[0])
            if joined <= furthest:
                raise StormError(f"all died after step {furthest}, and {name} goes on at step {joined}")

    def _disk(self, event, order):
        cluster, server = self.cluster, event.server
        disk = cluster.disks[server]
        if order == "sync-fails":
            return self._lose_sync(event, disk)
        faults = disk.faults()
        ended = cluster.log(server).count("the journal ends here")
        whole = cluster.log(server).count("the job is durable again")
        with disk.failing(order):
            disk.await_fault(faults, PATIENCE)
            if order in ENDS_THE_JOURNAL:
                cluster.await_times(server, "the journal ends here", ended + 1)
            elif order == "short":
                cluster.await_steps(1)
            else:
                if order == "lies":
                    cluster.await_steps(20)
                time.sleep(event.seconds)
                cluster.kill([server])
                self._cut_power([server], event)
        if order in ENDS_THE_JOURNAL:
            # Before that, the death of this server would end the job.
            cluster.await_times(server, "the job is durable again", whole + 1)
        elif order != "short":
            cluster.start(server)

    def _lose_sync(self, event, disk):
        """The server ends itself, because it cannot know what the disk dropped. The next one has only synced data."""
        cluster, server = self.cluster, event.server
        cluster.down.add(server)
        with disk.failing("sync-fails"):
            cluster.await_that(f"{server} ends", lambda: cluster.processes[server].poll() is not None)
        code = cluster.processes[server].returncode
        if code != STATE_UNUSABLE:
            raise StormError(f"a sync failed, and {server} ended with {code}\n{cluster.ends_of_logs()}")
        self._cut_power([server], event)
        time.sleep(event.seconds)
        cluster.start(server)

    def _cable(self, event):
        net = self.cluster.net
        network = event.kind.split()[0]
        dropped, delayed = net.dropped, net.delayed
        if event.kind.endswith("slow"):
            with net.slowed(event.host if event.host != "coordinator" else event.server, network, "2mbit"):
                self.cluster.await_steps(STEPS_BETWEEN)
            if net.delayed == delayed:
                raise StormError("nothing was slow")
            return
        host, seconds = event.host, TOLERATED
        if event.kind.endswith("too long"):
            host, seconds = (event.worker if "worker" in event.kind else event.server), TOO_LONG
        elif network == "data" and host == "coordinator":
            host = event.server  # this kind has no host
        with net.cut(host, network, event.direction):
            time.sleep(seconds)
        if net.dropped == dropped:
            raise StormError(f"nothing was sent over the {network} cable of {host} while it was cut")

    def finish(self):
        """Ends the job, and checks its weights. Returns (steps, participation)."""
        cluster = self.cluster
        unfinished = cluster.folder / "end.new"
        unfinished.write_text(f"{cluster.furthest() + 25}\n")
        unfinished.rename(cluster.end)
        cluster.await_that("all workers end", lambda: all(cluster.processes[one].poll() is not None for one in cluster.workers))
        cluster.look_after()
        ended = [name for name in cluster.workers if cluster.processes[name].returncode == 0]
        weights = {(cluster.folder / f"{name}.weights").read_bytes() for name in ended}
        if len(weights) != 1:
            raise StormError(f"the workers end with {len(weights)} different weights\n{cluster.ends_of_logs()}")
        end = weights.pop()
        for name in ["coordinator", *cluster.servers]:
            cluster.down.add(name)
            cluster.signal(name, signal.SIGTERM)
        for name in cluster.servers:
            cluster.processes[name].wait(PATIENCE)
        out = cluster.folder / "replayed.safetensors"
        cluster.replay("--out", out)
        tensors = read_safetensors(out)
        if b"".join(tensors[name][2] for name in sorted(tensors)) != end:
            raise StormError("the replay of the journals gives other weights than the workers ended with")
        steps = int(cluster.end.read_text())
        ledger = Ledger(end, RANKS, SLOTS)
        if errors := ledger.errors(steps, cluster.seen()):
            raise StormError("\n".join([f"{len(errors)} errors in the ledger:", *errors[:20]]))
        return steps, ledger.participation(steps) * RANKS / WORKERS


def run(binaries, events, has_hosts, seconds):
    """Runs a storm of as many of these events as there is time for. Returns a description."""
    with tempfile.TemporaryDirectory() as folder, Cluster(binaries, folder, has_hosts, SERVERS, WORKERS) as cluster:
        storm = Storm(cluster)
        cluster.await_steps(STEPS_BETWEEN)
        begin, struck = time.monotonic(), []
        for event in events:
            if time.monotonic() - begin > seconds or cluster.furthest() > SLOTS - 500:
                break
            print(f"{time.monotonic() - begin:6.1f} s, step {cluster.furthest()}: {event}", flush=True)
            try:
                storm.strike(event)
            except StormError as error:
                raise StormError(f"after {event}: {error}") from None
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                raise StormError(f"after {event}: {error!r}\n{cluster.ends_of_logs()}") from None
            struck.append(event.kind)
        steps, participation = storm.finish()
        return (f"{len(struck)} faults of {len(set(struck))} kinds, {steps} steps, {storm.lost_bytes} bytes lost to power "
                f"cuts, {cluster.restarts} workers dropped, {100 * participation:.1f} % of all contributions made; "
                "none lost, none doubled")  # fmt: skip


def why_no_hosts():
    """Returns why there can be no network faults here; None: there can."""
    prefix = f"probe{os.getpid()}"
    if (reason := hosts.missing(prefix)) is not None:
        return reason
    try:
        hosts.delete_those_of_the_dead("storm")
        with hosts.Hosts(prefix, ["a"]) as net:
            with net.cut("a", "data"):
                pass
            with net.slowed("a", "data", "2mbit"):
                return None
    except RuntimeError as error:
        return f"no network namespaces here: {error}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default="build/release")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=80.0, help="of faults in a storm; the last one is waited for")
    parser.add_argument("--minutes", type=float, default=0.0, help="storms, one after the other, until these are over")
    parser.add_argument("--no-namespaces", action="store_true", help="all on loopback, and no faults of the network")
    parser.add_argument("--namespaces-only", action="store_true", help=f"or exit code {SKIPPED}")
    parser.add_argument("--list", action="store_true", help="only say what the seed's faults are")
    options = parser.parse_args()
    missing = "not wanted" if options.no_namespaces else why_no_hosts()
    if missing and options.namespaces_only:
        print(f"skipped: {missing}")
        return SKIPPED
    if missing:
        print(f"left out: {'; '.join(OF_THE_NETWORK)}: {missing}")
    begin, seed = time.monotonic(), options.seed
    while True:
        events = schedule(seed, not missing)
        if options.list:
            print("\n".join(str(event) for event in events[:40]))
            return 0
        again = f"--seed {seed}{' --no-namespaces' if missing else ''} --seconds {options.seconds:g}"
        print(f"storm: {again}", flush=True)
        try:
            print(f"storm: {run(options.bin, events, not missing, options.seconds)}", flush=True)
        except StormError as error:
            print(f"storm: FAILED, the same again: tests/chaos/storm.py {again}\n{error}")
            return 1
        seed += 1
        if time.monotonic() - begin > 60 * options.minutes:
            return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
