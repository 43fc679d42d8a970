"""Reads the weights of a storm's job as a ledger of which rank contributed to which step (ledger_worker.cc)."""

import array

TOLERANCE = 1e-5


class Ledger:
    """The ledger. `data` has the FP32 weights of all tensors, one after the other."""

    def __init__(self, data, ranks, slots):
        values = array.array("f")
        values.frombytes(data)
        self.ranks, self.slots = ranks, slots
        size = ranks * slots
        assert len(values) % size == 0, f"{len(values)} weights are not a ledger of {ranks} ranks and {slots} slots"
        self.pages = [values[first : first + size] for first in range(0, len(values), size)]

    def errors(self, steps, seen):
        """Returns the errors after `steps` steps, in words. `seen` is {rank: steps that the rank saw made with its own
        contribution}."""
        found = []
        for number, page in enumerate(self.pages):
            for step in range(self.slots):
                entries = [-page[rank * self.slots + step] for rank in range(self.ranks)]
                where = f"tensor {number}, step {step}: {[round(entry, 4) for entry in entries]}"
                if step >= steps:
                    if any(entries):
                        found.append(f"{where}: there is no such step")
                    continue
                there = [entry for entry in entries if entry != 0]
                if not there:
                    found.append(f"{where}: the step is lost")
                elif any(abs(entry - 1 / len(there)) > TOLERANCE for entry in there):
                    found.append(f"{where}: not each of {len(there)} contributions counts once")
                found += [
                    f"{where}: rank {rank} saw this step made with its contribution, which is lost"
                    for rank in range(self.ranks)
                    if entries[rank] == 0 and step in seen.get(rank, ())
                ]
        return found

    def participation(self, steps):
        """Returns the part of all possible contributions that counted."""
        made = sum(
            page[rank * self.slots + step] != 0
            for page in self.pages
            for rank in range(self.ranks)
            for step in range(steps)
        )
        return made / max(1, len(self.pages) * self.ranks * steps)
