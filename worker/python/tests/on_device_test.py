"""Tests of tensors on a GPU that runs the session's codecs, with the CUDA module's emulated GPU. cuda_test.py uses a real one."""
import os
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from unittest import mock

import support

FAKE_MODULE = os.environ.get("SYNCLINE_FAKE_CUDA_MODULE") or str(
    support.BUILD / "comm/codec/cuda/fake_module/libsyncline_cuda_fake.so")
os.environ["SYNCLINE_CUDA_MODULE"] = FAKE_MODULE

import gpu_cases
import interrupt_test
import staging_test
from staging_test import Mark, on
from torch_support import torch

import syncline
from syncline import _staging

if not os.path.isfile(FAKE_MODULE):
    raise unittest.SkipTest(f"no {FAKE_MODULE}; build the target syncline_cuda_fake")

NOT_THE_HOSTS = 1 << 62  # of addresses: the host faults there, and the emulated GPU finds the memory without it


class Emulated(staging_test.StandIn):
    """A stand-in for a GPU, in host memory. It gives the session addresses that are not the host's."""

    number = 1
    why_not = ""

    def __init__(self, gate=None):
        super().__init__(gate)
        self.marks = []

    def address(self, tensor):
        return tensor.data_ptr() | NOT_THE_HOSTS

    dense = _staging.Cuda.dense

    def mark(self):
        self.marks.append(Mark(gate=self.gate))
        return self.marks[-1]


class Late(Emulated):
    """A stand-in on which values that the program's stream writes appear only once a thread has waited for them."""

    def __init__(self):
        super().__init__()
        self.write = lambda: None

    def dense(self, tensor):
        dense = super().dense(tensor)
        values = dense.clone()
        dense.fill_(float("nan"))
        self.write = lambda: dense.copy_(values)
        return dense

    def mark(self):
        write, self.write = self.write, lambda: None
        return Mark(write)


# Trains until the stand-in fails, for the whole process.
FAILING = """
    import os, sys
    place = dict(os.environ)  # in a job, of which the tests' modules want to know nothing
    sys.path.insert(0, {tests!r})
    from on_device_test import Emulated, on, syncline, torch
    os.environ.update(place)
    with on(Emulated()):
        session = syncline.Session(coordinator={coordinator!r}, job={job!r}, optimizer="sgd:lr=1", push="int8")
        tensor = session.declare("w", torch.zeros(100))
        try:
            session.start()
            while True:
                session.push_pull(tensor, torch.ones(100))
                session.wait(tensor)
        except syncline.Unavailable as error:
            print("ended:", type(error).__name__, error)
            raise
"""


class HostCases(gpu_cases.Cases):
    def on_host(self):
        return on(None)


globals().update(staging_test.once_more(Emulated, __name__, HostCases))


class Interrupted(interrupt_test.OnAGpu):
    make_device = Emulated
    kinds = ("line",)


class OnDevice(support.ServersTest):
    def session(self, device, count=1, **more):
        session = syncline.Session(**self.options(optimizer="sgd:lr=1", push="fp32", publish="fp32", **more))
        self.addCleanup(session.close)
        with on(device):
            tensors = [session.declare(f"w{number}", torch.zeros(4)) for number in range(count)]
            session.start()
        self.assertEqual(session.device_codecs, count)
        return session, tensors

    def test_reads_a_gradient_once_the_gpu_has_written_it(self):
        device = Late()
        session, [tensor] = self.session(device)
        with on(device):
            for step in range(1, 6):
                session.push_pull(tensor, torch.ones(4))
                session.wait(tensor)
                self.assertEqual(tensor.weights.tolist(), [-step] * 4)

    def test_reads_weights_at_the_start_once_the_gpu_has_written_them(self):
        device = Late()
        session = syncline.Session(**self.options(optimizer="sgd:lr=1"))
        self.addCleanup(session.close)
        weights = torch.zeros(4)
        with on(device):
            tensor = session.declare("w", weights)
            device.write = lambda: weights.fill_(3)
            session.start()
            session.push_pull(tensor, torch.ones(4))
            session.wait(tensor)
        self.assertEqual(weights.tolist(), [2.0] * 4)

    def test_waits_for_what_uses_the_weights_before_a_step_without_gradient(self):
        gate = staging_test.threading.Event()
        gate.set()
        device = Emulated(gate)
        session, [tensor] = self.session(device)
        gate.clear()
        with on(device):
            session.skip([tensor])
        with self.assertRaisesRegex(syncline.DeadlineExceeded, "the GPU did not finish"):
            session.wait(tensor, 0.01)
        gate.set()
        session.wait(tensor)
        self.assertEqual(session.step, 1)

    def test_waits_for_what_uses_the_weights_before_the_optimizers_state_is_pulled(self):
        device = Emulated()
        session = syncline.Session(**self.options(optimizer="adam:lr=1"))
        self.addCleanup(session.close)
        with on(device):
            tensor = session.declare("w", torch.zeros(4))
            session.start()
            session.push_pull(tensor, torch.ones(4))
            session.wait(tensor)
            before = len(device.marks)
            with on(None):
                state = torch.zeros(4)
                self.assertEqual(session.pull_state(tensor, 0, state), 1)
        self.assertEqual(len(device.marks), before + 1)
        self.assertTrue(torch.allclose(state, torch.full((4,), 0.1)), state)

    def test_keeps_a_gradient_until_it_was_waited_for(self):
        device = Emulated()
        session, [tensor] = self.session(device)
        gradient = torch.ones(4)
        with on(device):
            session.push_pull(tensor, gradient)
            session._stage.settle()
            [held] = session._gradients[tensor.id]
            self.assertEqual(held.data_ptr(), gradient.data_ptr())
            session.wait(tensor)
        self.assertNotIn(tensor.id, session._gradients)

    def test_copies_neither_gradients_nor_weights_to_host_memory(self):
        device = Emulated()
        session, [tensor] = self.session(device)
        with on(device), mock.patch.object(device, "to_host") as up, mock.patch.object(device, "to_device") as down:
            session.push_pull(tensor, torch.ones(4))
            session.wait(tensor)
        up.assert_not_called()
        down.assert_not_called()

    def test_says_where_codecs_run(self):
        session = syncline.Session(**self.options(optimizer="sgd:lr=1", push="int4", publish="int8"))
        self.addCleanup(session.close)
        with on(Emulated()), self.assertLogs("syncline", "INFO") as logs:
            tensors = [session.declare("large", torch.zeros(256, 64)), session.declare("small", torch.zeros(4)),
                       session.declare("shifted", torch.zeros(5)[1:])]
            self.assertEqual(session.stats.codecs.count("GPU"), 1)  # of what is copied only, before the start
            session.start()
            for tensor in tensors:
                session.push_pull(tensor, torch.ones(tensor.weights.shape))
            session.wait_all()
            there = "on the GPU (1 tensor; 1 more by way of the host: no kernel for push int4)"
            copied = "on the CPU (1 tensor of a GPU copied to host memory: not contiguous, or not aligned to 16 bytes)"
            self.assertEqual(syncline.stats().codecs, f"{there}; {copied}")
            self.assertIn(f"  codecs  {there}; {copied}", session.report())
            session.close()
        self.assertIn(f"INFO:syncline:codecs: {there}", logs.output)
        self.assertTrue(logs.output[-1].endswith(f"; codecs: {there}; {copied}"), logs.output)

    def test_ends_the_session_when_the_gpu_fails(self):
        source = FAILING.format(tests=str(support.HERE), coordinator=self.coordinator, job=self.id())
        program = self.program(source, {"SYNCLINE_FAKE_CUDA_FAILS": "40"})
        said = r"CUDA device 0: .*unspecified launch failure \(error 719\)"
        program.await_line(f"ended: DeviceFailed {said}")
        self.assertEqual(program.wait(), 8, program.text())
        self.assertRegex(program.text().splitlines()[-1], said)

    def test_ends_the_run_with_the_code_and_the_words_of_the_gpu_that_failed(self):
        source = FAILING.format(tests=str(support.HERE), coordinator=None, job=None)
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            fails = "import os\nif os.environ['RANK'] == '1':\n    os.environ['SYNCLINE_FAKE_CUDA_FAILS'] = '40'\n"
            script.write_text(fails + textwrap.dedent(source))
            run = support.Process([os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--nproc-per-node", "2", "--", sys.executable,
                                   str(script)])
            self.addCleanup(run.kill)
            self.assertEqual(run.wait(), 8, run.text())
        run.await_line(r"^syncline: error: worker 1 failed with exit code 8 .*DeviceFailed: CUDA device 0: .* \(error 719\)")


    def test_refuses_gradients_of_another_gpu_and_for_weights_in_host_memory(self):
        one, other = Emulated(), Emulated()
        session = syncline.Session(**self.options(optimizer="sgd:lr=1"))
        self.addCleanup(session.close)
        with on(None):
            here = session.declare("here", torch.zeros(4))
        with on(one):
            there = session.declare("there", torch.zeros(4))
            session.start()
            with self.assertRaisesRegex(syncline.InvalidArgument, "here: a gradient on cpu for weights on the host"):
                session.push_pull(here, torch.ones(4))
        with on(other), self.assertRaisesRegex(syncline.InvalidArgument, "there: a gradient on cpu for weights on cpu: pass one that is there, or"):
            session.push_pull(there, torch.ones(4))
        with on(one), self.assertRaisesRegex(syncline.InvalidArgument, r"there: a gradient of shape \[5\] for weights of shape \[4\]"):
            session.push_pull(there, torch.ones(5))
        with on(one), self.assertRaisesRegex(syncline.InvalidArgument, "there: torch.Tensor of dtype float64"):
            session.push_pull(there, torch.ones(4, dtype=torch.float64))

    def test_is_not_for_weights_that_no_codec_of_the_gpu_can_reach(self):
        session = syncline.Session(**self.options())
        self.addCleanup(session.close)
        with on(Emulated()):
            session.declare("spread", torch.zeros(4, 4).t())
            session.declare("shifted", torch.zeros(5)[1:])
            session.declare("empty", torch.zeros(0))
            self.assertEqual(session.device_codecs, 0)
            session.declare("fit", torch.zeros(4))
        self.assertEqual(session.device_codecs, 1)

    def test_is_switched_off_by_the_environment(self):
        session = syncline.Session(**self.options())
        self.addCleanup(session.close)
        with on(Emulated()):
            with mock.patch.dict(os.environ, SYNCLINE_GPU_CODECS="0"):
                session.declare("a", torch.zeros(4))
                self.assertRegex(session.stats.codecs, r"on the CPU \(1 tensor of a GPU .*: SYNCLINE_GPU_CODECS=0\)")
            with mock.patch.dict(os.environ, SYNCLINE_GPU_CODECS="off"):
                with self.assertRaisesRegex(syncline.InvalidArgument, "SYNCLINE_GPU_CODECS is 'off', but must be 1, or 0"):
                    session.declare("b", torch.zeros(4))
        self.assertEqual(session.device_codecs, 0)

    def test_is_spelt_right_also_where_no_tensor_is_on_a_gpu(self):
        with mock.patch.dict(os.environ, SYNCLINE_GPU_CODECS="off"):
            with self.assertRaisesRegex(syncline.InvalidArgument, "SYNCLINE_GPU_CODECS is 'off', but must be 1, or 0"):
                syncline.Session(**self.options())


class Cuda(unittest.TestCase):
    """Tests of the class for torch's GPUs that need no GPU."""

    def setUp(self):
        patch = mock.patch.object(torch, "cuda", mock.Mock())
        patch.start()
        self.addCleanup(patch.stop)

    def number(self, name):
        with self.assertLogs("syncline", "DEBUG") as logs:
            number = _staging.Cuda(name).number
        return number, logs.output[0]

    def test_numbers_are_those_of_the_module(self):
        self.assertEqual(self.number("cuda:0")[0], 1)
        self.assertEqual(self.number("cuda:1")[0], 2)

    def test_has_no_number_where_the_module_has_no_such_device(self):
        number, said = self.number("cuda:7")
        self.assertEqual(number, 0)
        self.assertIn("WARNING:syncline:cuda:7: gradients are copied to host memory and encoded there: ", said)
        with mock.patch.dict(os.environ):
            del os.environ["SYNCLINE_CUDA_MODULE"]  # nobody asked for it
            self.assertIn("INFO:syncline:cuda:7: ", self.number("cuda:7")[1])

    def test_has_no_number_with_rocm(self):
        with mock.patch.object(torch.version, "hip", "6.1"):
            number, said = self.number("cuda:0")
        self.assertEqual(number, 0)
        self.assertIn("ROCm", said)

    def test_copies_only_gradients_that_its_codecs_cannot_read(self):
        gpu = _staging.Cuda("cuda:0")
        values = torch.arange(12.0)
        self.assertEqual(gpu.dense(values).data_ptr(), values.data_ptr())
        for gradient in (values[1:], values.view(3, 4).t()):
            dense = gpu.dense(gradient)
            self.assertTrue(torch.equal(dense, gradient) and dense.is_contiguous() and dense.data_ptr() % 16 == 0)


def load_tests(loader, standard, pattern):
    return staging_test.load_own(loader, globals())


if __name__ == "__main__":
    unittest.main()
