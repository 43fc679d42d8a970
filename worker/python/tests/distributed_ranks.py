"""Starts ranks of the torch.distributed backend "syncline", each in a process that is forked with torch loaded."""
import faulthandler
import os
import signal
import sys
import tempfile
import textwrap
import time
import traceback
import unittest

import support
from syncline import _group

try:
    import torch
except ImportError:
    raise unittest.SkipTest("torch is missing (apt-get install python3-torch)") from None

RANKS = 3
PREAMBLE = """
import os, sys, time
import torch
import torch.distributed as dist
import syncline.torch.distributed
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("syncline", rank=rank, world_size=ranks)
def same(found, expected):
    assert torch.equal(found, torch.as_tensor(expected, dtype=found.dtype)), (found, expected)
def refused(said, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except (NotImplementedError, RuntimeError, ValueError, TypeError) as error:
        assert said in str(error), error
        return
    raise AssertionError(f"not refused: {call} {arguments}")
"""


def be_rank(program, environment, output):
    """Runs a program in a child that has loaded torch already, which takes seconds. Does not return."""
    code = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        os.environ.update(environment)
        faulthandler.enable(2)
        faulthandler.dump_traceback_later(100, exit=True, file=2)
        path = environment["PROGRAM"]
        exec(compile(program, path, "exec"), {"__name__": "__main__", "__file__": path})
        _group.settle_all()  # as at the end of a program
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def await_exit(child):
    deadline = time.monotonic() + support.PATIENCE
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "it hung"


def run_ranks(body, ranks=RANKS, environment_of=lambda rank: {}, preamble=PREAMBLE):
    """Runs the program in `ranks` processes. Returns what each printed, and its exit code."""
    # As with torchrun, the store belongs to no rank: a rank that ends does not take it away from a rank that is still to come.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    program = preamble + textwrap.dedent(body)
    with tempfile.TemporaryDirectory() as folder:
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo",
                  "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
                  "PROGRAM": f"{folder}/program.py"}
        outputs = [tempfile.TemporaryFile("w+") for _ in range(ranks)]
        children = []
        for rank, output in enumerate(outputs):
            children.append(os.fork())
            if children[-1] == 0:
                be_rank(program, {**common, "RANK": str(rank), **environment_of(rank)}, output)
        codes = [await_exit(child) for child in children]
        results = []
        for output, code in zip(outputs, codes):
            with output:
                output.seek(0)
                results.append((output.read(), code))
        return results
