"""Records what a program has pushed and skipped, so that an exception between any two lines (Ctrl-C) leaves nothing uncertain."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from syncline._calls import Calls
from syncline._library import check, recorded


class Account:
    """The pushes and skips of one session. Thread safety: one thread at a time for each tensor.

    Python may handle a signal before any line. A call of the library takes effect, and the lines that record it follow. The result
    of the call is therefore in a list before the first of these lines: `codes` of a tensor, or `skip_codes`. The list is empty if
    there was no call or the call failed. The code that has recorded the call clears the list.

    A Line (_line.py) makes the calls about tensors on GPUs later. The list then says that it will, and the Line keeps the other records.
    """

    def __init__(self) -> None:
        self.begun: set[int] = set()  # tensors pushed or skipped in the last step that has any; if all are in it, the step is whole
        self.trained = 0  # number of tensors that are not frozen
        self.codes: dict[int, list[int]] = {}  # by tensor: the result of its last push
        self.skip_codes: list[int] = []
        self.is_of_line = False  # a Line makes the calls

    def add(self, tensor: int, is_frozen: bool) -> None:
        """Adds a declared tensor."""
        self.codes[tensor] = []
        self.trained += not is_frozen

    def remove(self, tensor: int, is_frozen: bool) -> None:
        """Removes a tensor between two steps."""
        self.begun.discard(tensor)
        self.trained -= not is_frozen

    def note(self, tensors: Iterable[int]) -> None:
        """Records that these were pushed or skipped in the present step. It may be called twice."""
        self.begun.update(tensors)

    def note_late(self, tensors: Iterable[int]) -> None:
        """Does `note` for a call after which an exception came before it. No exception of the program comes there in a Line."""
        if not self.is_of_line:
            self.note(tensors)

    def is_between_steps(self) -> bool:
        """Returns whether the last step is whole, so that nothing of the next one has begun."""
        if len(self.begun) == self.trained:
            self.begun.clear()
        return not self.begun


def call(calls: Calls, name: str, codes: list[int], *arguments: Any) -> None:
    """Calls syncline_`name`. Puts the result into `codes`, or raises it if it is an error."""
    function = recorded(f"syncline_{name}", codes)
    with calls.call() as handle:
        function(handle, *arguments)
        if codes[0]:
            check(codes.pop())
