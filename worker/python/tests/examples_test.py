"""The examples train: a few steps of each, with servers of their own."""
import importlib.util
import json
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
    def run_example(self, *command):
        program = support.Process([sys.executable, *map(str, command)], {"OMP_NUM_THREADS": "1"})
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
        for mode in ("onebit", "diloco-int4"):
            with self.subTest(mode):
                said = self.run_example(EXAMPLES / "characters.py", "--mode", mode, "--steps", 30, "--every", 10, "--batch-size", 2,
                                        "--validation", 4)
                report = json.loads(re.search(r"^\{.*\}$", said, re.MULTILINE).group())
                self.assertLess(report["loss"], 3.7, said)  # 4.6 without training

    def test_of_the_readmes(self):
        for folder in (support.HERE.parents[2], support.HERE.parent):
            with self.subTest(folder=folder), tempfile.TemporaryDirectory() as place:
                source = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL).group(1)
                program = Path(place) / "train.py"
                program.write_text(source)
                said = self.run_example(program)
                self.assertLess(float(re.search(r"^loss (\S+)", said, re.MULTILINE).group(1)), 0.1, said)


if __name__ == "__main__":
    unittest.main()
