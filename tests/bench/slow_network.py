#!/usr/bin/env python3
"""How long does training take to reach 88 % on Fashion-MNIST over a slow network?

Runs the demo as a job of 2 workers and 2 servers, and the same training with torch's DistributedDataParallel over gloo:
the same first weights, samples in each step and optimizer. Every process is a host of its own: a network namespace with
one cable of the given rate, both ways (tests/network). Bytes are counted on these cables.

    sudo build/venv/bin/python tests/bench/slow_network.py --bin build/release --write docs/slow_network.md

Needs root, iproute2 and torch; the plot needs matplotlib. It removes its namespaces, also after Ctrl-C.
"""

import argparse
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

from slow_network import page

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from network import hosts

PREFIX = "slownet"

WORKERS = 2
CONTROL_PORT = 7070
HERE = pathlib.Path(__file__).resolve().parent
TRAIN_SAMPLES = 60000


MOMENTUM = ("--option=momentum=0.9",)
TUNED_RATES = (0.03, 0.05, 0.07, 0.1, 0.15, 0.2)  # all contenders are tuned over these


@dataclass(frozen=True)
class Contender:
    name: str  # title in the tables
    lr: float  # the one of TUNED_RATES with the fewest steps to 88 %, then the highest accuracy (--tune)
    flags: tuple = MOMENTUM
    is_gloo: bool = False


def both_ways(push, publish):
    return (f"--push-codec={push}", f"--publish-codec={publish}")


CONTENDERS = {
    "ddp": Contender("torch DDP over gloo, FP32", 0.07, is_gloo=True),
    "ddp-fp16": Contender("DDP over gloo, torch's FP16 hook", 0.07, (*MOMENTUM, "--hook=fp16"), is_gloo=True),
    "ddp-powersgd": Contender("DDP over gloo, torch's PowerSGD hook, rank 4", 0.07, (*MOMENTUM, "--hook=powersgd"), is_gloo=True),
    "bf16": Contender("Syncline, dense BF16", 0.07, (*MOMENTUM, *both_ways("bf16", "bf16"))),
    "onebit": Contender("Syncline, 1 bit both ways", 0.05, (*MOMENTUM, *both_ways("onebit", "onebit"))),
    "topk": Contender("Syncline, top-k 10 % int8 both ways", 0.07, (*MOMENTUM, *both_ways("topk:ratio=0.1,values=int8", "topk:ratio=0.1,values=int8"))),
    # The codec has the momentum, on the workers.
    "dgc": Contender("Syncline, DGC 1 % up, top-k 5 % int8 down", 0.2, both_ways("dgc:ratio=0.01,momentum=0.9", "topk:ratio=0.05,values=int8")),
}
NAMES = {key: one.name for key, one in CONTENDERS.items()}


class Failed(Exception):
    """A run that failed, with the end of its output."""


def total_steps(options):
    return options.steps or options.epochs * -(-TRAIN_SAMPLES // (options.batch_size * WORKERS))


def training_flags(options, run):
    contender = CONTENDERS[run["contender"]]
    flags = ["--optimizer", "sgd", f"--option=lr={run['lr']}", *contender.flags, "--hidden", options.hidden]
    flags += ["--schedule", "linear", "--schedule-option", f"total_steps={total_steps(options)}"]
    flags += ["--epochs", options.epochs, "--batch-size", options.batch_size, "--steps", run["limit"]]
    flags += ["--eval-steps", options.eval_steps, "--seed", run["seed"], "--precision", options.precision]
    return [*flags, "--data-dir", options.data_dir, "--report", run["report"]]


def wait_for(processes, deadline, what):
    """Waits until all processes have ended well."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() not in (None, 0) for process in processes) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    codes = [process.poll() for process in processes]
    if any(codes):
        raise Failed(f"{what} ended with {codes}")
    if None in codes:
        raise Failed(f"{what} took too long")


def worker_environment(net, rank):
    master = {"MASTER_ADDR": net.address("worker0"), "MASTER_PORT": "29500"}
    ranks = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(WORKERS), "OMP_NUM_THREADS": "1"}
    return {**master, **ranks, "GLOO_SOCKET_IFNAME": "eth0"}


def start_services(options, net, folder, log):
    """Starts a coordinator and servers. Returns when the coordinator listens."""
    control = f"{net.address('coordinator')}:{CONTROL_PORT}"
    common = ["--admin-listen", "127.0.0.1:0", "--insecure"]
    serve = [options.bin / "syncline", "serve", "--role"]
    ready = folder / "coordinator.log"
    with ready.open("w") as out:
        coordinator = ["coordinator", "--listen", control, "--state-dir", folder / "state", "--servers", options.servers]
        process = net.start("coordinator", [*serve, *coordinator, *common], out)
    deadline = time.monotonic() + 20
    while "syncline: ready" not in ready.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failed(f"the coordinator does not start:\n{ready.read_text()[-1000:]}")
        time.sleep(0.05)
    for server in range(options.servers):
        listen = f"{net.address(f'server{server}')}:{CONTROL_PORT}"
        flags = ["server", "--coordinator", control, "--listen", listen, "--engine-threads", 1]
        net.start(f"server{server}", [*serve, *flags, *common], log)
    return control


def start_syncline(options, net, run, log):
    control = start_services(options, net, run["folder"], log)
    job = {"SYNCLINE_COORDINATOR": control, "SYNCLINE_JOB": "slow-network", "SYNCLINE_RUN_ID": "1"}
    command = [options.bin / "fashion_mnist", *training_flags(options, run)]
    return [
        net.start(f"worker{rank}", command, log, {**worker_environment(net, rank), **job}) for rank in range(WORKERS)
    ]


def start_gloo(options, net, run, log):
    command = [sys.executable, HERE / "slow_network" / "gloo_worker.py", *training_flags(options, run)]
    return [net.start(f"worker{rank}", command, log, worker_environment(net, rank)) for rank in range(WORKERS)]


def measure(options, rate, contender, seed, lr):
    """Makes one run. Returns the report of rank 0, and the bytes on the wires."""
    is_gloo = CONTENDERS[contender].is_gloo
    is_probe = rate != "none" and options.probe_steps > 0
    names = [f"worker{rank}" for rank in range(WORKERS)]
    if not is_gloo:
        names = ["coordinator", *(f"server{server}" for server in range(options.servers)), *names]
    start = start_gloo if is_gloo else start_syncline
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = {"contender": contender, "seed": seed, "lr": lr, "folder": folder, "report": folder / "report.json"}
        run["limit"] = options.probe_steps if is_probe else options.steps
        limit = None if rate == "none" else rate
        with (folder / "log").open("w") as log, hosts.Hosts(PREFIX, names, rate=limit) as net:
            try:
                workers = start(options, net, run, log)
                wait_for(workers, time.monotonic() + options.timeout, f"{contender} at {rate}")
            except Failed as failure:
                raise Failed(f"{failure}\n{(folder / 'log').read_text()[-6000:]}") from None
            sent = net.sent()
        report = json.loads(run["report"].read_text())
    return {
        "rate": rate,
        "contender": contender,
        "seed": seed,
        "lr": lr,
        "is_probe": is_probe,
        "steps": report["steps"],
        "seconds": report["seconds"],
        "accuracy": report["accuracy"],
        "evaluations": report.get("evaluations", []),
        "sent": sent,
    }


def measure_all(options):
    """Measures seed by seed, so that all contenders see the same load of the machine."""
    results = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    done = {(run["rate"], run["contender"], run["seed"], run["lr"]) for run in results}
    for seed in range(1, options.seeds + 1):
        for rate in options.rates:
            for contender in options.contenders:
                for lr in TUNED_RATES if options.tune else [options.lr.get(contender, CONTENDERS[contender].lr)]:
                    if (rate, contender, seed, lr) in done:
                        continue
                    run = measure(options, rate, contender, seed, lr)
                    results.append(run)
                    print(page.line(run, options.target), file=sys.stderr, flush=True)
                    if options.json:
                        options.json.write_text(json.dumps(results, indent=1))
    return results


def learning_rate(text):
    """Parses CONTENDER=RATE."""
    contender, _, rate = text.partition("=")
    if contender not in CONTENDERS:
        raise argparse.ArgumentTypeError(f"{contender} is none of {', '.join(CONTENDERS)}")
    return contender, float(rate)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default="build/release", help="where syncline and fashion_mnist are")
    parser.add_argument("--data-dir", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", "none"], help="as tc writes them, or none")
    parser.add_argument("--contenders", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help=f"of one of the {WORKERS} workers")
    parser.add_argument("--epochs", type=int, choices=(1, 2), default=2, help="more would change the batch size")
    parser.add_argument("--steps", type=int, default=0, help="stop after so many (0: never)")
    parser.add_argument("--eval-steps", type=int, default=50)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of forward and backward, for all")
    parser.add_argument("--target", type=float, default=88, help="test accuracy in percent")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    parser.add_argument("--hidden", type=int, default=page.SMALL, help="units of the first full layer; 8000 make 25 million parameters")
    parser.add_argument("--lr", type=learning_rate, nargs="+", default=[], metavar="CONTENDER=RATE", help="in place of the tuned one")
    parser.add_argument("--tune", action="store_true", help="all of the learning rates that are tried, without a limit of the network")
    parser.add_argument("--probe-steps", type=int, default=0, help="at a limited rate so many steps, with the steps to the target of the run "
                        "without a limit: for models that would take hours")
    parser.add_argument("--quick", action="store_true", help="40 steps: shows that all runs, not how well")
    parser.add_argument("--write", type=pathlib.Path, help="write the tables to this page's section of this model, and the plot beside it")
    parser.add_argument("--json", type=pathlib.Path, help="keep all figures here; runs that it has are not repeated")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    options.lr = dict(options.lr)
    if options.tune:
        options.rates = ["none"]
        if options.write:
            parser.error("--tune chooses learning rates; it writes no page")
    if options.write:
        try:
            page.replaced(options.write.read_text(), options, "")
        except (OSError, ValueError) as error:
            parser.error(str(error))
    if options.probe_steps and "none" not in options.rates:
        parser.error("--probe-steps needs the rate none, whose steps to the target it takes")
    if options.quick:
        options.steps, options.eval_steps = 40, 20
        if options.write or options.json:
            parser.error("--quick measures nothing worth writing down")
    return options


def main():
    options = parse()
    if (reason := hosts.missing(PREFIX)) is not None:
        sys.exit(f"slow_network: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        results = measure_all(options)
    except Failed as failure:
        sys.exit(f"slow_network: {failure}")
    except KeyboardInterrupt:
        return 130
    print(page.tuning(results, NAMES, options.target) if options.tune else page.tables(results, NAMES, options.target))
    if options.write:
        version = subprocess.run([options.bin / "syncline", "version"], capture_output=True, text=True, check=True)
        plot = page.plot(results, NAMES, options)
        text = page.section(results, NAMES, options, version.stdout.splitlines()[0], plot)
        options.write.write_text(page.replaced(options.write.read_text(), options, text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
