"""The line in which rank 0 says what a run took, from figures by hand."""
import dataclasses
import unittest
from unittest import mock

import support  # noqa: F401, finds the package

import syncline
from syncline import _report


class Summary(unittest.TestCase):
    def test_is_of_the_steps(self):
        def stats(bytes_pushed, bytes_pulled, steps):
            return syncline.Stats(bytes_pushed, bytes_pulled, 0, 1, 1, steps, dict(
                compute=9.0, encode=0.1, push=1.0, others=0.5, publish=0.2, decode=0.0))

        with mock.patch("time.monotonic", side_effect=[10.0, 11.0, 15.0]):
            progress = _report.Progress(stats(1000, 3000, 0))
            progress.push((1024, 1024), 128)
            progress.touch()
        self.assertEqual(_report.summary(stats(1000 + 2**20, 3000 + 2**22, 2), progress, "rounds"),
                         "worker 0: 2 rounds in 5.0 s, 0.4 rounds/s, 25.6 samples/s; pushed 1 MiB (4x less than FP32), pulled 4 MiB; "
                         "waits: encode 1 %, push 9 %, others 5 %, publish 2 %, decode 0 %")
        there = dataclasses.replace(stats(1000, 3000, 2), codecs="on the GPU (4 tensors)")
        self.assertRegex(_report.summary(there, progress, "rounds"), r"decode 0 %; codecs: on the GPU \(4 tensors\)$")
        progress.samples = 1
        self.assertRegex(_report.summary(stats(1000, 3000, 1), progress, "steps"), "1 step in 5.0 s, 0.2 steps/s; pushed 0 B, pulled 0 B;")

    def test_waits_are_shares_of_all_time_until_the_session_closes(self):
        stats = syncline.Stats(0, 0, 0, 1, 1, 1, dict(compute=0.1, encode=0.0, push=1.73, others=0.1, publish=0.07, decode=0.0))
        with mock.patch("time.monotonic", side_effect=[10.0, 11.0]):
            progress = _report.Progress(stats)
            progress.touch()
        self.assertRegex(_report.summary(stats, progress, "steps"), r"in 1\.0 s.*push 86 %, others 5 %, publish 4 %, decode 0 %")

    def test_calls_counted_steps_by_their_name(self):
        stats = syncline.Stats(0, 0, 0, 1, 1, 2, dict.fromkeys(("compute", "encode", "push", "others", "publish", "decode"), 0.0))
        with mock.patch("time.monotonic", side_effect=[10.0, 11.0, 15.0]):
            progress = _report.Progress(stats)
            progress.push((4,), 10)
            progress.touch()
        self.assertRegex(_report.summary(stats, progress, "rounds", "steps"), r"0\.4 rounds/s, 2 steps/s; ")


if __name__ == "__main__":
    unittest.main()
