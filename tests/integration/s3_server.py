"""A real S3 server program (moto) that checks signatures, and an unreliable relay to it.

    server = S3Server()             # unittest.SkipTest without moto; S3Server(certificate=(file, key)): HTTPS
    os.environ.update(server.environment)
    road = BadRoad(server.port, seed=1)   # at road.address
    server.close()

moto comes with deploy/install-deps.sh, from PyPI into build/venv. Its IAM knows one user, whose keys are in `environment`.
"""

import http.client
import http.server
import json
import os
import random
import socket
import subprocess
import threading
import unittest

import cluster

BUCKET = "models"
SET_UP = """
import boto3, json, sys
def client(service):
    return boto3.client(service, verify=False, endpoint_url=sys.argv[1], region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y")
iam = client("iam")
client("s3").create_bucket(Bucket=sys.argv[2])
iam.create_user(UserName="syncline")
allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
iam.put_user_policy(UserName="syncline", PolicyName="all", PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))
key = iam.create_access_key(UserName="syncline")["AccessKey"]
print(json.dumps([key["AccessKeyId"], key["SecretAccessKey"]]))
"""
SET_UP_REQUESTS = 4  # these requests need no key


def python_with_moto():
    for build in (cluster.BUILD, os.path.join(os.path.dirname(__file__), "../../build/x")):
        python = os.path.join(os.path.dirname(os.path.abspath(build)), "venv/bin/python")
        if os.path.exists(python) and subprocess.run([python, "-c", "import moto.server, boto3"], capture_output=True).returncode == 0:
            return python
    raise unittest.SkipTest("moto is not installed (deploy/install-deps.sh)")


class S3Server:
    def __init__(self, certificate=None):
        python = python_with_moto()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"{'https' if certificate else 'http'}://127.0.0.1:{self.port}"
        tls = ["--ssl-cert", certificate[0], "--ssl-key", certificate[1]] if certificate else []
        environment = {"INITIAL_NO_AUTH_ACTION_COUNT": str(SET_UP_REQUESTS)}
        self.process = cluster.Process("moto", [python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port), *tls], environment)
        self.process.await_line("Running on")
        done = subprocess.run([python, "-c", SET_UP, self.address, BUCKET], capture_output=True, text=True, timeout=cluster.PATIENCE)
        if done.returncode != 0:
            self.close()
            raise AssertionError(done.stderr)
        key, secret = json.loads(done.stdout)
        self.environment = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "",
                            "AWS_ENDPOINT_URL_S3": self.address, "AWS_REGION": "us-east-1"}  # fmt: skip

    def requests(self, pattern):
        """Returns the number of lines of its log that match."""
        return self.process.text().count(pattern)

    def close(self):
        self.process.kill()


class BadRoad:
    """Passes requests on. For random ones, by `seed`, it answers 503, breaks the connection before or after the server
    has carried out the request, or sends half of the answer."""

    FAULTS = ("503", "before", "after", "half")

    def __init__(self, port, seed, share=0.2, listen=0):
        self.met = {fault: 0 for fault in self.FAULTS}
        self.drawn = random.Random(seed)
        self.lock = threading.Lock()
        road = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                road.pass_on(self, port, share)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", listen), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda request, client: None  # processes are killed in the middle of a request
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def draw(self, share):
        with self.lock:
            fault = self.drawn.choice(self.FAULTS) if self.drawn.random() < share else None
            if fault:
                self.met[fault] += 1
            return fault

    def pass_on(self, handler, port, share):
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        fault = self.draw(share)
        if fault == "before":
            handler.close_connection = True
            return
        if fault == "503":
            handler.send_response(503)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=cluster.PATIENCE)
        # Headers are sent unchanged, including Host, because they are signed.
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if fault == "after":
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                handler.send_header(name, value)
        if handler.command == "HEAD":
            handler.send_header("Content-Length", answer.getheader("Content-Length", "0"))
            handler.end_headers()
            return
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if fault == "half":
            content = content[: len(content) // 2]
            handler.close_connection = True
        handler.wfile.write(content)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
