"""Hosts that are network namespaces, each with two cables: one to the control network, one to the data network.

    with Hosts(["coordinator", "server0", "worker0"]) as hosts:
        process = hosts.start("worker0", ["./program"], log)
        with hosts.cut("worker0", "control", "out"):
            time.sleep(1)

A cut drops all packets of a cable, in one direction ("out" of the host, "in" to it) or in "both"; nobody is told. All
lies inside of namespaces of its own: the network of the machine stays as it is. Hosts share no memory objects.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time

PREFIX = "chaos-"
SWITCH = PREFIX + "switch"
CABLES = {"control": ("eth0", "10.1.0."), "data": ("eth1", "10.2.0.")}
STOP_SECONDS = 3


def missing():
    """What is missing to run here, or None."""
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"no {tool} here; apt-get install iproute2 util-linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"no network namespaces here: {probe.stderr.strip()}"
    left = [line.split()[0] for line in probe.stdout.splitlines() if line.startswith(PREFIX)]
    return f"namespaces of another run; if it is dead: ip netns delete {' '.join(left)}" if left else None


class Hosts:
    def __init__(self, names):
        self.names = list(names)
        self.processes = []

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

    def address(self, host, network="control"):
        return f"{CABLES[network][1]}{self.names.index(host) + 1}"

    def start(self, host, command, log, environment=()):
        """Its output goes to the file `log`. Ends with the block at the latest."""
        isolated = ["ip", "netns", "exec", PREFIX + host, "unshare", "--ipc", "--"]
        process = subprocess.Popen(
            isolated + [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, env={**os.environ, **dict(environment)}, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def cut(self, host, network, direction="both"):
        device = CABLES[network][0]
        ends = {"out": [(PREFIX + host, device)], "in": [(SWITCH, _port(host, network))]}
        chosen = ends["out"] + ends["in"] if direction == "both" else ends[direction]
        for space, end in chosen:
            _run("tc", "-n", space, "qdisc", "add", "dev", end, "root", "blackhole")
        try:
            yield
        finally:
            for space, end in chosen:
                _run("tc", "-n", space, "qdisc", "del", "dev", end, "root")

    def stop(self):
        """Ends all that was started, by force where a signal does not help."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self.processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGCONT)
                    os.killpg(process.pid, sent)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                time.sleep(0.05)
        self.processes = []

    def _build(self):
        _run("ip", "netns", "add", SWITCH)
        for network in CABLES:
            _run("ip", "-n", SWITCH, "link", "add", network, "type", "bridge")
            _run("ip", "-n", SWITCH, "link", "set", network, "up")
        for host in self.names:
            space = PREFIX + host
            _run("ip", "netns", "add", space)
            for network, (device, _) in CABLES.items():
                port = _port(host, network)
                _run("ip", "-n", SWITCH, "link", "add", port, "type", "veth", "peer", "name", device, "netns", space)
                _run("ip", "-n", SWITCH, "link", "set", port, "master", network, "up")
                _run("ip", "-n", space, "address", "add", self.address(host, network) + "/24", "dev", device)
                _run("ip", "-n", space, "link", "set", device, "up")
            _run("ip", "-n", space, "link", "set", "lo", "up")

    def _delete(self):
        for name in [PREFIX + host for host in self.names] + [SWITCH]:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def _port(host, network):
    return f"{host}-{network[0]}"  # at most 15 bytes


def _run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
