"""Tests of the torch.distributed backend "syncline": its registration, and what the works of operations keep."""
import os
import subprocess
import sys
import unittest

import support
from distributed_ranks import run_ranks


class RegisterTest(unittest.TestCase):
    def test_syncline_torch_alone_registers_the_backend(self):
        said = subprocess.run([sys.executable, "-c", "import syncline.torch, torch; print('SYNCLINE' in torch.distributed.Backend._plugins)"],
                              env={**os.environ, "PYTHONPATH": str(support.PACKAGE)}, capture_output=True, text=True, check=True)
        self.assertEqual(said.stdout, "True\n", said.stderr)


class TensorsOfWorksTest(unittest.TestCase):
    def test_works_that_nobody_waits_for_do_not_keep_their_tensors(self):
        for output, code in run_ranks("""
            import gc, weakref
            seen = []
            kept = dist.all_reduce(torch.ones(1000), async_op=True)
            for step in range(20):
                x = torch.ones(1000)
                seen.append(weakref.ref(x))
                dist.all_reduce(x, async_op=True)
            del x
            time.sleep(0.2)
            dist.barrier()
            dist.all_reduce(torch.ones(3), async_op=True).wait()
            gc.collect()
            assert sum(tensor() is not None for tensor in seen) <= 1, seen
            same(kept.result()[0][:1], [float(ranks)])  # somebody has this one
            """, ranks=2):
            self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()
