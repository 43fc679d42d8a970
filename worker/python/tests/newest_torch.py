#!/usr/bin/env python3
"""Runs Python with these arguments and the torch that deploy/install-deps.sh got from pip, or says that there is none."""
import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[3] / "build/venv/bin/python"
# Tests of what has nothing to do with torch's version are skipped (support.not_of_torch).
NEWEST = "SYNCLINE_TESTS_OF_NEWEST_TORCH"
WANTED = "import torch, transformers, accelerate"

if os.spawnl(os.P_WAIT, PYTHON, PYTHON, "-c", WANTED) if PYTHON.exists() else True:
    sys.exit("ModuleSkipped: build/venv has no torch, transformers and accelerate; deploy/install-deps.sh --retry test gets them from pip")
os.execve(PYTHON, [str(PYTHON), *sys.argv[1:]], {**os.environ, NEWEST: "1"})
