"""A GPU in host memory that is late: what was copied is there once somebody who must waits for it, and never before."""
import threading

import torch

from syncline import _staging

PATIENCE = 60


def copy(target, source):
    """Also in another thread than that of the program, which may be in inference mode."""
    with torch.inference_mode(target.is_inference()):
        target.copy_(source)


class LateStream:
    """Copies, made in their order by whoever waits for one, or asks for the second time whether it was made."""

    def __init__(self):
        self.gate = threading.Event()  # while it is not set, none is made
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
    """All tensors are on it, but those that `keep_on_host` was given."""

    number, why_not = 0, "it is a stand-in"

    def __init__(self):
        self.up, self.down, self.own = LateStream(), LateStream(), LateStream()
        self.read = 0  # copies to the host so far

    def keep_on_host(self, tensor):
        tensor.is_on_host = True
        return tensor

    def host_like(self, tensor):
        return self.keep_on_host(torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").fill_(85))

    def mark(self):
        return self.own.put(lambda: None)

    def to_host(self, host, source):
        taken = source.detach().clone()
        self.read += 1
        return self.up.put(lambda: copy(host, taken))

    def bring(self, target, host, after):
        assert after.stream is self.own
        target.fill_(86)  # whoever reads it now is wrong
        return self.down.put(lambda: copy(target, host))

    def follow(self, mark):
        mark.synchronize()


def install():
    """For this process, from now on."""
    gpu = LateGpu()
    _staging.device_of = lambda array, name: (
        gpu if isinstance(array, torch.Tensor) and not hasattr(array, "is_on_host") else None)
    return gpu
