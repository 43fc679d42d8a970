#!/usr/bin/env python3
"""Gives .ci/what-failed the logs of failed stages, and expects the names of the failed tests."""
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

TOOL = Path(__file__).resolve().parents[2] / ".ci" / "what-failed"

JUNIT = """<testsuite>
<testcase name="Shard.Steps" status="run"/>
<testcase name="Engine.Stops" status="fail"><failure message=""/>
<system-out>[ RUN      ] Engine.Stops
[  FAILED  ] Engine.Stops (3 ms)</system-out></testcase>
<testcase name="codec_test" status="fail"><failure message=""/>
<system-out>[ RUN      ] A.Good
[       OK ] A.Good (0 ms)
[ RUN      ] A.Bad
[  FAILED  ] A.Bad (0 ms)
[  FAILED  ] Edges/B.Bad/3, where GetParam() = 9 (0 ms)</system-out></testcase>
<testcase name="policy_test" status="fail"><failure message="Timeout"/>
<system-out>[ RUN      ] C.Good
[       OK ] C.Good (0 ms)
[ RUN      ] C.Hangs
</system-out></testcase>
</testsuite>
"""


class WhatFailed(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)

    def file(self, name: str, text: str) -> str:
        path = Path(self._folder.name) / name
        path.write_text(text)
        return str(path)

    def run_tool(self, *args: str) -> list[str]:
        done = subprocess.run([TOOL, *args], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def test_names_failed_tests_also_inside_whole_binaries(self):
        self.assertEqual(
            self.run_tool("asan", self.file("log", ""), self.file("xml", JUNIT)),
            [
                "asan: Engine.Stops",
                "asan: codec_test: A.Bad, Edges/B.Bad/3",
                "asan: policy_test: crashed or hung in C.Hangs",
            ],
        )

    def test_says_why(self):
        output = (
            "codec/a_test.cc:7: Failure\nExpected equality of these values:\n  a\n    Which is: 1\n"
            "FAIL: test_adds (average_test.Wrap)\nAssertionError: 3 != 4\n==1==ERROR: x\nSUMMARY: AddressSanitizer: stack-buffer-overflow a.cc:1\n"
        )
        junit = f'<s><testcase name="one"><failure message=""/><system-out>{output}</system-out></testcase></s>'
        self.assertEqual(
            self.run_tool("asan", self.file("log", ""), self.file("xml", junit)),
            [
                "asan: one",
                "  one said:",
                "    codec/a_test.cc:7: Failure",
                "    Expected equality of these values:",
                "    a",
                "    Which is: 1",
                "    FAIL: test_adds (average_test.Wrap)",
                "    AssertionError: 3 != 4",
                "    ==1==ERROR: x",
                "    SUMMARY: AddressSanitizer: stack-buffer-overflow a.cc:1",
            ],
        )

    def said_of(self, output: str) -> list[str]:
        """Returns what the tool says of a test suite in Python that printed `output`."""
        junit = ElementTree.Element("testsuite")
        case = ElementTree.SubElement(junit, "testcase", name="python: run")
        ElementTree.SubElement(case, "failure")
        ElementTree.SubElement(case, "system-out").text = output
        lines = self.run_tool("integration", self.file("log", ""), self.file("xml", ElementTree.tostring(junit, "unicode")))
        self.assertEqual(lines[:2], ["integration: python: run", "  python: run said:"])
        return [line.removeprefix("    ") for line in lines[2:]]

    def test_shows_what_processes_of_a_test_printed_with_the_innermost_frames_of_each_thread(self):
        frames = "".join(f'  File "/usr/lib/python3/deep{i}.py", line {i} in call\n' for i in range(9))
        output = (
            f"test_hangs (run_test.Run.test_hangs) ... FAIL\n\n{'=' * 70}\nFAIL: test_hangs (run_test.Run.test_hangs)\n{'-' * 70}\n"
            'Traceback (most recent call last):\n  File "run_test.py", line 9, in test_hangs\n    self.assertEqual(code, 0, output)\n'
            f"AssertionError: 1 != 0 : Timeout (0:01:40)!\nThread 0x1 (most recent call first):\n{frames}\n"
            f"Thread 0x2 (most recent call first):\n{frames}{'-' * 70}\nRan 1 test in 0.1s\n\nFAILED (failures=1)\n"
        )
        innermost = [f"  deep{i}.py, line {i} in call" for i in range(4)]
        self.assertEqual(
            self.said_of(output),
            [
                "FAIL: test_hangs (run_test.Run.test_hangs)",
                "AssertionError: 1 != 0 : Timeout (0:01:40)!",
                "Thread 0x1 (most recent call first):",
                *innermost,
                "Thread 0x2 (most recent call first):",
                *innermost,
            ],
        )

    def test_shows_the_beginning_and_the_end_of_what_is_long_and_the_names_of_all(self):
        output = ""
        for test in ("test_one", "test_two"):
            printed = "".join(f"line {i}\n" for i in range(100))
            output += f"{'=' * 70}\nERROR: {test} (a.B)\n{'-' * 70}\nTraceback (most recent call last):\nsyncline.errors.Refused: no\n{printed}\n"
        said = self.said_of(output + f"{'-' * 70}\nRan 2 tests in 1 s\n")
        self.assertEqual(said[:4], ["ERROR: test_one (a.B)", "syncline.errors.Refused: no", "line 0", "… 88 lines"])
        self.assertEqual(said[14:17], ["line 99", "ERROR: test_two (a.B)", "syncline.errors.Refused: no"])
        self.assertEqual((len(said), said[-1]), (30, "line 99"))

    def test_names_the_test_in_which_a_suite_hung(self):
        self.assertEqual(self.said_of("test_a (x.Y) ... ok\ntest_b (x.Y) ... "), ["test_a (x.Y) ... ok", "test_b (x.Y) ... "])

    def test_shows_compilers_errors_when_the_build_broke(self):
        log = "[1/2] Building\nFAILED: a.o\nx.cc:1:2: error: no\n[2/2] other\nninja: build stopped\n"
        self.assertEqual(
            self.run_tool("tsan", self.file("log", log), "absent.xml"),
            ["tsan: FAILED: a.o", "tsan: x.cc:1:2: error: no"],
        )

    def test_shows_the_end_of_a_log_without_known_errors(self):
        log = "".join(f"line {i}\n" for i in range(20))
        self.assertEqual(self.run_tool("cuda", self.file("log", log))[-1], "cuda: line 19")

    def test_tells_what_a_stage_did_when_its_time_was_up(self):
        log = " 1/9 Test  #7: D.Slow ..........***Timeout  9 s\ntests: stopped after 9 s, its limit\n"
        self.assertEqual(
            self.run_tool("tests", self.file("log", log), "absent.xml"),
            ["tests: D.Slow (Timeout)", "tests: tests: stopped after 9 s, its limit"],
        )

    def test_names_what_passed_only_when_repeated(self):
        log = (
            "1/9 Test #1: Engine.Stops ....***Failed  1 s\n"
            "2/9 Test #2: run: Ctrl-C stops all ....***Failed  1 s\n"
            "FAIL: test_all (run_test.Run.test_all)\nAssertionError: 1 != 0\n"
            "    Start 2: run: Ctrl-C stops all\n"
            "2/9 Test #2: run: Ctrl-C stops all ....   Passed  1 s\n"
        )
        self.assertEqual(
            self.run_tool("--repeated", self.file("log", log), self.file("xml", JUNIT)),
            ["run: Ctrl-C stops all", "    FAIL: test_all (run_test.Run.test_all)", "    AssertionError: 1 != 0"],
        )


if __name__ == "__main__":
    unittest.main()
