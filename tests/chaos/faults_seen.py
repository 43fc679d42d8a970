#!/usr/bin/env python3
"""Does every place show every fault correctly? Runs a job of 4 workers and 2 servers with one fault after the other, and
prints a table of the time until each place showed each fault.

    sudo tests/chaos/faults_seen.py --bin build/release                                # two minutes
    sudo tests/chaos/faults_seen.py --bin build/release --long --demo --pictures out   # 15 minutes of the Fashion-MNIST demo

A learning rate is changed, a worker is killed, one is stopped, and the link of one is made slow. Alerts are those of
deploy/prometheus, evaluated by promtool over the scraped metrics. In the short form, promtool is told that scrapes were
30 times as far apart. Without network namespaces everything is on one host, and no link is slow. The exit code is 1 if a
fault was not shown.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import alert_times  # noqa: E402
import fault_signs as signs  # noqa: E402
import places  # noqa: E402
from network import hosts  # noqa: E402

STEM = "seen"
JOB = "seen"
WORKERS, SERVERS = 4, 2
KILLED, STOPPED, SLOWED = 2, 1, 3
FAILURE_TIMEOUT_S = 6
PATIENCE_S = 120
RULES = HERE.parents[1] / "deploy" / "prometheus" / "alerts.yaml"


class Form:
    """The durations of a run. A fault lasts `lost_s` or `slow_s`, then until it is seen, at most `patience_s` more."""

    def __init__(self, is_long):
        self.before_s = 45 if is_long else 15
        self.lost_s = 330 if is_long else 15  # SynclineWorkersLost waits for 5 minutes
        self.slow_s = 150 if is_long else 60
        self.patience_s = 60
        self.scraped_every_s = 5 if is_long else 1
        self.told_every_s = 5 if is_long else 30


class OneHost:
    """The functions of hosts.Hosts, on loopback."""

    def __init__(self):
        self.started = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.started:
            process.kill()
            process.wait()

    def address(self, _):
        return "127.0.0.1"

    def start(self, _, command, log, environment=()):
        self.started.append(subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                             env={**os.environ, **dict(environment)}, start_new_session=True))  # fmt: skip
        return self.started[-1]

    def inside(self, _):
        return contextlib.nullcontext()


class Cluster:
    """The processes of the run, until the block ends."""

    def __init__(self, binaries, is_demo):
        self.binaries, self.is_demo = binaries, is_demo
        self.why_no_links = hosts.missing(STEM)
        names = ["coordinator", *(f"server{i}" for i in range(SERVERS)), *(f"worker{i}" for i in range(WORKERS))]
        # With slow cables, the demo does not use all cores.
        rate = "400mbit" if is_demo else None
        self.net = OneHost() if self.why_no_links else hosts.Hosts(f"{STEM}{os.getpid()}", names, rate=rate)
        self.folder = tempfile.TemporaryDirectory()
        self.workers, self.admins, self.lives = {}, {}, 0

    def __enter__(self):
        self.net.__enter__()
        try:
            serve = [self.binaries / "syncline", "serve", "--insecure", "--failure-timeout", f"{FAILURE_TIMEOUT_S}s", "--role"]
            self.control = self._serve("coordinator", [*serve, "coordinator", "--servers", SERVERS, "--state-dir", self.path("state")])
            for i in range(SERVERS):
                self._serve(f"server{i}", [*serve, "server", "--coordinator", self.control])
            for rank in range(WORKERS):
                self.start_worker(rank)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        self.net.__exit__()
        self.folder.cleanup()

    def path(self, name):
        return pathlib.Path(self.folder.name) / name

    def _serve(self, name, command):
        with self.path(name).open("w") as log:
            self.net.start(name, [*command, "--listen", f"{self.net.address(name)}:0",
                                  "--admin-listen", f"{self.net.address(name)}:0"], log)  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while not (ready := re.search(r"ready control=(\S+) admin=(\S+)", self.path(name).read_text())):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not start: {self.path(name).read_text()}")
            time.sleep(0.1)
        self.admins[name] = ready.group(2)
        return ready.group(1)

    def start_worker(self, rank):
        """Starts a worker, or starts it again."""
        self.lives += 1
        program = [self.binaries / "fashion_mnist", "--precision", "bf16", "--epochs", 1000, "--gradient-option", "clip_global_norm=5"]
        if not self.is_demo:
            program = [self.binaries / "steps_worker", "--steps", 10**9, "--step-ms", 20, "--elements", 100000, "--clip", 5]
        environment = {"SYNCLINE_COORDINATOR": self.control, "SYNCLINE_JOB": JOB, "RANK": str(rank), "WORLD_SIZE": str(WORKERS),
                       "SYNCLINE_FAILURE_TIMEOUT": f"{FAILURE_TIMEOUT_S}s"}  # fmt: skip
        with self.path(f"worker{rank}-{self.lives}").open("w") as log:
            self.workers[rank] = self.net.start(f"worker{rank}", program, log, environment.items())

    def signal(self, rank, number):
        os.killpg(self.workers[rank].pid, number)


class Scraper(threading.Thread):
    """Scrapes all admin ports, like Prometheus."""

    def __init__(self, admins, every_s):
        super().__init__(daemon=True)
        self.admins, self.every_s = admins, every_s
        self.scrapes, self.is_over = alert_times.Scrapes(), threading.Event()
        self.start()

    def run(self):
        due = time.monotonic()
        while not self.is_over.wait(max(0.0, due - time.monotonic())):
            due += self.every_s
            self.scrapes.begin()
            for name, admin in self.admins.items():
                text = places.metrics_of(admin)
                self.scrapes.add({"instance": name, "component": name.rstrip("0123456789")}, text)


class Run:
    """Makes the faults, one after the other, and records when they were seen."""

    def __init__(self, cluster, form, pictures):
        self.cluster, self.form, self.pictures = cluster, form, pictures
        self.places = places.Places(cluster.binaries / "syncline", cluster.control, cluster.admins["coordinator"], JOB)
        self.scraper = Scraper(cluster.admins, form.scraped_every_s)
        self.seen = []  # (fault, {place: seconds}, first round, last round)

    def close(self):
        self.scraper.is_over.set()
        self.scraper.join(PATIENCE_S)
        self.places.close()

    def await_look(self, what, is_so):
        deadline, last = time.monotonic() + PATIENCE_S, "nothing"
        while time.monotonic() < deadline:
            try:
                look = self.places.look()
            except places.NotThere as error:
                last = str(error)
                time.sleep(0.2)
                continue
            if is_so(look):
                return look
            last = json.dumps(look.status)[:3000]
        raise RuntimeError(f"never {what}: {last}")

    def all_there(self):
        return self.await_look("were all workers there", lambda look: len(look.status["members"]) == WORKERS and look.status["phase"] == "running"
                               and min(member["step"] for member in look.status["members"]) > 5)  # fmt: skip

    def watch(self, faults, act, lasts_s):
        """Watches until the faults were seen, and at least for `lasts_s`."""
        before = self.all_there()
        began, first = time.monotonic(), self.scraper.scrapes.rounds
        found = [{} for _ in faults]
        act()
        while True:
            look = self.places.look()
            passed = time.monotonic() - began
            for fault, times in zip(faults, found):
                for place, sign in fault.signs.items():
                    if place != signs.ALERTS and place not in times and (place != signs.PAGE or look.page) and sign(look, before):
                        times[place] = passed
            is_seen = all(self.wanted(fault) <= times.keys() for fault, times in zip(faults, found))
            if passed > lasts_s + (0 if is_seen else self.form.patience_s):
                break
        if not is_seen:
            print(f"not all seen; goals {look.status['goals']}, advice {look.advise}, members {look.status['members']}", flush=True)
        if self.pictures:
            self.places.pictures(self.pictures, re.sub(r"\W+", "-", faults[-1].name))
        for fault, times in zip(faults, found):
            self.seen.append((fault, times, first, self.scraper.scrapes.rounds))
            print(f"{fault.name}: " + ", ".join(f"{place} {seconds:.1f} s" for place, seconds in times.items()), flush=True)

    def wanted(self, fault):
        """Returns the places that must show the fault, except alerts, and the page if there is no browser."""
        return {place for place in fault.signs if place != signs.ALERTS and (place != signs.PAGE or self.places.tab)}

    def all(self):
        look = self.all_there()
        rate = look.status["learning_rate"] / 2
        first = look
        self.watch([signs.learning_rate(rate)], lambda: self.places.ask("update", JOB, "--option", f"lr={rate:g}"), self.form.before_s)
        last = self.all_there()
        steps = last.status["step"] - first.status["step"]
        step_s = (last.at - first.at) / steps
        # The goal is so high that noise does not exceed it.
        limit_ms = round(2500 * step_s + 30)
        self.places.ask("update", JOB, "--goals", f"step_p95_ms<={limit_ms}")
        print(f"a step takes {1000 * step_s:.0f} ms; its goal is {limit_ms} ms", flush=True)
        rank = KILLED
        self.watch([signs.killed(rank, WORKERS)], lambda: self.cluster.signal(rank, signal.SIGKILL), self.form.lost_s)
        self.cluster.start_worker(rank)
        rank = STOPPED
        self.watch([signs.silent(rank), signs.stopped(rank, WORKERS)], lambda: self.cluster.signal(rank, signal.SIGSTOP), self.form.lost_s)
        self.cluster.signal(rank, signal.SIGCONT)
        self.cluster.workers[rank].wait(PATIENCE_S)  # the worker learns that it was dropped
        self.cluster.start_worker(rank)
        if self.cluster.why_no_links:
            return print(f"no slow link: {self.cluster.why_no_links}", flush=True)
        self.slow_link(limit_ms / 1000, last)

    def slow_link(self, limit_s, look):
        """Slows a link until steps take far longer than the goal, if possible at most 0.5 s: a window of 10 s has 20 of them.

        The bytes are those of both directions, for which the link has the rate at once.
        """
        member = next(member for member in look.status["members"] if member["rank"] == SLOWED)
        bytes_a_step = member["bytes"] / max(1, member["step"])
        longer_s = max(min(4 * limit_s, 0.9), 3 * limit_s)
        rate = f"{max(1, round(8 * bytes_a_step / longer_s / 1000))}kbit"
        print(f"the link of worker {SLOWED} is limited to {rate}", flush=True)
        with contextlib.ExitStack() as stack:
            self.watch([signs.slow_link(SLOWED)], lambda: stack.enter_context(self.cluster.net.slowed(f"worker{SLOWED}", "data", rate)),
                       self.form.slow_s)  # fmt: skip


def add_alerts(run, form):
    """Adds the times at which the alerts of the faults would have fired, in promtool's seconds."""
    if alert_times.PROMTOOL is None:
        return
    fires = alert_times.firing(run.scraper.scrapes, RULES, form.told_every_s)
    print("alerts: " + (", ".join(f"{name} from {times[0]} s on" for name, times in sorted(fires.items())) or "none"), flush=True)
    for fault, times, first, last in run.seen:
        began, over = first * form.told_every_s, last * form.told_every_s
        fired = alert_times.begins(fires.get(fault.signs.get(signs.ALERTS), []))
        while_there = [at for at in fired if began < at <= over]
        if while_there:
            times[signs.ALERTS] = while_there[0] - began


def table(run):
    """Returns the table in Markdown, and the faults that were not seen."""
    lines, missing = ["| fault | " + " | ".join(signs.PLACES) + " |", "|---" * (1 + len(signs.PLACES)) + "|"], []
    for fault, times, *_ in run.seen:
        cells = [fault.name]
        for place in signs.PLACES:
            if place in times:
                cells.append(f"{times[place]:.0f} s")
            elif place not in fault.signs:
                cells.append("–")
            elif (place == signs.PAGE and not run.places.tab) or (place == signs.ALERTS and alert_times.PROMTOOL is None):
                cells.append("not tried")
            else:
                cells.append("NOT SEEN")
                missing.append(f"{fault.name} at {place}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines), missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--long", action="store_true", help="15 minutes, at the pace of the alerts")
    parser.add_argument("--demo", action="store_true", help="the Fashion-MNIST demo instead of steps that compute nothing")
    parser.add_argument("--pictures", type=pathlib.Path, help="a folder for pictures of the dashboard under each fault")
    arguments = parser.parse_args()
    form = Form(arguments.long)
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    with Cluster(arguments.bin.resolve(), arguments.demo) as cluster, cluster.net.inside("coordinator"):
        run = Run(cluster, form, arguments.pictures)
        try:
            run.all()
        finally:
            run.close()
    add_alerts(run, form)
    shown, missing = table(run)
    print(shown)
    if missing:
        sys.exit("not seen: " + ", ".join(missing))


if __name__ == "__main__":
    main()
