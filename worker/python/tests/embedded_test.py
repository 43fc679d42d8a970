"""Tests of embedded servers, which a program starts if it has no coordinator: their settings, their log lines, and how they end."""
import contextlib
import importlib.util
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import support

if importlib.util.find_spec("numpy") is None:
    raise unittest.SkipTest("no numpy; install python3-numpy")

import syncline
from syncline import _embedded


class EmbeddedServers(unittest.TestCase):
    SOURCE = """
        import numpy, sys, syncline, time
        weights = numpy.zeros(4, numpy.float32)
        session = syncline.Session(optimizer="sgd:lr=1")
        tensor = session.declare("w", weights)
        session.start()
        session.push_pull(tensor, numpy.ones(4, numpy.float32))
        session.wait(tensor)
        print("weights", weights[0])
    """

    def test_need_no_setting(self):
        program = support.start_program(self, self.SOURCE)
        self.assertEqual(program.wait(), 0, program.text())
        self.assertIn("weights -1.0", program.text())
        address = program.await_line(r"started servers for this process, (\S+),").group(1)
        self.assert_gone(address)

    def test_end_with_a_program_that_is_killed(self):
        program = support.start_program(self, self.SOURCE + "\n        time.sleep(60)")
        program.await_line("weights")
        address = program.await_line(r"started servers for this process, (\S+),").group(1)
        program.process.kill()
        self.assert_gone(address)

    def test_that_do_not_end_are_killed(self):
        script = "trap '' TERM\necho syncline: ready control=a admin=$$\nwhile :; do sleep 0.1; done"
        with self.server(script), mock.patch.object(_embedded, "STOP_SECONDS", 0.2):
            servers = _embedded.EmbeddedServers("10s")
            servers.stop()
        deadline = time.monotonic() + support.PATIENCE
        while Path(f"/proc/{servers.admin}/exe").exists() and time.monotonic() < deadline:  # until init has seen it
            time.sleep(0.01)
        self.assertFalse(Path(f"/proc/{servers.admin}/exe").exists())
        self.assertFalse(Path(servers._folder).exists())

    @unittest.skipUnless(os.access("/proc/sys/kernel/ns_last_pid", os.W_OK), "only root says which number the next process has")
    def test_that_died_are_not_confused_with_a_later_process_of_that_number(self):
        with self.server("echo syncline: ready control=a admin=$$; exec >&-; sleep 0.2"):
            servers = _embedded.EmbeddedServers("10s")
        self.addCleanup(servers.stop)
        deadline = time.monotonic() + support.PATIENCE
        while Path(f"/proc/{servers.admin}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(50):
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(int(servers.admin) - 1))
            stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
            self.addCleanup(stranger.wait)
            self.addCleanup(stranger.kill)
            if stranger.pid == int(servers.admin):
                break
        else:
            self.skipTest("other processes took that number first")
        servers.stop()
        self.assertIsNone(stranger.poll())

    def test_are_for_one_worker(self):
        program = support.start_program(self, self.SOURCE, {"WORLD_SIZE": "4", "RANK": "1"})
        self.assertEqual(program.wait(), 2)
        self.assertRegex(program.text(), "InvalidArgument: there are 4 workers .* SYNCLINE_COORDINATOR")

    def test_are_not_started_for_options_that_make_no_sense(self):
        with mock.patch.object(_embedded.EmbeddedServers, "__init__", side_effect=AssertionError("started")):
            for options, why in (({"mode": "bps"}, "bsp, ssp and asp"), ({"push": "onbeit"}, "onebit"), ({"failure_timeout": "1ms"}, "")):
                with self.assertRaisesRegex(syncline.InvalidArgument, why):
                    syncline.Session(**options)

    def test_that_cannot_start_say_why_at_once(self):
        begin = time.monotonic()
        with mock.patch.object(_embedded, "START_SECONDS", 600.0), mock.patch.dict(os.environ, SYNCLINE_MEMORY="lots"):
            with self.assertRaisesRegex(syncline.InvalidArgument, "(?s)SYNCLINE_MEMORY=lots.*exit code 2.*--memory: 'lots'"):
                _embedded.EmbeddedServers("10s")
        self.assertLess(time.monotonic() - begin, support.PATIENCE)

    def test_that_crash_as_they_start_may_be_started_again(self):
        with self.server("echo out of luck >&2; kill -9 $$"), mock.patch.object(_embedded, "START_SECONDS", 600.0):
            with self.assertRaisesRegex(syncline.Unavailable, "exit code 137; they said: out of luck"):
                _embedded.EmbeddedServers("10s")

    def test_take_none_of_the_settings_of_other_servers(self):
        program = support.start_program(self, self.SOURCE, {
            "SYNCLINE_SERVERS": "2", "SYNCLINE_ROLE": "server", "SYNCLINE_DATA_PLANE": "rdma", "SYNCLINE_MEMORY": "1GiB"})
        self.assertEqual(program.wait(), 0, program.text())
        self.assertIn("weights -1.0", program.text())

    def test_take_the_settings_that_are_meant_for_them(self):
        with self.server("env | grep SYNCLINE_ >&2; echo syncline: ready control=a admin=b"):
            with mock.patch.dict(os.environ, SYNCLINE_MEMORY="1GiB", SYNCLINE_LOG_LEVEL="debug", SYNCLINE_JOB="j"):
                servers = _embedded.EmbeddedServers("10s")
                self.addCleanup(servers.stop)
        said = servers._said()
        self.assertIn("SYNCLINE_MEMORY=1GiB", said)
        self.assertIn("SYNCLINE_LOG_LEVEL=debug", said)
        self.assertNotIn("SYNCLINE_JOB", said)

    def test_save_where_the_environment_says(self):
        source = self.SOURCE.replace('optimizer="sgd:lr=1"', 'optimizer="sgd:lr=1", durability="disk", checkpoint_every="1 step"')
        source = source.replace("        print(", '''        while not list(__import__("pathlib").Path(sys.argv[1]).glob("checkpoints/**/manifest.json")):
            time.sleep(0.05)
        print(''')
        with tempfile.TemporaryDirectory() as folder:
            program = support.start_program(self, source.replace("sys.argv[1]", repr(folder)), {
                "SYNCLINE_CHECKPOINT_DIR": f"{folder}/checkpoints", "SYNCLINE_JOURNAL_DIR": f"{folder}/journal"})
            self.assertEqual(program.wait(), 0, program.text())
            self.assertTrue(list(Path(folder).glob("journal/**/*")))

    def test_have_no_certificates(self):
        program = support.start_program(self, self.SOURCE, {"SYNCLINE_TLS_CA": "ca.pem"})
        self.assertEqual(program.wait(), 2)
        self.assertRegex(program.text(), "InvalidArgument: tls_ca is set .SYNCLINE_TLS_CA. but no coordinator")

    @contextlib.contextmanager
    def server(self, script):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "syncline"
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
            with mock.patch.object(_embedded, "binary_path", lambda: path):
                yield

    def assert_gone(self, address):
        deadline = time.monotonic() + 15
        while any(address in line for line in listening()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertNotIn(address, "\n".join(listening()))


def listening():
    """Returns the local addresses of this host's listening TCP sockets."""
    lines = []
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = row.split()
        if fields[3] == "0A":
            host, port = fields[1].split(":")
            lines.append(".".join(str(byte) for byte in reversed(bytes.fromhex(host))) + f":{int(port, 16)}")
    return lines


if __name__ == "__main__":
    unittest.main()
