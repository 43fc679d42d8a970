"""Tests that the examples train: runs a few steps of each, with its own servers."""
import importlib.util
import json
import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

import support

if importlib.util.find_spec("torch") is None:
    raise unittest.SkipTest("no torch; install python3-torch")

EXAMPLES = support.HERE.parents[1] / "examples/torch"


class Examples(unittest.TestCase):
    def run_example(self, *command, python=True):
        program = support.Process([sys.executable] * python + [*map(str, command)], {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
        self.addCleanup(program.kill)
        self.assertEqual(program.wait(180), 0, program.text())
        return program.text()

    @unittest.skipUnless(Path("/usr/share/datasets/fashion-mnist").exists(), "no pictures; install dataset-fashion-mnist")
    def test_fashion_mnist(self):
        said = self.run_example(EXAMPLES / "fashion_mnist.py", "--epochs", "1", "--steps", "101")
        first, last = (float(loss) for loss in re.findall(r"loss (\S+)", said))
        self.assertLess(last, first / 2, said)
        self.assertGreater(float(re.search(r"accuracy (\S+)%", said).group(1)), 60, said)

    def test_characters(self):
        for mode in (["onebit"], ["diloco-int4"], ["bsp", "--autocast"]):
            with self.subTest(mode):
                said = self.run_example(EXAMPLES / "characters.py", "--mode", *mode, "--steps", 30, "--sync-every", 10, "--batch-size", 2,
                                        "--validation", 4)
                report = json.loads(re.search(r"^\{.*\}$", said, re.MULTILINE).group())
                self.assertLess(report["loss"], 3.7, said)  # 4.6 without training

    def test_ddp_hook(self):
        said = self.run_example(os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--nproc-per-node", 2, "--", sys.executable,
                                EXAMPLES / "ddp_hook.py", "--steps", 100, python=False)
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", said)]
        self.assertLess(losses[-1], 0.05, said)  # 0.38 at first
        self.assertGreater(float(re.search(r"([\d.]+) times less than FP32", said).group(1)), 8, said)

    def test_of_the_readmes(self):
        for folder in (support.HERE.parents[2], support.HERE.parent):
            with self.subTest(folder=folder), tempfile.TemporaryDirectory() as place:
                source = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL).group(1)
                program = Path(place) / "train.py"
                program.write_text(source)
                said = self.run_example(program)
                self.assertLess(float(re.search(r"^loss (\S+)", said, re.MULTILINE).group(1)), 0.1, said)


class Length(unittest.TestCase):
    def test_of_each_example_is_at_most_120_lines(self):
        programs = sorted(EXAMPLES.glob("*.py"))
        self.assertGreaterEqual(len(programs), 5)
        self.assertEqual([f"{program.name}: {lines}" for program in programs if (lines := len(program.read_text().splitlines())) > 120], [])


class Notebook(unittest.TestCase):
    def test_runs_from_top_to_bottom(self):
        """Runs a notebook as nbclient would, cell by cell in one namespace, because jupyter is not installed everywhere."""
        cells = json.loads((support.HERE.parents[2] / "docs/quickstart.ipynb").read_text())["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        with tempfile.TemporaryDirectory() as folder:
            program = support.Process([sys.executable, "-c", "import sys\nspace = {}\nfor cell in sys.argv[1:]: exec(cell, space)", *code],
                                      {"TMPDIR": folder, "OMP_NUM_THREADS": "1"})
            self.addCleanup(program.kill)
            self.assertEqual(program.wait(), 0, program.text())
        said = program.text()
        alone, compressed, after = (float(loss) for loss in re.findall(r"^loss after .*: (\S+)$", said, re.MULTILINE))
        self.assertLess(max(alone, compressed, after), 0.1, said)
        self.assertGreater(float(re.search(r"gradients were (\S+) times smaller", said).group(1)), 8, said)
        self.assertEqual(len(re.findall(r"rank [01] of 2: ", said)), 2, said)


class Elastic(support.ServersTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stop = Path(folder.name) / "stop"

    def worker(self, rank):
        command = [sys.executable, EXAMPLES / "elastic.py", "--epochs", 10**6, "--pause", 0.002, "--until", self.stop]
        program = support.Process([*map(str, command)], self.environment(rank, 2))
        self.addCleanup(program.kill)
        return program

    def test_workers_that_are_killed_and_join(self):
        workers = [self.worker(rank) for rank in range(2)]
        workers[1].await_line("rank 1 epoch 3 ")
        workers[1].kill()
        workers[0].await_line("epoch changed .*members=1")
        again, third = self.worker(1), self.worker(2)
        for program, rank in ((again, 1), (third, 2)):
            self.assertGreater(int(program.await_line(f"rank {rank} begins at epoch .*, step (\\d+)").group(1)), 60)
        workers[0].await_line("workers 3")
        self.stop.touch()
        for program in (workers[0], again, third):
            self.assertEqual(program.wait(), 0, program.text())
            program.await_line("ends at step .*, best loss 0.0")


if __name__ == "__main__":
    unittest.main()
