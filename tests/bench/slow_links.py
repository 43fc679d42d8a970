#!/usr/bin/env python3
"""What Syncline sends on slow links, beside what it must, and how long a step takes, beside what the slowest cable needs.

    sudo python3 tests/bench/slow_links.py --bin build/release

2 workers, and 1 or 2 servers, each a network namespace with one cable; `tc tbf` limits both ends of each cable. The model is
one tensor, BF16 both ways, and all workers begin with the same values. Necessary are, for each worker, its contribution and a
view for each step, and once, in FP32, the first values. Each byte is counted once, where it is sent, with the headers of Ethernet,
IP, TCP and TLS. The coordinator is asked all the time how old the last heartbeat of everybody is.

Two more sets are asked for by name. In both a third worker joins, which is sent the weights of then, and when it has made a step
another one is killed. What a step needs is then more than bytes (`needed_seconds`). `--only restless`: the cases above. `--only large`, of an hour at most for each number of servers: 50 million
parameters, 1 bit both ways, 10 Mbit/s.
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

# Goals: bytes, seconds of a step, and heartbeats, beside a quarter of the failure timeout.
MOST_BYTES = 1.1
MOST_TIME = 1.15
FAILURE_TIMEOUT_SECONDS = 10
LATEST_HEARTBEAT = FAILURE_TIMEOUT_SECONDS / 4

MBITS = {"10mbit": 10, "100mbit": 100, "1gbit": 1000}
# Bytes of a value, with the headers of its frames (docs/compression.md).
VALUE_BYTES = {"bf16": 2.0, "onebit:vectors=1": 4 / 31.3}
# Of a value of the weights that a worker is sent when it joins: as views are, unless these are deltas.
FIRST_VALUE_BYTES = {"bf16": 2.0, "onebit:vectors=1": 4.0}


@dataclass(frozen=True)
class Case:
    rate: str
    servers: int
    steps: int
    name: str = ""  # those without one are run unless others are asked for
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
    """Of one case, by rank."""

    def __init__(self, options, net, folder, control):
        self.options, self.net, self.folder, self.control = options, net, folder, control
        self.processes, self.logs = [], []
        self.killed = None  # its rank

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
        """How many it has made; -1 before it has joined."""
        return len(re.findall(r"^(?:joined|step) ", self.logs[rank].read_text(), re.MULTILINE)) - 1

    def kill(self, rank):
        self.killed = rank
        self.processes[rank].send_signal(signal.SIGKILL)

    def failed(self):
        return any(process.poll() != 0 for rank, process in enumerate(self.processes) if rank != self.killed)


def disturb(workers, case):
    """Once the job steps a third worker comes; once that steps the second one dies."""
    if len(workers.processes) == WORKERS and workers.steps_of(0) >= 1:
        workers.start(case)
    elif workers.killed is None and len(workers.processes) > WORKERS and workers.steps_of(WORKERS) >= 1:
        workers.kill(WORKERS - 1)


def watch(workers, case):
    """When rank 0 had joined, when it had made each step; the seconds since the beginning."""
    began = time.monotonic()
    seen = []
    while workers.are_running():
        if time.monotonic() - began > case.timeout_seconds:
            raise Failed(f"took longer than {case.timeout_seconds} s; rank 0 made {max(0, len(seen) - 1)} steps")
        seen += [time.monotonic() - began] * (workers.steps_of(0) + 1 - len(seen))
        if case.is_restless:
            disturb(workers, case)
        time.sleep(LOOK_EVERY_SECONDS)
    seen += [time.monotonic() - began] * (workers.steps_of(0) + 1 - len(seen))  # the last, if it ended with it
    if workers.failed():
        raise Failed("\n".join(log.read_text()[-1500:] for log in workers.logs))
    if case.is_restless and workers.killed is None:
        raise Failed("the job was over before the third worker had made a step")
    return seen


@dataclass(frozen=True)
class Work:
    steps: int  # after the first
    made: int  # the same by all workers together
    value_bytes: float  # of a contribution, and of a view
    joining: float  # bytes that the newcomer is sent first


def needed_seconds(case, work):
    """What a step needs, on average of those after the first, if cables are all there is.

    A cable carries both directions at once: up and down overlap but for a block, as a block's view comes when all have pushed it.
    A server's carries all workers' blocks of its share, a worker's its own. Two dependencies leave cables idle, whatever is done:

    - A step of mode bsp is of everybody's contributions, the newcomer's from its first step on, for which it must have all
      weights (docs/modes.md, "a late join"). So while its own cable carries them the others end the step that is under way,
      and no other. With one server that server's cable is busy meanwhile; with two each is half idle.
    - Nobody but the failure timeout tells that a worker is dead (docs/modes.md, "a worker dies"): the views of the step in which
      it dies all come after a quarter of it.
    """
    shared = work.made * work.value_bytes
    busiest = max(work.steps * work.value_bytes, (shared + work.joining) / case.servers)
    joins = work.joining + (shared / case.servers - work.value_bytes) if case.is_restless else 0
    dies = FAILURE_TIMEOUT_SECONDS / 4 if case.is_restless else 0
    return (max(busiest, joins) * 8 / (MBITS[case.rate] * 1e6) + dies) / work.steps


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
    # What a worker that joins later is sent first is all weights, as the others have them.
    joining = FIRST_VALUE_BYTES[case.codec] * case.elements * case.is_restless
    necessary = made * value_bytes * 2 + 4 * case.elements + joining
    steps = len(seen) - 2  # after the first
    needed = needed_seconds(case, Work(steps, made - WORKERS, value_bytes, joining)) if steps > 0 else float("nan")
    in_steps = (seen[-1] - seen[1]) / steps if steps > 0 else float("nan")
    return {
        "name": case.name, "rate": case.rate, "servers": case.servers, "steps": case.steps, "sent": sent,
        "necessary": necessary, "first_step_seconds": seen[1], "step_seconds": in_steps, "needed_seconds": needed,
        "heartbeat_seconds": heartbeat, "heartbeat_of": whose,
        "reconnects": told.count("connecting anew") + told.count("lost the connection"),
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
    """Which goals a case did not reach."""
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
