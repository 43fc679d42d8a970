#!/usr/bin/env python3
"""What Syncline sends on slow links, beside what it must, and how long a step takes, beside what the slowest cable needs.

    sudo python3 tests/bench/slow_links.py --bin build/release

2 workers, and 1 or 2 servers, each a network namespace with one cable; `tc tbf` limits both ends of each cable. The model is
one tensor, BF16 both ways, and all workers begin with the same values. Necessary are, for each worker, its contribution and a
view for each step, and once, in FP32, the first values. Each byte is counted once, where it is sent, with the headers of Ethernet,
IP, TCP and TLS.
"""

import argparse
import json
import pathlib
import re
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from network import hosts

PREFIX = "slowlinks"
WORKERS = 2
CONTROL_PORT = 7070
TIMEOUT_SECONDS = 900
LOOK_EVERY_SECONDS = 0.02

# Goals: bytes, seconds of a step, and heartbeats, beside a quarter of the failure timeout.
MOST_BYTES = 1.1
MOST_TIME = 1.15
FAILURE_TIMEOUT_SECONDS = 10

# Rate, servers, steps.
CASES = [("10mbit", 1, 3), ("10mbit", 2, 3), ("100mbit", 1, 10), ("100mbit", 2, 10), ("1gbit", 1, 30), ("1gbit", 2, 30)]
MBITS = {"10mbit": 10, "100mbit": 100, "1gbit": 1000}


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


def start_workers(options, net, folder, control, steps):
    command = [options.bin / "steps_worker", "--elements", options.elements, "--steps", steps, "--step-ms", 0]
    command += ["--optimizer", "sgd", "--same-weights", "--same-gradient"]
    logs, workers = [], []
    for rank in range(WORKERS):
        logs.append(folder / f"worker{rank}.log")
        environment = {
            "SYNCLINE_COORDINATOR": control, "SYNCLINE_JOB": "slow-links", "SYNCLINE_RUN_ID": "1",
            "SYNCLINE_FAILURE_TIMEOUT": f"{FAILURE_TIMEOUT_SECONDS}s",
            "RANK": str(rank), "WORLD_SIZE": str(WORKERS), "LOCAL_RANK": "0",
        }  # fmt: skip
        with logs[-1].open("w") as out:
            workers.append(net.start(f"worker{rank}", command, out, environment))
    return workers, logs


def watch(workers, logs):
    """When rank 0 had joined, when it had made each step; the seconds since the beginning."""
    began = time.monotonic()
    seen = []
    while any(worker.poll() is None for worker in workers):
        if time.monotonic() - began > TIMEOUT_SECONDS:
            raise Failed(f"took longer than {TIMEOUT_SECONDS} s; rank 0 made {max(0, len(seen) - 1)} steps")
        lines = len(re.findall(r"^(?:joined|step) ", logs[0].read_text(), re.MULTILINE))
        seen += [time.monotonic() - began] * (lines - len(seen))
        time.sleep(LOOK_EVERY_SECONDS)
    if any(worker.poll() != 0 for worker in workers):
        raise Failed("\n".join(log.read_text()[-1500:] for log in logs))
    return seen


def measure(options, rate, servers, steps):
    names = ["coordinator", *(f"server{i}" for i in range(servers)), *(f"worker{i}" for i in range(WORKERS))]
    with tempfile.TemporaryDirectory() as name, hosts.Hosts(PREFIX, names, rate=rate) as net:
        if options.congestion:
            net.set_congestion(options.congestion)
        folder = pathlib.Path(name)
        with (folder / "servers.log").open("w") as log:
            control = start_services(options, net, folder, servers, log)
            workers, logs = start_workers(options, net, folder, control, steps)
            try:
                seen = watch(workers, logs)
            except Failed as failure:
                raise Failed(f"{rate}, {servers} servers: {failure}\n{(folder / 'servers.log').read_text()[-1500:]}") from None
            sent = sum(net.sent().values())
        told = "".join(log.read_text() for log in [*logs, folder / "servers.log", folder / "coordinator.log"])
    value_bytes = 2 * options.elements
    necessary = WORKERS * value_bytes * 2 * steps + 2 * value_bytes
    # A cable carries both directions at once. A server's has all workers' blocks of its share, a worker's its own.
    slowest = value_bytes * max(1.0, WORKERS / servers)
    # Up, then down: a block's view comes when all have pushed it, so the ways overlap but for a block.
    needed = slowest * 8 / (MBITS[rate] * 1e6)
    in_steps = (seen[-1] - seen[1]) / (len(seen) - 2) if len(seen) > 2 else float("nan")
    return {
        "rate": rate, "servers": servers, "steps": steps, "sent": sent, "necessary": necessary,
        "first_step_seconds": seen[1], "step_seconds": in_steps, "needed_seconds": needed,
        "reconnects": told.count("connecting anew") + told.count("lost the connection"),
        "dropped": told.count("was dropped"),
    }  # fmt: skip


def row(one):
    bytes_ratio = one["sent"] / one["necessary"]
    time_ratio = one["step_seconds"] / one["needed_seconds"]
    return (
        f"| {one['rate']} | {one['servers']} | {one['sent'] / 1e6:.1f} | {one['necessary'] / 1e6:.1f} | {bytes_ratio:.2f}x "
        f"| {one['first_step_seconds']:.2f} | {one['step_seconds']:.2f} | {one['needed_seconds']:.2f} | {time_ratio:.2f}x "
        f"| {one['reconnects']} | {one['dropped']} |"
    )


HEAD = (
    "| link | servers | MB sent | MB necessary | | s to the end of the first step | s a step | s the slowest cable needs | "
    "| connections lost | workers dropped |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release"), help="where the programs are")
    parser.add_argument("--elements", type=int, default=4_000_000, help="parameters of the model")
    parser.add_argument("--only", help="the cases of this rate: 10mbit, 100mbit or 1gbit")
    parser.add_argument("--congestion", help="TCP's congestion control in the namespaces; the machine's own by default")
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
    for rate, servers, steps in CASES:
        if options.only not in (None, rate):
            continue
        try:
            figures.append(measure(options, rate, servers, steps))
        except Failed as failure:
            print(f"slow_links: {failure}", file=sys.stderr)
            return 1
        print(row(figures[-1]), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    missed = [
        one for one in figures
        if one["sent"] > MOST_BYTES * one["necessary"] or one["step_seconds"] > MOST_TIME * one["needed_seconds"]
        or one["dropped"] > 0
    ]  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
