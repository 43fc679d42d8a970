"""A stand-in for a GPU, in host memory, that copies as late as possible: only when a thread waits for the copy."""
import threading

import torch

from syncline import _staging

PATIENCE = 60


def copy(target, source):
    """Copies a tensor. It may run in another thread than the program's, which may be in inference mode."""
    with torch.inference_mode(target.is_inference()):
        target.copy_(source)


class LateStream:
    """A queue of copies. They are made in order when a thread waits for one, or asks for the second time whether it was made."""

    def __init__(self):
        self.gate = threading.Event()  # no copy is made while it is not set
        self.gate.set()
        self.lock = threading.Lock()
        self.copies, self.made = [], 0

    def put(self, copy):
        with self.lock:
            self.copies.append(copy)
            return LateMark(self, self.made + len(self.copies))

    def go_to(self, place):
        assert self.gate.wait(PATIENCE)
        with self.lock:
            while self.made < place:
                with torch.no_grad():
                    self.copies.pop(0)()
                self.made += 1


class LateMark:
    def __init__(self, stream, place):
        self.stream, self.place, self.was_asked = stream, place, False

    def synchronize(self):
        self.stream.go_to(self.place)

    def query(self):
        if self.was_asked and self.stream.gate.is_set():
            self.synchronize()
        self.was_asked = True
        return self.stream.made >= self.place


class LateGpu:
    """The stand-in. All tensors are on it, except those that were given to `keep_on_host`."""

    number, why_not, ordinal = 0, "it is a stand-in", 0

    def __init__(self):
        self.up, self.down, self.own = LateStream(), LateStream(), LateStream()
        self.read = 0  # number of copies to the host so far

    def keep_on_host(self, tensor):
        tensor.is_on_host = True
        return tensor

    def host_like(self, tensor):
        return self.keep_on_host(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").fill_(85))

    def stream(self):
        return 0

    def mark(self):
        return self.own.put(lambda: None)

    def to_host(self, host, source):
        taken = source.detach().clone()
        self.read += 1
        return self.up.put(lambda: copy(host, taken))

    def bring(self, target, source, after):
        assert after.stream is self.own
        target.fill_(86)  # a wrong value for code that reads it too early
        return self.down.put(lambda: copy(target, source))

    def follow(self, mark):
        mark.synchronize()


def install():
    """Makes torch's tensors be on a LateGpu, in this process and from now on. Returns it."""
    gpu = LateGpu()
    _staging.device_of = lambda array, name: (
        gpu if isinstance(array, torch.Tensor) and not hasattr(array, "is_on_host") else None)
    return gpu
