"""The processes of a storm: a coordinator, servers with journals on failing disks, and workers that keep a ledger.

With namespaces each process is a host of its own with cables (tests/network). Otherwise all are on loopback, and use
shared memory. Like a launcher, this restarts workers that were dropped. A service that ends by itself is an error.
"""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from failing_disk import Disk
from network.hosts import Hosts, die_with_parent

FAILURE_TIMEOUT = 4.0  # seconds; the same as in tests/integration
PATIENCE = 120.0  # seconds; deadline of everything that must happen
RETRYABLE, STATE_UNUSABLE = 138, 4  # comm/base/exit_codes.h
RANKS, SLOTS = 4, 4096


class StormError(AssertionError):
    """A promise was broken."""


class Cluster:
    """Runs in an empty `folder`. `binaries` is the folder of syncline, ledger_worker and failing_disk.so."""

    def __init__(self, binaries, folder, has_hosts, servers=2, workers=3):
        self.binaries, self.folder = pathlib.Path(binaries).resolve(), pathlib.Path(folder)
        self.servers = [f"server{i}" for i in range(servers)]
        self.workers = [f"worker{i}" for i in range(workers)]
        self.names = ["coordinator", *self.servers, *self.workers]
        self.net = Hosts(f"storm{os.getpid()}", self.names, networks=["control", "data"]) if has_hosts else None
        self.disks = {one: Disk(self.folder / one, self.binaries / "failing_disk.so") for one in self.servers}
        self.processes = {}
        self.down = set()  # processes that should be down
        self.restarts = 0  # restarts of dropped workers
        self.lives = 0  # starts of the whole cluster
        self.control = "127.0.0.1:0"
        self.end, self.checkpoints = self.folder / "end", self.folder / "checkpoints"

    def __enter__(self):
        if self.net:
            self.net.__enter__()
            self.control = f"{self.net.address('coordinator')}:7070"
        try:
            self.start_all()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self.net:
            self.net.__exit__()

    # ---- Processes ----

    def start_all(self):
        """Starts everything. The coordinator knows no job."""
        self.lives += 1
        for name in self.names:
            self.start(name)

    def start(self, name):
        self.down.discard(name)
        if name == "coordinator":
            ready = len(re.findall("ready control=", self.log(name)))
            self._run(name, self._serve(name, "--listen", self.control, "--servers", len(self.servers),
                                        "--state-dir", self.folder / f"state{self.lives}"))  # fmt: skip
            self.await_times(name, "ready control=", ready + 1)
            self.control = re.findall(r"ready control=(\S+)", self.log(name))[-1]
        elif name in self.servers:
            there = ("--listen", f"{self.net.address(name)}:7070", "--data-plane-address",
                     self.net.address(name, "data")) if self.net else ()  # fmt: skip
            self._run(name, self._serve(name, "--coordinator", self.control, "--engine-threads", 2, "--journal-dir",
                                        self.disks[name].files, *there), self.disks[name].environment)  # fmt: skip
        else:
            rank = name.removeprefix("worker")
            self._run(name, [self.binaries / "ledger_worker", "--ranks", RANKS, "--slots", SLOTS, "--end", self.end,
                             "--out", self.folder / f"{name}.weights"],
                      {"SYNCLINE_COORDINATOR": self.control, "SYNCLINE_JOB": "storm", "SYNCLINE_DURABILITY": "disk",
                       "SYNCLINE_FAILURE_TIMEOUT": f"{FAILURE_TIMEOUT}s", "RANK": rank,
                       "WORLD_SIZE": str(len(self.workers))})  # fmt: skip

    def kill(self, names):
        """Kills processes (kill -9), all at once."""
        self.down.update(names)
        for name in names:
            with contextlib.suppress(ProcessLookupError):  # it was dropped, and has ended
                os.killpg(self.processes[name].pid, signal.SIGKILL)
        for name in names:
            code = self.processes[name].wait()
            # A worker may have been dropped just before, and would have been started again.
            was_dropped = name in self.workers and code == RETRYABLE
            if code != -signal.SIGKILL and not was_dropped:
                raise StormError(f"{name} had ended with {code} before it was killed\n{self.ends_of_logs()}")

    def signal(self, name, number):
        os.killpg(self.processes[name].pid, number)

    def state(self, name):
        """Returns the process state, as ps shows it: "T" is stopped."""
        return pathlib.Path(f"/proc/{self.processes[name].pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def look_after(self):
        for name, process in list(self.processes.items()):
            code = process.poll()
            if code is None or name in self.down:
                continue
            if name in self.workers and code == RETRYABLE:
                # At the end there may be no job left to join.
                if not self.end.exists():
                    self.restarts += 1
                    self.start(name)
            elif code != 0 or name not in self.workers:
                raise StormError(f"{name} ended by itself, with {code}\n{self.ends_of_logs()}")

    def _serve(self, name, *flags):
        role = name.rstrip("0123456789")
        return [self.binaries / "syncline", "serve", "--role", role, "--admin-listen", "127.0.0.1:0", "--failure-timeout",
                f"{FAILURE_TIMEOUT}s", "--checkpoint-dir", self.checkpoints, *(["--insecure"] if self.net else []),
                *flags]  # fmt: skip

    def _run(self, name, command, environment=()):
        with (self.folder / f"{name}.log").open("a") as log:
            if self.net:
                self.processes[name] = self.net.start(name, command, log, environment)
                return
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **dict(environment)}, start_new_session=True, preexec_fn=die_with_parent,
            )  # fmt: skip

    # ---- Logs ----

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def ends_of_logs(self):
        """Returns the ends of the logs, with only the last step of each worker."""
        ends = []
        for name in self.names:
            lines = [line for line in self.log(name).splitlines() if not re.fullmatch(r"step \d+", line)]
            ends += [f"--- {name}, after step {self.step(name)}" if name in self.workers else f"--- {name}", *lines[-25:]]
        return "\n".join(ends)

    def await_that(self, what, holds, timeout=PATIENCE):
        deadline = time.monotonic() + timeout
        while not holds():
            self.look_after()
            if time.monotonic() > deadline:
                raise StormError(f"{what}: not within {timeout:.0f} s\n{self.ends_of_logs()}")
            time.sleep(0.05)

    def await_times(self, name, pattern, times):
        self.await_that(f"{name} says /{pattern}/ {times} times",
                        lambda: len(re.findall(pattern, self.log(name))) >= times)  # fmt: skip

    def step(self, name):
        """Returns the last step that this worker has seen made; -1: none."""
        return self.furthest_of(int(step) for step in re.findall(r"^step (\d+)$", self.log(name), re.M))

    @staticmethod
    def furthest_of(steps):
        return max(steps, default=-1)

    def furthest(self):
        return max(self.step(name) for name in self.workers)

    def await_steps(self, more):
        """Waits until each worker is `more` steps beyond the furthest one now. Fails if a worker goes back."""
        goal = self.furthest() + more
        self.await_that(f"all workers have made step {goal}", lambda: min(map(self.furthest_of, self.seen().values())) >= goal)

    def seen(self):
        """Returns {rank: steps that it saw made with its contribution}. Fails if a worker went back: a step was lost."""
        seen = {}
        for rank, name in enumerate(self.workers):
            furthest = -1
            steps = set()
            for word, number in re.findall(r"^(joined step=|step )(\d+)$", self.log(name), re.M):
                step = int(number)
                if step <= furthest:
                    raise StormError(f"{name} says '{word}{step}' after step {furthest}\n{self.ends_of_logs()}")
                if word == "step ":
                    furthest = step
                    steps.add(step)
            seen[rank] = steps
        return seen

    # ---- Disks only ----

    def replay(self, *flags):
        journals = [word for disk in self.disks.values() for word in ("--journal", disk.files)]
        command = [self.binaries / "syncline", "replay", *journals, "--job", "storm", "--checkpoint-dir", self.checkpoints,
                   "--verify", *flags]  # fmt: skip
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode != 0:
            raise StormError(f"the journals cannot be replayed: {done.stdout}{done.stderr}\n{self.ends_of_logs()}")
        return done.stdout + done.stderr
