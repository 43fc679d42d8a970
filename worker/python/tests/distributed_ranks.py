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

import nursery
import support
from syncline import _group

try:
    torch = nursery.import_torch()
except ImportError:
    raise unittest.SkipTest("torch is missing (apt-get install python3-torch)") from None

RANKS = 3
PORT_DIGITS = 5
PREAMBLE = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
import syncline.torch.distributed
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
# A rank that waits in vain says for whom, before its time is over (be_rank).
dist.init_process_group("syncline", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
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


def await_exits(children):
    """Returns the exit codes of the children by their ids, in the order in which they end. A child that hung is killed."""
    deadline = time.monotonic() + support.PATIENCE
    codes = {}
    while len(codes) < len(children):
        for child in [child for child in children if child not in codes]:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                codes[child] = "it hung"
        time.sleep(0.005)
    return codes


def tell(results, order):
    """Returns what ranks that failed printed, the first to end first: it is often the reason why others failed or hung."""
    return "\n".join(f"rank {rank} ended with {results[rank][1]}:\n{results[rank][0]}" for rank in order if results[rank][1] != 0)


def run_ranks(body, ranks=RANKS, environment_of=lambda rank: {}, preamble=PREAMBLE):
    """Runs the program in `ranks` processes. Returns what each printed, and its exit code. A rank that failed tells what all such printed."""
    program = preamble + textwrap.dedent(body)
    with tempfile.TemporaryDirectory() as folder:
        common = {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo",
                  "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
                  "PROGRAM": f"{folder}/program.py"}
        outputs = [tempfile.TemporaryFile("w+") for _ in range(ranks)]
        # The store has a thread, and a lock that it holds while this process forks would never be released in the child.
        ports, told_ports = os.pipe()
        children = []
        for rank, output in enumerate(outputs):
            children.append(os.fork())
            if children[-1] == 0:
                os.close(told_ports)
                common["MASTER_PORT"] = os.read(ports, PORT_DIGITS).decode()
                be_rank(program, {**common, "RANK": str(rank), **environment_of(rank)}, output)
        # As with torchrun, the store belongs to no rank: a rank that ends does not take it away from a rank that is still to come.
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(told_ports, ranks * f"{store.port:0{PORT_DIGITS}}".encode())
        os.close(ports)
        os.close(told_ports)
        codes = await_exits(children)
        results = []
        for output, child in zip(outputs, children):
            with output:
                output.seek(0)
                results.append((output.read(), codes[child]))
    told = tell(results, [children.index(child) for child in codes])
    return [(output if code == 0 else told, code) for output, code in results]
