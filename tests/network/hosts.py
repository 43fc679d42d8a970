"""Simulated hosts: network namespaces, each with a cable to the switch of every network.

    with Hosts("chaos", ["coordinator", "server0", "worker0"], networks=["control", "data"]) as hosts:
        process = hosts.start("worker0", ["./program", "--peer", hosts.address("server0", "data")], log)
        with hosts.cut("worker0", "control", "out"):
            time.sleep(1)
        print(hosts.sent())

Cables have the given rate, both ways, or no limit. A cut silently drops all packets of a cable, in one direction ("out"
of the host, "in" to it) or in "both". Everything is inside of its own namespaces: the network of the machine does not
change, and deleting the namespaces deletes cables, switches and limits. Like real hosts, they also share no System V and
POSIX memory objects.
"""

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import time

STOP_SECONDS = 3
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CLONE_NEWNET = 0x40000000  # linux/sched.h


def die_with_parent():
    """For preexec_fn: ends the process if the test ends in any way, even by a time limit."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def missing(prefix):
    """Returns what is missing to run Hosts with this prefix here, or None."""
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool} here; apt-get install iproute2 util-linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"no network namespaces here: {probe.stderr.strip()}"
    left = [line.split()[0] for line in probe.stdout.splitlines() if line.startswith(prefix + "-")]
    return f"namespaces of another run; if it is dead: ip netns delete {' '.join(left)}" if left else None


def delete_those_of_the_dead(stem):
    """Deletes namespaces whose prefix is `stem` and the number of a process that was killed before it deleted them."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line):
        owner = re.match(rf"{stem}(\d+)-", name)
        if owner and not os.path.exists(f"/proc/{owner.group(1)}"):
            subprocess.run(["ip", "netns", "delete", name], check=False)


class Hosts:
    """Hosts and their cables. Names of namespaces start with `prefix`. The cable to the first of `networks` is eth0 of each
    host, and so on. `rate` is written as for tc; None: no limit."""

    def __init__(self, prefix, names, networks=("data",), rate=None):
        self.prefix = prefix
        self.names = list(names)
        self.networks = list(networks)
        self.rate = rate
        self.processes = []
        self.dropped = 0  # packets that finished cuts have dropped
        self.delayed = 0  # packets that finished calls of `slowed` have delayed

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self._delete()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        self._delete()

    def address(self, host, network=None):
        """Returns the host's address in this network, by default in the first one."""
        number = 0 if network is None else self.networks.index(network)
        return f"10.{number + 1}.0.{self.names.index(host) + 1}"

    def start(self, host, command, log, environment=()):
        """Starts a process, with its output in the file `log`. It ends with the block at the latest."""
        isolated = ["ip", "netns", "exec", self._space(host), "unshare", "--ipc", "--"]
        process = subprocess.Popen(
            isolated + [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, env={**os.environ, **dict(environment)}, start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def cut(self, host, network, direction="both"):
        ends = dict(zip(("out", "in"), self._ends(host, network)))
        chosen = list(ends.values()) if direction == "both" else [ends[direction]]
        for end in chosen:
            _run(*_root(*end, "replace"), "blackhole")
        try:
            yield
        finally:
            for end in chosen:
                self.dropped += _counted(*end, "drops")
                _run(*_root(*end, "del"))
                self._limit(*end)

    @contextlib.contextmanager
    def slowed(self, host, network, rate):
        """Limits a cable to `rate`, both ways, until the block ends."""
        for end in self._ends(host, network):
            _run(*_root(*end, "replace"), *_at(rate))
        try:
            yield
        finally:
            for end in self._ends(host, network):
                self.delayed += _counted(*end, "overlimits")
                _run(*_root(*end, "del"))
                self._limit(*end)

    def set_congestion(self, algorithm):
        """Sets TCP's congestion control of all hosts (reno, cubic, bbr), for new connections.

        Sets it in the routes, because the sysctl accepts only algorithms that the machine allows for namespaces.
        """
        for host in self.names:
            for number, network in enumerate(self.networks):
                cable = ["dev", self._device(network), "src", self.address(host, network)]
                _run("ip", "-n", self._space(host), "route", "replace", f"10.{number + 1}.0.0/24", *cable,
                     "proto", "kernel", "scope", "link", "congctl", algorithm)  # fmt: skip

    @contextlib.contextmanager
    def inside(self, host):
        """Moves this thread, and threads and processes that it starts, to the host until the block ends."""
        outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        inside = os.open(f"/var/run/netns/{self._space(host)}", os.O_RDONLY)
        try:
            _enter(inside)
            yield
        finally:
            _enter(outside)
            os.close(inside)
            os.close(outside)

    def sent(self):
        """Returns the bytes that each host has sent so far, with the headers of Ethernet, IP and TCP.

        Another host receives everything that is sent, so the sum is all traffic on the wires.
        """
        counted = {}
        for host in self.names:
            links = json.loads(_run("ip", "-n", self._space(host), "-j", "-s", "link", "show"))
            counted[host] = sum(link["stats64"]["tx"]["bytes"] for link in links if link["ifname"].startswith("eth"))
        return counted

    def stop(self):
        """Ends all processes that were started, by force if a signal does not help."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGCONT)
                    os.killpg(process.pid, sent)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                time.sleep(0.05)
        self.processes = []

    @property
    def _switch(self):
        return f"{self.prefix}-switch"

    def _space(self, host):
        return f"{self.prefix}-{host}"

    def _device(self, network):
        return f"eth{self.networks.index(network)}"

    def _build(self):
        _run("ip", "netns", "add", self._switch)
        for network in self.networks:
            _run("ip", "-n", self._switch, "link", "add", network, "type", "bridge")
            _run("ip", "-n", self._switch, "link", "set", network, "up")
        for host in self.names:
            space = self._space(host)
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            for network in self.networks:
                self._connect(host, network)

    def _connect(self, host, network):
        space, port, device = self._space(host), _port(host, network), self._device(network)
        _run("ip", "-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", device, "netns", space)
        _run("ip", "-n", self._switch, "link", "set", port, "master", network, "up")
        _run("ip", "-n", space, "address", "add", self.address(host, network) + "/24", "dev", device)
        _run("ip", "-n", space, "link", "set", device, "up")
        self._limit(space, device)
        self._limit(self._switch, port)

    def _limit(self, space, device):
        if self.rate is not None:
            _run(*_root(space, device, "add"), *_at(self.rate))

    def _ends(self, host, network):
        """Returns the ends of a cable: out of the host, and in to it."""
        return [(self._space(host), self._device(network)), (self._switch, _port(host, network))]

    def _delete(self):
        for name in [self._space(host) for host in self.names] + [self._switch]:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def _enter(space):
    if ctypes.CDLL(None, use_errno=True).setns(space, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _root(space, device, verb):
    return ["tc", "-n", space, "qdisc", verb, "dev", device, "root"]


def _at(rate):
    return ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]


def _counted(space, device, what):
    """Returns a counter of the limit or cut at the end of a cable."""
    return json.loads(_run("tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", device, "root"))[0][what]


def _port(host, network):
    return f"{host}-{network[0]}"  # at most 15 bytes


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
