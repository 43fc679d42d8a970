"""Finds the memory of a NumPy array or a torch tensor, without importing either package."""
from __future__ import annotations

from typing import Any, NamedTuple

from syncline._library import BFLOAT16, FLOAT16, FLOAT32
from syncline.errors import InvalidArgument

_DTYPES = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}


class Memory(NamedTuple):
    """A range of contiguous numbers. It is valid as long as the array that it belongs to exists."""

    address: int
    shape: tuple[int, ...]
    dtype: int
    device: int = 0  # as in syncline.h: 0 is host memory, n is CUDA device n - 1


def dtype_of(array: Any, name: str) -> int:
    """Returns the library's number for the array's type. Raises InvalidArgument for other types and sparse tensors, naming `name`."""
    dtype = str(getattr(array, "dtype", None)).replace("torch.", "")
    if dtype not in _DTYPES:
        raise InvalidArgument(f"{name}: {_kind(array)} of dtype {dtype}; give float32, bfloat16 or float16")
    if hasattr(array, "data_ptr") and str(array.layout) != "torch.strided":
        raise InvalidArgument(f"{name}: the tensor is {array.layout}; only dense tensors can be sent: use "
                              "Embedding(sparse=False)")
    return _DTYPES[dtype]


def memory_of(array: Any, name: str) -> Memory:
    """Returns the host memory of `array`. Raises InvalidArgument, which names `name`, if it has none that is contiguous."""
    dtype = dtype_of(array, name)
    if hasattr(array, "data_ptr"):
        address = _torch_address(array, name)
    elif hasattr(array, "__array_interface__"):
        if not array.flags.c_contiguous:
            raise InvalidArgument(f"{name}: the array is not contiguous; pass numpy.ascontiguousarray(…)")
        address = array.__array_interface__["data"][0]
    else:
        raise InvalidArgument(f"{name}: {_kind(array)} is neither a NumPy array nor a torch tensor")
    return Memory(address, tuple(array.shape), dtype)


def is_writable(array: Any) -> bool:
    """Returns False for NumPy arrays that are marked read-only, and True for all others."""
    flags = getattr(array, "flags", None)
    return flags is None or bool(flags.writeable)


def _torch_address(tensor: Any, name: str) -> int:
    if tensor.device.type != "cpu":
        raise InvalidArgument(f"{name}: the tensor is on {tensor.device}, but must be in host memory; pass .cpu()")
    if not tensor.is_contiguous():
        raise InvalidArgument(f"{name}: the tensor is not contiguous; pass .contiguous()")
    return int(tensor.data_ptr())


def _kind(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"
