"""Tests the wheel as a new user does: in a new virtual environment outside the checkout, with the README's program."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

for module, package in (("torch", "python3-torch"), ("pip", "python3-pip"), ("setuptools", "python3-setuptools"),
                        ("wheel", "python3-wheel"), ("ensurepip", "python3-venv")):
    if importlib.util.find_spec(module) is None:
        raise unittest.SkipTest(f"no {module}; install {package}")
if shutil.which("patchelf") is None:
    raise unittest.SkipTest("no patchelf; install it")

# The program opens the CUDA module, with or without a GPU.
CHECK_DEVICE = """
from syncline._library import library
library().syncline_device_check(1)
print(open("/proc/self/maps").read())
"""


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name)
        built = cls.run_program(sys.executable, support.HERE.parent / "build_wheel.py", "--build", support.BUILD,
                                "--out", cls.folder)
        cls.wheel = Path(built.strip())
        # Torch is the system's.
        cls.run_program(sys.executable, "-m", "venv", "--system-site-packages", cls.folder / "venv")
        cls.run_program(cls.folder / "venv/bin/pip", "install", "--quiet", "--no-deps", "--no-index", cls.wheel)

    @classmethod
    def run_program(cls, *command):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("SYNCLINE") and name != "PYTHONPATH"}
        ended = subprocess.run([str(word) for word in command], env=environment, cwd=cls.folder, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def readme_program(self):
        readme = (support.HERE.parent / "README.md").read_text()
        program = self.folder / "train.py"
        program.write_text(re.search(r"```python\n(.*?)```", readme, re.DOTALL).group(1))
        return program

    def test_is_for_every_python(self):
        self.assertRegex(self.wheel.name, r"^syncline-[\d.]+-py3-none-linux_x86_64\.whl$")
        self.assertLess(self.wheel.stat().st_size, 40 << 20)

    def test_runs_the_programs_of_the_readme(self):
        program, venv = self.readme_program(), self.folder / "venv/bin"
        said = self.run_program(venv / "python", program)
        self.assertLess(float(re.search(r"loss (\S+)", said).group(1)), 0.1)
        self.assertIn("started servers for this process", said)
        said = self.run_program(venv / "syncline", "run", "--standalone", "--nproc-per-node", "2", "--tee", "3", "--",
                                venv / "python", program)
        self.assertEqual(len(re.findall("loss ", said)), 2, said)

    def test_brings_its_own_libraries(self):
        said = self.run_program(self.folder / "venv/bin/python", "-c",
                                "import syncline; syncline.version(); print(open('/proc/self/maps').read())")
        for name in ("libsyncline.so", "libgrpc.so", "libucp.so"):
            paths = set(re.findall(rf"\S*/{re.escape(name)}\S*", said))
            self.assertTrue(paths and all(str(self.folder) in path for path in paths), (name, paths))

    def test_brings_the_codecs_of_gpus_where_they_were_built(self):
        if not (support.BUILD / "libsyncline_cuda.so").exists():
            self.skipTest("this build has no CUDA module")
        said = self.run_program(self.folder / "venv/bin/python", "-c", CHECK_DEVICE)
        module = next(self.folder.glob("venv/lib/python3*/site-packages/syncline/lib/libsyncline_cuda.so"))
        self.assertIn(str(module), said)


if __name__ == "__main__":
    unittest.main()
