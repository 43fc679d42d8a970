#!/usr/bin/env python3
"""Checkpoints in a bucket of a real S3 server program (moto, in build/venv; skipped without it).

    python3 tests/integration/s3_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import re
import socket
import subprocess
import time
import unittest.mock
import urllib.request

import checkpoints_test
import cluster
from cluster import PATIENCE
from s3_server import BUCKET, BadRoad, S3Server

SEED = 7
MANY = "3000000"  # elements of the first tensor: its state is larger than a part


class InBucket(checkpoints_test.Saved):
    def setUp(self):
        super().setUp()
        self.server = self.open_server()
        self.addCleanup(self.server.close)
        environment = unittest.mock.patch.dict(os.environ, self.server.environment)
        environment.start()
        self.addCleanup(environment.stop)
        self.directory = f"s3://{BUCKET}/team/night"

    def open_server(self):
        return S3Server()

    def await_checkpoint(self, step):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if any(int(name.split("step")[1]) >= step for name in self.complete()):
                return
            time.sleep(0.1)
        self.fail(f"no checkpoint of step {step}: {self.coordinator.text()}")

    def all_are_whole(self):
        names = self.complete()
        for name in names:
            self.assertIn("is intact", self.checkpoint("verify", "test", name))
        return names


class Bucket(InBucket):
    def test_all_is_killed_and_ends_with_the_bits_of_an_undisturbed_run_on_more_servers(self):
        flags = ("--steps", "60", "--elements", MANY)
        self.begin(2, saves=False)
        undisturbed = self.assert_same_end(self.train(*flags))
        self.begin(2)
        self.assertIn(f"checkpoints can be written where=\"{self.directory} at http", self.coordinator.text())
        self.train(*flags, "--step-ms", "25", every="10 steps")
        self.await_checkpoint(20)
        self.end()
        self.assertGreater(self.server.requests("partNumber=2"), 0, "nothing came in parts")
        self.assertEqual(self.server.requests('" 403'), 0, "a signature was refused")
        self.begin(3)
        workers = self.train(*flags, every="10 steps")
        self.assertGreaterEqual(int(workers[0].await_line(r"joined step=(\d+)").group(1)), 20)
        self.assertEqual(self.assert_same_end(workers), undisturbed)
        self.assertRegex(self.coordinator.text(), r"goes on from checkpoint run1-step\d+")
        self.end()  # otherwise retention could delete the checkpoint
        self.assertLessEqual(len(self.all_are_whole()), 4, "retention keeps 3, and one that is new")

    def test_commands_look_at_what_is_there_and_delete_it(self):
        run = checkpoints_test.Ends.run_job
        said = run(self, "--servers", "2", "--checkpoint-every", "10 steps")
        self.assertIn("the last step of job test is saved: checkpoint run1-step25, ", said)
        self.assertIn("goes on from checkpoint run1-step25", run(self, "--checkpoint-every", "1 h", steps=40))
        self.assertIn("run2-step40", self.all_are_whole())
        self.assertIn("tensor0", self.checkpoint("show", "test", "run2-step40"))
        out = os.path.join(self.folder.name, "weights.safetensors")
        self.checkpoint("export", "test", "--out", out)
        self.assertEqual(len(checkpoints_test.read_safetensors(out)), 3)
        self.checkpoint("delete", "test", "run2-step40")
        self.assertNotIn("run2-step40", self.complete())
        refused = self.checkpoint("list", "tset", code=4)
        self.assertIn("there is no job 'tset'; did you mean 'test'?", refused)

    def test_what_is_wrong_shows_at_the_start(self):
        def refused(code, directory=self.directory, **environment):
            with unittest.mock.patch.dict(os.environ, environment):
                service = self.serve("refused", "--role", "coordinator", "--listen", "127.0.0.1:0", "--state-dir",
                                     self.folder.name, "--checkpoint-dir", directory)  # fmt: skip
                self.assertEqual(service.wait(), code, service.text())
                return service.text()

        self.assertIn("AWS_SECRET_ACCESS_KEY is not that of AWS_ACCESS_KEY_ID", refused(2, AWS_SECRET_ACCESS_KEY="wrong"))
        self.assertIn("does not know the key in AWS_ACCESS_KEY_ID", refused(2, AWS_ACCESS_KEY_ID="nobody"))
        self.assertIn("need AWS_ACCESS_KEY_ID", refused(2, AWS_ACCESS_KEY_ID=""))
        self.assertIn("make the bucket others, or name another", refused(2, directory="s3://others/x"))
        self.assertIn("names no bucket", refused(2, directory="s3://"))


class Away(InBucket):
    def available(self):
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as reply:
            return re.search(r"^syncline_checkpoint_store_available (\d)$", reply.read().decode(), re.MULTILINE).group(1)

    def test_a_bucket_that_is_away_ends_nothing_and_the_job_that_has_checkpoints_waits_for_it(self):
        checkpoints_test.Ends.run_job(self, "--servers", "2", "--checkpoint-every", "10 steps")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with unittest.mock.patch.dict(os.environ, {"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}"}):
            self.begin(2)
            self.coordinator.await_line("checkpoints can neither be read nor written; .*it does not answer there")
            self.assertEqual(self.available(), "0")
            waits = self.train("--steps", "40", every="10 steps")
            waits[0].await_line("waiting for its checkpoints: ")
            others = self.train("--steps", "10", resume="never", job="other")
            self.assert_same_end(others)
            self.assertEqual(self.status_of("test")["phase"], "waiting")
            self.assertRegex(self.coordinator.text(), "job 'test' waits for its checkpoints: .* does not answer")
            road = BadRoad(self.server.port, SEED, share=0, listen=port)
            self.addCleanup(road.close)
            self.assertEqual(int(waits[0].await_line(r"joined step=(\d+)").group(1)), 25)
            self.assert_same_end(waits)
            self.assertEqual(self.available(), "1")
            self.end()
        self.assertTrue([name for name in self.all_are_whole() if name.startswith("run2-")])


class Sealed(InBucket):
    def open_server(self):
        self.certificate, key = (os.path.join(self.folder.name, name) for name in ("s3.crt", "s3.key"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=s3", "-days", "1", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", self.certificate], check=True, capture_output=True)  # fmt: skip
        return S3Server(certificate=(self.certificate, key))

    def test_only_a_server_with_a_certificate_that_is_trusted_is_talked_to(self):
        refused = self.checkpoint("list", code=2)
        self.assertIn("its certificate is not trusted; name the file of its authority in AWS_CA_BUNDLE", refused)
        self.assertEqual(self.server.requests("list-type"), 0)
        with unittest.mock.patch.dict(os.environ, {"AWS_CA_BUNDLE": self.certificate}):
            checkpoints_test.Ends.run_job(self, "--servers", "2", "--checkpoint-every", "10 steps", more=("--elements", MANY))
            self.assertIn("run1-step25", self.all_are_whole())
        plain = self.server.address.replace("https", "http")
        with unittest.mock.patch.dict(os.environ, {"AWS_ENDPOINT_URL_S3": plain}):
            self.assertIn(plain, self.checkpoint("list", code=5))


class BadRoads(InBucket):
    def test_a_store_that_fails_throttles_and_truncates_costs_no_checkpoint(self):
        flags = ("--steps", "120", "--elements", MANY)
        self.begin(2, saves=False)
        undisturbed = self.assert_same_end(self.train(*flags))
        road = BadRoad(self.server.port, SEED)
        self.addCleanup(road.close)
        with unittest.mock.patch.dict(os.environ, {"AWS_ENDPOINT_URL_S3": road.address}):
            self.begin(2)
            self.train(*flags, "--step-ms", "25", every="10 steps")
            self.await_checkpoint(20)
            self.end()
            self.begin(1)
            workers = self.train(*flags, every="30 steps")
            self.assertEqual(self.assert_same_end(workers), undisturbed, f"seed {SEED}")
            self.assertEqual(self.status_of("test")["checkpoint"]["failed"], 0)
            self.end()
        self.assertTrue(all(road.met.values()), f"the road was better than meant: {road.met}")
        self.assertTrue(self.all_are_whole())


if __name__ == "__main__":
    cluster.main()
