#!/usr/bin/env python3
"""`syncline bench pushpull --gpu`: workers whose tensors are in the memory of a GPU, which is emulated.

    python3 tests/integration/gpu_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import subprocess
import unittest

import cluster

MODULE = "comm/codec/cuda/fake_module/libsyncline_cuda_fake.so"
SMALL = ["--workers=2", "--servers=2", "--bytes=800000", "--tensor-bytes=500000", "--warmup=1", "--steps=3"]


def bench(*flags, **env):
    """Runs the bench, and returns the finished process."""
    module = os.path.join(cluster.BUILD, MODULE)
    return subprocess.run([os.path.join(cluster.BUILD, "syncline"), "bench", "pushpull", *flags], capture_output=True, text=True,
                          timeout=cluster.PATIENCE * 4, env={**os.environ, "SYNCLINE_CUDA_MODULE": module, **env})  # fmt: skip


class OnAGpu(unittest.TestCase):
    def test_weights_are_right_with_any_codec(self):
        for codec in ("fp32", "bf16", "int8:vectors=1", "onebit:vectors=1"):
            bytes_of = []
            for where in ("--gpu", "--no-gpu"):
                done = bench(where, *SMALL, "--codec", codec, "--json")
                self.assertEqual(done.returncode, 0, done.stderr)  # each worker has checked its weights
                report = json.loads(done.stdout)
                bytes_of.append((report["bytes_pushed"], report["bytes_pulled"]))
            self.assertEqual(bytes_of[0], bytes_of[1], codec)

    def test_weights_of_two_bytes_are_right(self):
        for dtype in ("bf16", "fp16"):
            done = bench("--gpu", *SMALL, "--dtype", dtype, "--codec", "bf16")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_error_of_the_gpu_ends_the_worker_with_its_words(self):
        done = bench("--gpu", *SMALL, "--codec", "onebit:vectors=1", SYNCLINE_FAKE_CUDA_FAILS="20")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"CUDA device 0: .*: unspecified launch failure \(error 719\)")

    def test_without_a_gpu_the_worker_says_what_is_missing(self):
        done = bench("--gpu", *SMALL, SYNCLINE_CUDA_MODULE="/nonexistent.so")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("module at /nonexistent.so", done.stderr)


if __name__ == "__main__":
    cluster.main()
