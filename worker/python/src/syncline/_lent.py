"""Allocates memory for gradients that servers on this host read directly, without a copy."""
from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from ctypes import byref
from typing import TYPE_CHECKING, Any, Union

from syncline._library import BFLOAT16, FLOAT16, FLOAT32, check, library
from syncline.errors import InvalidArgument

if TYPE_CHECKING:
    from syncline._calls import Calls

_TYPES = {"float32": (FLOAT32, 4), "bfloat16": (BFLOAT16, 2), "float16": (FLOAT16, 2)}


class Allocator:
    """The part of Session that allocates such memory."""

    _calls: Calls

    def allocate(self, shape: Union[int, Sequence[int]], dtype: Any = "float32") -> Any:
        """Returns zeros to hold a gradient: a torch tensor if `dtype` is one of torch's, otherwise a NumPy array.

        Servers on this host read the memory directly instead of a copy if the mode is bsp without a quorum and the push codec matches
        the type ("fp32" for float32, "bf16" for bfloat16). Otherwise it is memory like any other. Push the whole array. Write to it in
        place (`gradient[:] = …` or `gradient.copy_(…)`), and only once `wait` has returned or the session is over. The array may
        outlive the session. Forked processes do not have the memory.
        """
        name = str(dtype if isinstance(dtype, str) else getattr(dtype, "__name__", dtype)).replace("torch.", "")
        if name not in _TYPES:
            raise InvalidArgument(f"memory of dtype {dtype}; give float32, bfloat16 or float16")
        number, width = _TYPES[name]
        shape = [shape] if isinstance(shape, int) else list(shape)
        if any(size < 0 for size in shape):
            raise InvalidArgument(f"memory of shape {shape}; no dimension may be negative")
        elements = math.prod(shape)
        handle = ctypes.c_void_p()
        with self._calls.call() as session:
            check(library().syncline_memory_new(session, elements, number, byref(handle)))
        memory = (ctypes.c_char * (elements * width)).from_address(library().syncline_memory_data(handle))
        weakref.finalize(memory, library().syncline_memory_free, handle).atexit = False
        ctypes.memset(memory, 0, elements * width)
        is_of_torch = type(dtype).__module__ == "torch"
        return _tensor(memory, shape, dtype) if is_of_torch else _array(memory, shape, name)


def _tensor(memory: Any, shape: Sequence[int], dtype: Any) -> Any:
    import torch
    if not len(memory):
        return torch.empty(tuple(shape), dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(tuple(shape))


def _array(memory: Any, shape: Sequence[int], name: str) -> Any:
    import numpy
    try:
        if not len(memory):
            return numpy.empty(tuple(shape), numpy.dtype(name))
        return numpy.frombuffer(memory, numpy.dtype(name)).reshape(tuple(shape))
    except TypeError:
        raise InvalidArgument(f"NumPy has no {name} here; give torch.{name}, or import ml_dtypes") from None
