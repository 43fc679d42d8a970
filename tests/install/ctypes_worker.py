"""One of two workers that call libsyncline.so by ctypes. install_test.py starts it.

Each checks the results of calls while rank 0 waits for rank 1, which is in a barrier and has not pushed.
"""
import ctypes
import struct
import sys
import tempfile
import threading

OK, CANCELLED, DEADLINE_EXCEEDED, FAILED_PRECONDITION = 0, 1, 4, 9
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
FOREVER = ctypes.c_int64(-1)
ELEMENTS = 1000

lib = ctypes.CDLL(sys.argv[1])
lib.syncline_last_error.restype = ctypes.c_char_p
lib.syncline_step.restype = ctypes.c_uint64
lib.syncline_rank.restype = lib.syncline_world_size.restype = ctypes.c_uint32


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dimensions", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_uint64)), ("dtype", ctypes.c_int), ("data", ctypes.c_void_p),
        ("learning_rate_scale", ctypes.c_double), ("options", ctypes.c_char_p), ("state", ctypes.c_char_p),
        ("frozen", ctypes.c_int32),
    ]  # fmt: skip


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("bytes_pushed", ctypes.c_uint64), ("bytes_pulled", ctypes.c_uint64),
                ("resent_blocks", ctypes.c_uint64), ("epoch", ctypes.c_uint64), ("members", ctypes.c_uint32)]  # fmt: skip


def expect(code, expected=OK):
    assert code == expected, (code, expected, lib.syncline_last_error())


def pack(value, dtype):
    """Returns the bytes of ELEMENTS equal elements. The values of this test are exact in all types."""
    one = {FLOAT32: struct.pack("<f", value), BFLOAT16: struct.pack("<f", value)[2:], FLOAT16: struct.pack("<e", value)}
    return one[dtype] * ELEMENTS


options, session = ctypes.c_void_p(), ctypes.c_void_p()
expect(lib.syncline_options_from_env(ctypes.byref(options)))
for key, value in ((b"optimizer", b"sgd:lr=0.5"), (b"push", b"fp32"), (b"publish", b"fp32")):
    expect(lib.syncline_options_set(options, key, value))
expect(lib.syncline_session_create(options, ctypes.byref(session)))
lib.syncline_options_free(options)

weights = {dtype: ctypes.create_string_buffer(pack(8.0, dtype), len(pack(8.0, dtype)))
           for dtype in (FLOAT32, BFLOAT16, FLOAT16)}  # fmt: skip
for dtype, memory in weights.items():
    shape = (ctypes.c_uint64 * 2)(ELEMENTS // 10, 10)
    tensor = Tensor(ctypes.sizeof(Tensor), b"w%d" % dtype, 2, shape, dtype, ctypes.addressof(memory), 0, None, None, 0)
    tensor_id = ctypes.c_uint32()
    expect(lib.syncline_declare(session, ctypes.byref(tensor), ctypes.byref(tensor_id)))
    assert tensor_id.value == dtype
expect(lib.syncline_start(session, FOREVER))
rank = lib.syncline_rank(session)
assert lib.syncline_world_size(session) == 2

# Step 0: rank 1 contributes only after the barrier.
gradients = {dtype: pack(rank + 1.0, dtype) for dtype in weights}
if rank == 1:
    expect(lib.syncline_barrier(session, FOREVER))
for dtype, gradient in gradients.items():
    expect(lib.syncline_push_pull(session, dtype, gradient, dtype, 1))
if rank == 0:
    expect(lib.syncline_wait(session, BFLOAT16, ctypes.c_int64(0)), DEADLINE_EXCEEDED)
    expect(lib.syncline_wait_all(session, ctypes.c_int64(20)), DEADLINE_EXCEEDED)
    assert lib.syncline_is_ready(session, BFLOAT16) == 0
    canceller = threading.Thread(target=lib.syncline_cancel, args=(session,))
    canceller.start()
    expect(lib.syncline_wait(session, FLOAT16, FOREVER), CANCELLED)
    canceller.join()
    lib.syncline_uncancel(session)
    expect(lib.syncline_push_pull(session, FLOAT16, gradients[FLOAT16], FLOAT16, 1), FAILED_PRECONDITION)
    expect(lib.syncline_barrier(session, FOREVER))
expect(lib.syncline_wait_all(session, FOREVER))
for dtype, memory in weights.items():
    assert memory.raw == pack(8.0 - 0.5 * 1.5, dtype), dtype

# Step 1: rank 1 has no gradients.
if rank == 0:
    for dtype, gradient in gradients.items():
        expect(lib.syncline_push_pull(session, dtype, gradient, dtype, 1))
else:
    expect(lib.syncline_skip(session, (ctypes.c_uint32 * 3)(0, 1, 2), 3))
expect(lib.syncline_wait_all(session, FOREVER))
for dtype, memory in weights.items():
    assert memory.raw == pack(7.25 - 0.5, dtype), dtype
assert lib.syncline_step(session) == 2

stats = Stats(struct_size=ctypes.sizeof(Stats))
expect(lib.syncline_get_stats(session, ctypes.byref(stats)))
assert stats.members == 2 and stats.bytes_pushed > 0 and stats.bytes_pulled > 0
with tempfile.NamedTemporaryFile() as file:
    expect(lib.syncline_save_residuals(session, file.name.encode()))
    expect(lib.syncline_restore_residuals(session, file.name.encode()))
average = (ctypes.c_float * ELEMENTS)()
expect(lib.syncline_pull_average(session, 0, average, FOREVER), FAILED_PRECONDITION)  # the job keeps no average
expect(lib.syncline_barrier(session, FOREVER))
expect(lib.syncline_leave(session))
expect(lib.syncline_wait(session, 0, FOREVER), FAILED_PRECONDITION)
lib.syncline_session_free(session)
print(f"rank {rank}: done")
