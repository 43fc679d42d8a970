#!/usr/bin/env python3
"""Measures on slow links the bytes that Syncline sends and the time of a step, relative to the necessary ones.

    sudo python3 tests/bench/slow_links.py --bin build/release

There are 2 workers and 1 or 2 servers, each a network namespace with one cable; `tc tbf` limits both ends of each cable.
The model is one tensor, BF16 both ways, and all workers begin with the same values. The necessary bytes of each worker are
its contribution and a view for each step, and the first values once, in FP32. Each byte is counted once, at the sender,
with the headers of Ethernet, IP, TCP and TLS. The ages of all heartbeats are read from the coordinator all the time.

Two more sets run only by name. In both a third worker joins and gets the current weights, and after its first step another
worker is killed. The necessary time of a step then depends on more than bytes (`needed_seconds`). `--only restless`: the
cases above. `--only large` (at most an hour for each number of servers): 50 million parameters, 1 bit both ways, 10 Mbit/s.
"""

import argparse
import json
import pathlib
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from network import heartbeats, hosts

PREFIX = "slowlinks"
WORKERS = 2
CONTROL_PORT = 7070
LOOK_EVERY_SECONDS = 0.02

# Goals for bytes and for the time of a step. Heartbeats must not be older than a quarter of the failure timeout.
MOST_BYTES = 1.1
MOST_TIME = 1.15
FAILURE_TIMEOUT_SECONDS = 10
LATEST_HEARTBEAT = FAILURE_TIMEOUT_SECONDS / 4

# A full Ethernet frame has 1,514 bytes and carries 1,448 of TCP's data: IP and TCP with time stamps take 52, Ethernet 14.
FRAME_BYTES_PER_BYTE = 1514 / 1448
MBITS = {"10mbit": 10, "100mbit": 100, "1gbit": 1000}
# Bytes per value, with the headers of its frames (docs/compression.md).
VALUE_BYTES = {"bf16": 2.0, "onebit:vectors=1": 4 / 31.3}
# Bytes per value of the weights that a joining worker gets: the same as in views, unless these are deltas.
FIRST_VALUE_BYTES = {"bf16": 2.0, "onebit:vectors=1": 4.0}


@dataclass(frozen=True)
class Case:
    rate: str
    servers: int
    steps: int
    name: str = ""  # empty: the case runs by default
    elements: int = 4_000_000
    codec: str = "bf16"
    is_restless: bool = False  # a third worker joins, and one is killed
    timeout_seconds: int = 900


CASES = [
    Case("10mbit", 1, 3), Case("10mbit", 2, 3), Case("100mbit", 1, 10), Case("100mbit", 2, 10),
    Case("1gbit", 1, 30), Case("1gbit", 2, 30),
    *(Case("10mbit", servers, 40, name="large", elements=50_000_000, codec="onebit:vectors=1", is_restless=True, timeout_seconds=3600)
      for servers in (1, 2)),
    *(Case(rate, servers, steps, name="restless", is_restless=True)
      for rate, steps in (("10mbit", 20), ("100mbit", 100), ("1gbit", 400)) for servers in (1, 2)),
]  # fmt: skip


class Failed(Exception):
    pass


def start_services(options, net, folder, servers, log):
    control = f"{net.address('coordinator')}:{CONTROL_PORT}"
    common = ["--insecure", "--failure-timeout", f"{FAILURE_TIMEOUT_SECONDS}s"]
    serve = [options.bin / "syncline", "serve", "--role"]
    ready = folder / "coordinator.log"
    with ready.open("w") as out:
        flags = ["--listen", control, "--state-dir", folder / "state", "--servers", servers]
        admin = ["--admin-listen", f"{net.address('coordinator')}:7071"]
        process = net.start("coordinator", [*serve, "coordinator", *flags, *admin, *common], out)
    deadline = time.monotonic() + 20
    while "syncline: ready" not in ready.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"the coordinator does not start:\n{ready.read_text()[-1000:]}")
        time.sleep(0.05)
    for server in range(servers):
        name = f"server{server}"
        flags = ["--coordinator", control, "--listen", f"{net.address(name)}:{CONTROL_PORT}", "--engine-threads", 1]
        net.start(name, [*serve, "server", *flags, "--admin-listen", "127.0.0.1:0", *common], log)
    return control


class Workers:
    """The workers of one case, by rank."""

    def __init__(self, options, net, folder, control):
        self.options, self.net, self.folder, self.control = options, net, folder, control
        self.processes, self.logs = [], []
        self.killed = None  # rank of the killed worker

    def start(self, case):
        rank = len(self.processes)
        command = [self.options.bin / "steps_worker", "--elements", case.elements, "--steps", case.steps, "--step-ms", 0]
        command += ["--optimizer", "sgd", "--same-weights", "--same-gradient"]
        command += ["--codec", case.codec, "--publish-codec", case.codec]
        self.logs.append(self.folder / f"worker{rank}.log")
        environment = {
            "SYNCLINE_COORDINATOR": self.control, "SYNCLINE_JOB": "slow-links", "SYNCLINE_RUN_ID": "1",
            "SYNCLINE_FAILURE_TIMEOUT": f"{FAILURE_TIMEOUT_SECONDS}s",
            "RANK": str(rank), "WORLD_SIZE": str(WORKERS), "LOCAL_RANK": "0",
        }  # fmt: skip
        with self.logs[-1].open("w") as out:
            self.processes.append(self.net.start(f"worker{rank}", command, out, environment))

    def are_running(self):
        return any(process.poll() is None for process in self.processes)

    def steps_of(self, rank):
        """Returns the number of steps of this rank; -1 before it has joined."""
        return len(re.findall(r"^(?:joined|step) ", self.logs[rank].read_text(), re.MULTILINE)) - 1

    def kill(self, rank):
        self.killed = rank
        self.processes[rank].send_signal(signal.SIGKILL)

    def failed(self):
        return any(process.poll() != 0 for rank, process in enumerate(self.processes) if rank != self.killed)


def disturb(workers, case):
    """Adds a third worker once the job steps, and kills the second one once the third steps."""
    if len(workers.processes) == WORKERS and workers.steps_of(0) >= 1:
        workers.start(case)
    elif workers.killed is None and len(workers.processes) > WORKERS and workers.steps_of(WORKERS) >= 1:
        workers.kill(WORKERS - 1)


def watch(workers, case):
    """Returns the seconds after which rank 0 had joined, and had made each step."""
    began = time.monotonic()
    seen = []
    while workers.are_running():
        if time.monotonic() - began > case.timeout_seconds:
            raise Failed(f"took longer than {case.timeout_seconds} s; rank 0 made {max(0, len(seen) - 1)} steps")
        seen += [time.monotonic() - began] * (workers.steps_of(0) + 1 - len(seen))
        if case.is_restless:
            disturb(workers, case)
        time.sleep(LOOK_EVERY_SECONDS)
    seen += [time.monotonic() - began] * (workers.steps_of(0) + 1 - len(seen))  # steps that were made meanwhile
    if workers.failed():
        raise Failed("\n".join(log.read_text()[-1500:] for log in workers.logs))
    if case.is_restless and workers.killed is None:
        raise Failed("the job was over before the third worker had made a step")
    return seen


@dataclass(frozen=True)
class Work:
    steps: int  # number of steps after the first
    made: int  # the same, summed over all workers
    value_bytes: float  # bytes per value of a contribution or view
    joining: float  # bytes of the weights for the worker that joins


def needed_seconds(case, work):
    """Returns the necessary seconds of a step, on average over those after the first, if only cables take time.

    Payloads travel in full Ethernet frames; all other traffic counts as unnecessary.

    A cable carries both directions at once. They overlap except for one block, because a block's view is sent once all
    workers have pushed it. A server's cable carries all workers' blocks of its share, a worker's cable its own blocks. Two
    dependencies leave cables idle in any case:

    - A step of mode bsp needs the contributions of all members. A new member contributes from its first step on, for which
      it needs all weights (docs/modes.md, "a late join"). So while its cable carries the weights, the others can only end
      the step under way. With one server, that server's cable is busy meanwhile; with two, each is half idle.
    - Only the failure timeout shows that a worker is dead (docs/modes.md, "a worker dies"). All views of the step in which
      it dies are sent a quarter of that timeout later.
    """
    shared = work.made * work.value_bytes
    busiest = max(work.steps * work.value_bytes, (shared + work.joining) / case.servers)
    joins = work.joining + (shared / case.servers - work.value_bytes) if case.is_restless else 0
    dies = FAILURE_TIMEOUT_SECONDS / 4 if case.is_restless else 0
    return (max(busiest, joins) * FRAME_BYTES_PER_BYTE * 8 / (MBITS[case.rate] * 1e6) + dies) / work.steps


def measure(options, case):
    count = WORKERS + case.is_restless
    names = ["coordinator", *(f"server{i}" for i in range(case.servers)), *(f"worker{i}" for i in range(count))]
    with tempfile.TemporaryDirectory() as name, hosts.Hosts(PREFIX, names, rate=case.rate) as net:
        if options.congestion:
            net.set_congestion(options.congestion)
        folder = pathlib.Path(name)
        with (folder / "servers.log").open("w") as log:
            control = start_services(options, net, folder, case.servers, log)
            with (folder / "heartbeats").open("w") as ages:
                status = f"http://{net.address('coordinator')}:7071/status"
                net.start("coordinator", [sys.executable, heartbeats.__file__, status], ages)
            workers = Workers(options, net, folder, control)
            for _ in range(WORKERS):
                workers.start(case)
            try:
                seen = watch(workers, case)
            except Failed as failure:
                told = (folder / "servers.log").read_text()[-1500:]
                raise Failed(f"{case.rate}, {case.servers} servers: {failure}\n{told}") from None
            sent = sum(net.sent().values())
            killed = f"worker {workers.killed}"
            heartbeat, whose = heartbeats.latest((folder / "heartbeats").read_text(), but=killed)
        logs = [*workers.logs, folder / "servers.log", folder / "coordinator.log"]
        told = "".join(log.read_text() for log in logs)
        made = sum(workers.steps_of(rank) for rank in range(count))
    value_bytes = VALUE_BYTES[case.codec] * case.elements
    # A worker that joins later first gets all weights, as the others have them.
    joining = FIRST_VALUE_BYTES[case.codec] * case.elements * case.is_restless
    necessary = made * value_bytes * 2 + 4 * case.elements + joining
    steps = len(seen) - 2  # number of steps after the first
    needed = needed_seconds(case, Work(steps, made - WORKERS, value_bytes, joining)) if steps > 0 else float("nan")
    in_steps = (seen[-1] - seen[1]) / steps if steps > 0 else float("nan")
    return {
        "name": case.name, "rate": case.rate, "servers": case.servers, "steps": case.steps, "sent": sent,
        "necessary": necessary, "first_step_seconds": seen[1], "step_seconds": in_steps, "needed_seconds": needed,
        "heartbeat_seconds": heartbeat, "heartbeat_of": whose,
        "reconnects": told.count("connecting again") + told.count("lost the connection"),
        "dropped": told.count("was dropped") - case.is_restless, "seen_seconds": seen,
    }  # fmt: skip


def row(one):
    bytes_ratio = one["sent"] / one["necessary"]
    time_ratio = one["step_seconds"] / one["needed_seconds"]
    return (
        f"| {one['rate']} | {one['servers']} | {one['sent'] / 1e6:.1f} | {one['necessary'] / 1e6:.1f} | {bytes_ratio:.2f}x "
        f"| {one['first_step_seconds']:.2f} | {one['step_seconds']:.2f} | {one['needed_seconds']:.2f} | {time_ratio:.2f}x "
        f"| {one['heartbeat_seconds']:.2f} ({one['heartbeat_of']}) | {one['reconnects']} | {one['dropped']} |"
    )


HEAD = (
    "| link | servers | MB sent | MB necessary | | s to the end of the first step | s a step | s the slowest cable needs | "
    "| oldest heartbeat, s | connections lost | workers dropped, but for the killed |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def missed(one):
    """Returns the goals that a case did not reach."""
    goals = {
        "bytes": one["sent"] <= MOST_BYTES * one["necessary"],
        "time": one["step_seconds"] <= MOST_TIME * one["needed_seconds"],
        "heartbeats": one["heartbeat_seconds"] <= LATEST_HEARTBEAT,
        "dropped": one["dropped"] == 0,
    }
    return [goal for goal, is_met in goals.items() if not is_met]


def is_chosen(case, only):
    return case.name == "" if only is None else only in (case.name, case.rate) and (case.name in ("", only))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release"), help="where the programs are")
    parser.add_argument("--elements", type=int, help="parameters of the model; 4 million, or 50 of the large one")
    parser.add_argument("--only", help="the cases of this rate: 10mbit, 100mbit or 1gbit; or: large, restless")
    parser.add_argument("--servers", type=int, help="the cases of so many servers")
    parser.add_argument("--congestion", help="TCP's congestion control in the namespaces: reno, cubic, bbr; the machine's own by default")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    return parser.parse_args()


def main():
    if (reason := hosts.missing(PREFIX)) is not None:
        print(f"slow_links: {reason}", file=sys.stderr)
        return 2
    options = parse()
    options.bin = options.bin.resolve()
    print(HEAD, flush=True)
    figures = []
    for case in CASES:
        if not is_chosen(case, options.only) or options.servers not in (None, case.servers):
            continue
        if options.elements is not None:
            case = replace(case, elements=options.elements)
        try:
            figures.append(measure(options, case))
        except Failed as failure:
            print(f"slow_links: {failure}", file=sys.stderr)
            return 1
        print(row(figures[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    for one in figures:
        if missed(one):
            print(f"slow_links: {one['name'] or one['rate']}, {one['servers']} servers: missed {', '.join(missed(one))}", file=sys.stderr)
    return 1 if any(map(missed, figures)) else 0


if __name__ == "__main__":
    sys.exit(main())
