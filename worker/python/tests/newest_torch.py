#!/usr/bin/env python3
"""Runs Python with these arguments and the torch that deploy/install-deps.sh got from pip, or says that there is none."""
import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[3] / "build/venv/bin/python"
WANTED = "import torch, transformers, accelerate"

if os.spawnl(os.P_WAIT, PYTHON, PYTHON, "-c", WANTED) if PYTHON.exists() else True:
    sys.exit("ModuleSkipped: build/venv has no torch, transformers and accelerate; deploy/install-deps.sh --retry test gets them from pip")
os.execv(PYTHON, [str(PYTHON), *sys.argv[1:]])
