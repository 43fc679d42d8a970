#!/usr/bin/env python3
"""`syncline run` pushes a job's progress to a TrainJob, whose status server is one in Python: it answers, refuses, fails, hangs or drips.

    python3 tests/integration/trainjob_test.py --build build/release [-v]
"""

import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

import cluster

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/ml/trainjobs/bert/status"
EVERY = 5.0  # seconds between two pushes, at least


class StatusServer:
    """Like that of Kubeflow Trainer. `answer` is a status, "hang" (no answer) or "drip" (its head byte by byte)."""

    def __init__(self, certificate, key):
        self.answer = 200
        self.token = "first"
        self.changed = threading.Condition()
        self.pushes = []  # (time, status of the answer, trainerStatus)
        self.ends = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                outer.take(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        # The handshake is made by the first read, on the thread of its connection.
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}{PATH}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, request):
        at = time.monotonic()
        body = request.rfile.read(int(request.headers["Content-Length"]))
        answer = self.answer
        if answer == 200 and request.headers["Authorization"] != f"Bearer {self.token}":
            answer = 401
        if request.path != PATH:
            answer = 404
        with self.changed:
            self.pushes.append((at, answer, json.loads(body)["trainerStatus"]))
            self.changed.notify_all()
        if answer == "hang":
            self.ends.wait(300)
        elif answer == "drip":
            self.drip(request.wfile)
        else:
            reply = json.dumps({"kind": "Status", "message": "as the test says"}).encode()
            request.send_response(answer)
            request.send_header("Content-Length", str(len(reply)))
            request.end_headers()
            request.wfile.write(reply)

    def drip(self, out):
        try:
            while not self.ends.wait(0.2):
                out.write(b"H")
                out.flush()
        except OSError:  # the other side has given up
            pass

    def await_push(self, is_wanted):
        """Waits for and returns the status of the first push for which is_wanted(answer, status) holds."""
        deadline = time.monotonic() + cluster.PATIENCE
        with self.changed:
            while True:
                for _, answer, status in self.pushes:
                    if is_wanted(answer, status):
                        return status
                if not self.changed.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no such push: {self.pushes}")

    def close(self):
        self.ends.set()
        self.server.shutdown()
        self.server.server_close()


def metric(status, name):
    return next((one["value"] for one in status["metrics"] if one["name"] == name), None)


class TrainJob(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.leash = self.path("leash")
        for command in (["init", "certs"], ["init", "others"]):
            subprocess.run([f"{cluster.BUILD}/syncline", "certs", *command], cwd=self.folder, check=True, capture_output=True, timeout=120)
        self.server = StatusServer(self.path("certs/coordinator.crt"), self.path("certs/coordinator.key"))
        self.addCleanup(self.server.close)
        self.write_token("first")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write_token(self, token):
        with open(self.path("token.new"), "w") as file:
            file.write(f"{token}\n")
        os.rename(self.path("token.new"), self.path("token"))

    def allow(self, steps):
        with open(f"{self.leash}.new", "w") as file:
            file.write(f"{steps}\n")
        os.rename(f"{self.leash}.new", self.leash)

    def start(self, steps, *flags, ca="certs/ca.crt", url=None):
        environment = {"KUBEFLOW_TRAINER_SERVER_URL": url or self.server.url, "KUBEFLOW_TRAINER_SERVER_TOKEN": self.path("token"),
                       "KUBEFLOW_TRAINER_SERVER_CA_CERT": self.path(ca)}  # fmt: skip
        run = cluster.Process("run", [
            f"{cluster.BUILD}/syncline", "run", "--standalone", "--nproc-per-node", "2", "--failure-timeout", f"{cluster.FAILURE_TIMEOUT}s",
            "--total-steps", str(steps), *flags, "--", f"{cluster.BUILD}/steps_worker", "--steps", str(steps), "--leash", self.leash,
        ], environment)  # fmt: skip
        self.addCleanup(run.kill)
        return run

    def pushes_of_metrics(self, run, result):
        admin = run.await_line(r"dashboard (http://\S+),").group(1)
        with urllib.request.urlopen(f"{admin}/metrics", timeout=cluster.PATIENCE) as reply:
            text = reply.read().decode()
        found = re.search(rf'^syncline_trainjob_pushes_total{{.*result="{result}"}} (\d+)$', text, re.MULTILINE)
        return int(found.group(1)) if found else None

    def await_metrics(self, run, result, count):
        deadline = time.monotonic() + cluster.PATIENCE
        while (self.pushes_of_metrics(run, result) or 0) < count:
            self.assertLess(time.monotonic(), deadline, f"never {count} pushes are {result}")
            time.sleep(0.2)

    def test_progress_is_pushed_until_the_end_with_the_token_of_the_moment(self):
        self.allow(12)
        run = self.start(40)
        status = self.server.await_push(lambda answer, status: metric(status, "step") == "12")
        self.assertEqual(status["progressPercentage"], 30)
        self.assertEqual(metric(status, "total_steps"), "40")
        self.assertEqual(metric(status, "workers"), "2")
        self.assertRegex(status["lastUpdatedTime"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.await_metrics(run, "sent", 1)
        self.assertEqual(self.pushes_of_metrics(run, "failed"), 0)
        self.server.token = "second"
        self.write_token("second")
        self.allow(20)
        self.server.await_push(lambda answer, status: metric(status, "step") == "20")
        self.allow(40)
        self.assertEqual(run.wait(), 0, run.text())
        times = [at for at, _, _ in self.server.pushes]
        for earlier, later in zip(times[:-2], times[1:-1]):
            self.assertGreaterEqual(later - earlier, EVERY)
        self.assertEqual({answer for _, answer, _ in self.server.pushes}, {200})
        last = self.server.pushes[-1][2]
        self.assertEqual((last["progressPercentage"], last["estimatedRemainingSeconds"]), (100, 0))
        self.assertNotIn("TrainJob", run.text(), "nothing is said if nothing is wrong")

    def test_refusals_and_errors_are_said_once_and_counted_and_the_job_goes_on(self):
        self.server.token = "another"
        self.allow(10)
        run = self.start(20)
        run.await_line("the TrainJob does not show the job's progress: .*HTTP 401, as the test says")
        self.server.answer = 500
        self.await_metrics(run, "failed", 2)
        self.server.answer, self.server.token = 200, "first"
        self.allow(20)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(self.server.pushes[-1][2]["progressPercentage"], 100)
        self.assertEqual(run.text().count("the TrainJob does not show"), 1)
        self.assertEqual(run.text().count("the TrainJob shows the job's progress now"), 1)
        self.assertNotIn("first", run.text(), "a token is shown")

    def check_a_peer_that_does_not_answer(self, answer):
        self.server.answer = answer
        self.allow(10)
        run = self.start(20)
        run.await_line(r"the TrainJob does not show the job's progress: .*no answer within 5s")
        self.await_metrics(run, "failed", 1)
        self.allow(20)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(self.server.pushes[-1][2]["progressPercentage"], 100, "the end was tried, too")

    def test_a_server_that_hangs_does_not_harm_the_job(self):
        self.check_a_peer_that_does_not_answer("hang")

    def test_a_server_that_answers_byte_by_byte_does_not_harm_the_job(self):
        self.check_a_peer_that_does_not_answer("drip")

    def test_no_token_goes_to_a_server_that_is_not_vouched_for(self):
        self.allow(10)
        run = self.start(20, ca="others/ca.crt")
        run.await_line(r"the TrainJob does not show the job's progress: .* its certificate is not vouched for")
        self.allow(20)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(self.server.pushes, [])

    def test_wrong_variables_are_said_and_never_pushes_nothing(self):
        self.allow(20)
        run = self.start(20, url="http://127.0.0.1:1/status")
        self.assertEqual(run.wait(), 0, run.text())
        self.assertIn("the TrainJob will not show the job's progress: KUBEFLOW_TRAINER_SERVER_URL is 'http://127.0.0.1:1/status', "
                      "which does not begin with https://", run.text())  # fmt: skip
        run = self.start(20, "--trainjob-status", "never")
        self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(self.server.pushes, [])


if __name__ == "__main__":
    sys.exit(cluster.main())
