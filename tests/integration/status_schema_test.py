#!/usr/bin/env python3
"""Compares the output of `syncline status --json` for a running job with docs/status.schema.json.

    python3 tests/integration/status_schema_test.py --build build/release [-v]

The other tests of this folder also compare each status that they request, if jsonschema is installed. Without it, this
test is skipped, so that everyone sees it.
"""

import json
import sys
import unittest
import urllib.request

import cluster


@unittest.skipIf(cluster.jsonschema is None, "no jsonschema: no status is compared with its schema")
class StatusSchema(cluster.ClusterTest):
    worker_env = {"SYNCLINE_DURABILITY": "peer", "SYNCLINE_GOALS": "step_p95_ms<=60000,participation>=0.01",
                  "SYNCLINE_ANSWERS": "exclude_straggler,min_workers=1"}

    def test_a_running_job_and_the_admin_port_are_as_the_schema_says(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "20") for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        self.status_of("test")
        with open(cluster.SCHEMA) as file:
            schema = json.load(file)
        with urllib.request.urlopen(f"http://{self.admin}/status", timeout=5) as reply:
            status = json.load(reply)
        cluster.jsonschema.validate(status, schema)
        self.assertEqual(len(status["jobs"][0]["backups"]), 2)
        self.assertEqual([goal["goal"] for goal in status["jobs"][0]["goals"]], ["step_p95_ms", "participation"])
        self.assertEqual(status["jobs"][0]["answers"]["setting"], "exclude_straggler,min_workers=1")
        status["jobs"][0]["backups"][0]["another"] = 1
        with self.assertRaisesRegex(cluster.jsonschema.ValidationError, "another"):
            cluster.jsonschema.validate(status, schema)


if __name__ == "__main__":
    sys.exit(cluster.main())
