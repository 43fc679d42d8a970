"""What a session's figures say to people: where the time of its steps went, and what the whole run took."""
from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from syncline._library import StatsStruct, check, library

PHASES = ("compute", "encode", "push", "others", "publish", "decode")
_WAITS_FOR = {
    "encode": "gradients being compressed", "push": "gradients on their way to the servers",
    "others": "other workers, and the servers' first step", "publish": "the rest of the new weights",
    "decode": "new weights being put in place",
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Stats:
    """What a session has sent and received so far, and who is in the job now."""

    bytes_pushed: int
    bytes_pulled: int
    resent_blocks: int
    epoch: int
    members: int
    steps: int
    phase_seconds: dict[str, float]
    """Where this worker's time went since `start`: together all of it, and all but "compute" waiting (docs/phases.md)."""
    codecs: str = ""
    """Where gradients of tensors on GPUs are encoded and their weights decoded, and why not there; "" without such tensors."""


def stats_of(handle: ctypes.c_void_p, why_copied: Mapping[str, int]) -> Stats:
    """The figures of a session. `why_copied`: why tensors of GPUs are known by copies in host memory, and how many."""
    struct = StatsStruct(struct_size=ctypes.sizeof(StatsStruct))
    check(library().syncline_get_stats(handle, ctypes.byref(struct)))
    there = library().syncline_device_codecs(handle).decode()
    copied = [f"on the CPU ({count} {'tensors' if count > 1 else 'tensor'} of a GPU copied to host memory: {why})"
              for why, count in why_copied.items()]
    return Stats(struct.bytes_pushed, struct.bytes_pulled, struct.resent_blocks, struct.epoch, struct.members, struct.steps,
                 dict(zip(PHASES, struct.phase_seconds)), "; ".join([there, *copied] if there else copied))


class Progress:
    """What the program has done since `start`, beside which the session's figures are seen."""

    def __init__(self, at_start: Optional[Stats] = None) -> None:
        self.pushed_before = at_start.bytes_pushed if at_start else 0  # the initial weights
        self.pulled_before = at_start.bytes_pulled if at_start else 0
        self.samples = 0
        self.elements = 0  # of all gradients
        self._began = self._ended = time.monotonic()

    def push(self, shape: Sequence[int], samples: int) -> None:
        """A gradient. `samples` are the step's, of one gradient of it."""
        self.elements += math.prod(shape)
        self.samples += samples
        self.touch()

    def touch(self) -> None:
        """Steps go on until now: what the program does after the last one is not theirs."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self._ended - self._began


def report(rank: int, stats: Stats) -> str:
    """What a step took and where the time went, in lines to print."""
    if stats.steps == 0:
        return f"worker {rank}: no step yet"
    total = sum(stats.phase_seconds.values())
    lines = [
        f"worker {rank}: {stats.steps} steps of {1e3 * total / stats.steps:.3g} ms, "
        f"{stats.bytes_pushed / stats.steps:.3g} bytes pushed and {stats.bytes_pulled / stats.steps:.3g} pulled in each"]
    for phase, seconds in stats.phase_seconds.items():
        what = f"waits for {_WAITS_FOR[phase]}" if phase in _WAITS_FOR else "the program computes"
        lines.append(f"  {phase:8}{100 * seconds / (total or 1):5.1f} %{1e3 * seconds / stats.steps:11.3g} ms a step  {what}")
    if stats.codecs:
        lines.append(f"  codecs  {stats.codecs}")
    return "\n".join(lines)


def summary(stats: Stats, progress: Progress, steps_are: str, samples_are: str = "samples") -> str:
    """A run of rank 0 in a line. Bytes are those of its steps, without the initial weights."""
    seconds = max(progress.seconds, 1e-6)
    pushed = _size(stats.bytes_pushed - progress.pushed_before, progress.elements)
    pulled = _size(stats.bytes_pulled - progress.pulled_before, progress.elements)
    speed = f"{_number(stats.steps / seconds)} {steps_are}/s"
    if progress.samples > stats.steps:  # otherwise the program does not say how many there are
        speed += f", {_number(progress.samples / seconds)} {samples_are}/s"
    waits = [f"{phase} {100 * stats.phase_seconds[phase] / seconds:.0f} %" for phase in PHASES if phase in _WAITS_FOR]
    counted = steps_are if stats.steps > 1 else steps_are.rstrip("s")
    return (f"worker 0: {stats.steps} {counted} in {seconds:.1f} s, {speed}; pushed {pushed}, pulled {pulled}; "
            f"waits: {', '.join(waits)}{'; codecs: ' if stats.codecs else ''}{stats.codecs}")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _size(count: int, elements: int) -> str:
    """Of what would have been so many numbers in FP32."""
    ratio = 4 * elements / count if count else 1.0
    beside = f" ({ratio:.3g}x less than FP32)" if ratio >= 1.05 else ""
    unit = min(int(math.log(max(count, 1), 1024)), len(_UNITS) - 1)
    return f"{count / 1024**unit:.4g} {_UNITS[unit]}{beside}"
