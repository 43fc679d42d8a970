"""Puts a session's statistics in words: where the time of its steps went, and how long the whole run took."""
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
    """What a session has sent and received so far, and how many members the job has now."""

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
    slowest: Optional[int] = None
    """The rank that the others wait for, as the coordinator sees it over tens of seconds; None: none, or it is not known.

    With local aggregation it is the number of a host.
    """


def stats_of(handle: ctypes.c_void_p, why_copied: Mapping[str, int]) -> Stats:
    """Returns the statistics of a session. `why_copied`: why tensors of GPUs are copied to host memory, and how many for each reason."""
    struct = StatsStruct(struct_size=ctypes.sizeof(StatsStruct))
    check(library().syncline_get_stats(handle, ctypes.byref(struct)))
    there = library().syncline_device_codecs(handle).decode()
    copied = [f"on the CPU ({count} {'tensors' if count > 1 else 'tensor'} of a GPU copied to host memory: {why})"
              for why, count in why_copied.items()]
    return Stats(struct.bytes_pushed, struct.bytes_pulled, struct.resent_blocks, struct.epoch, struct.members, struct.steps,
                 dict(zip(PHASES, struct.phase_seconds)), "; ".join([there, *copied] if there else copied),
                 struct.slowest_rank if struct.slowest_rank >= 0 else None)


class Progress:
    """What the program has done since `start`, for comparison with the session's statistics."""

    def __init__(self, at_start: Optional[Stats] = None) -> None:
        self.pushed_before = at_start.bytes_pushed if at_start else 0  # bytes of the initial weights
        self.pulled_before = at_start.bytes_pulled if at_start else 0
        self.samples = 0
        self.elements = 0  # number of elements of all gradients
        self._began = self._ended = time.monotonic()

    def push(self, shape: Sequence[int], samples: int) -> None:
        """Counts a gradient. `samples` is the number of samples of its step; 0 for all gradients of a step but one."""
        self.elements += math.prod(shape)
        self.samples += samples
        self.touch()

    def touch(self) -> None:
        """Notes that steps went on until now: what the program does after the last call is not part of their time."""
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """Duration of all steps, in seconds."""
        return self._ended - self._began


class Pace:
    """The figures of a progress bar: those that change are of the time since the last look."""

    def __init__(self, stats: Stats, progress: Progress, members_are: str = "worker") -> None:
        self._members_are = members_are
        self._look(stats, progress)

    def _look(self, stats: Stats, progress: Progress) -> None:
        self._at, self._samples = time.monotonic(), progress.samples
        self._waited, self._whole = stats.phase_seconds["others"], sum(stats.phase_seconds.values())

    def words(self, stats: Stats, progress: Progress) -> str:
        """Returns ", 812 samples/s, pushes 3.9x less than FP32, waits for others 12 %, slowest: worker 3"; leaves out what is not known."""
        at, samples, waited, whole = self._at, self._samples, self._waited, self._whole
        self._look(stats, progress)
        parts = [""]
        if progress.samples > stats.steps and self._at > at and progress.samples >= samples:  # otherwise the session is a new one
            parts.append(f"{_number((progress.samples - samples) / (self._at - at))} samples/s")
        before_last = progress.elements * max(0, stats.steps - 1) // max(1, stats.steps)  # the last step's may not have left yet
        if smaller := _beside(stats.bytes_pushed - progress.pushed_before, before_last):
            parts.append(f"pushes {smaller}")
        if self._whole > whole:
            parts.append(f"waits for others {100 * (self._waited - waited) / (self._whole - whole):.0f} %")
        if stats.slowest is not None:
            parts.append(f"slowest: {self._members_are} {stats.slowest}")
        return ", ".join(parts)


def report(rank: int, stats: Stats) -> str:
    """Returns lines to print: how long a step took, and where the time went."""
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
    """Returns one line about rank 0's run. Bytes are those of its steps, without the initial weights."""
    seconds = max(progress.seconds, 1e-6)
    pushed = _size(stats.bytes_pushed - progress.pushed_before, progress.elements)
    pulled = _size(stats.bytes_pulled - progress.pulled_before, progress.elements)
    speed = f"{_number(stats.steps / seconds)} {steps_are}/s"
    if progress.samples > stats.steps:  # otherwise the program did not give the number of samples
        speed += f", {_number(progress.samples / seconds)} {samples_are}/s"
    # Time goes on after the last step, as until the session is closed: shares of the steps' seconds could be more than 100 %.
    whole = max(seconds, sum(stats.phase_seconds.values()))
    waits = [f"{phase} {100 * stats.phase_seconds[phase] / whole:.0f} %" for phase in PHASES if phase in _WAITS_FOR]
    counted = steps_are if stats.steps > 1 else steps_are.rstrip("s")
    return (f"worker 0: {stats.steps} {counted} in {seconds:.1f} s, {speed}; pushed {pushed}, pulled {pulled}; "
            f"waits: {', '.join(waits)}{'; codecs: ' if stats.codecs else ''}{stats.codecs}")


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _size(count: int, elements: int) -> str:
    """Returns a number of bytes in words, and how much less it is than `elements` numbers in FP32."""
    smaller = _beside(count, elements)
    unit = min(int(math.log(max(count, 1), 1024)), len(_UNITS) - 1)
    return f"{count / 1024**unit:.4g} {_UNITS[unit]}{f' ({smaller})' if smaller else ''}"


def _beside(count: int, elements: int) -> str:
    """Returns how much less a number of bytes is than `elements` numbers in FP32; "" if it is about as many."""
    ratio = 4 * elements / count if count else 1.0
    return f"{ratio:.3g}x less than FP32" if ratio >= 1.05 else ""
