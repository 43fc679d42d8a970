"""Hosts that are network namespaces, each with one cable of a given rate to a common switch.

    with Links(["coordinator", "server0", "worker0"], "100mbit") as links:
        process = links.start("worker0", ["./program", "--peer", links.address("server0")], log)
        before = links.sent()

Everything lies inside of namespaces of its own: the network of the machine stays as it is, and deleting the namespaces
deletes cables, switch and limits. Hosts share no System V and POSIX memory objects either, as real ones would not.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

PREFIX = "slownet-"
SWITCH = PREFIX + "switch"
STOP_SECONDS = 3


class Links:
    """`rate` as tc writes it, or None for cables without a limit."""

    def __init__(self, hosts, rate):
        self.hosts = list(hosts)
        self.rate = rate
        self.processes = []

    def __enter__(self):
        left = [line.split()[0] for line in _output("ip", "netns", "list").splitlines() if line.startswith(PREFIX)]
        if left:
            sys.exit(f"slow_network: there are namespaces of another run; if it is dead: ip netns delete {left[0]} ...")
        try:
            self._build()
        except BaseException:
            self._delete()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        self._delete()

    def address(self, host):
        return f"10.0.0.{self.hosts.index(host) + 1}"

    def start(self, host, command, log, environment=()):
        """Its output goes to the file `log`. Ends with the block at the latest."""
        isolated = ["ip", "netns", "exec", PREFIX + host, "unshare", "--ipc", "--"]
        process = subprocess.Popen(
            isolated + [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **dict(environment)},
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def stop(self):
        """Ends all that was started, by force where a signal does not help."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    os.killpg(process.pid, sent)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                time.sleep(0.05)
        self.processes = []

    def sent(self):
        """Bytes that each host has sent so far, with the headers of Ethernet, IP and TCP, as its end of the cable counts.

        Whatever is sent is received by another host, so the sum is all that went over the wires.
        """
        counted = {}
        for host in self.hosts:
            (link,) = json.loads(_output("ip", "-n", PREFIX + host, "-j", "-s", "link", "show", "eth0"))
            counted[host] = link["stats64"]["tx"]["bytes"]
        return counted

    def _build(self):
        _ip("netns", "add", SWITCH)
        _ip("-n", SWITCH, "link", "add", "switch", "type", "bridge")
        _ip("-n", SWITCH, "link", "set", "switch", "up")
        for host in self.hosts:
            space = PREFIX + host
            _ip("netns", "add", space)
            _ip("-n", SWITCH, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", SWITCH, "link", "set", host, "master", "switch", "up")
            _ip("-n", space, "address", "add", self.address(host) + "/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")
            self._limit(space, "eth0")
            self._limit(SWITCH, host)

    def _limit(self, space, device):
        if self.rate is None:
            return
        bucket = ["burst", "256kb", "latency", "50ms"]
        _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate, *bucket)

    def _delete(self):
        for name in [PREFIX + host for host in self.hosts] + [SWITCH]:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def require():
    """Says what is missing, if anything is, and ends."""
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"slow_network: no {' and no '.join(missing)} here; apt-get install iproute2 util-linux")
    if os.geteuid() != 0:
        sys.exit("slow_network: namespaces and limits need root; run it with sudo")


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _ip(*words):
    return _run("ip", *words)


def _output(*words):
    return _run(*words)
