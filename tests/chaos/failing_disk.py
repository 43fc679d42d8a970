"""A disk that fails on order, and loses unsynced data at a power cut.

    disk = Disk(folder / "server0", build / "failing_disk.so")
    start(["syncline", "serve", ..., "--journal-dir", disk.files], environment=disk.environment)
    with disk.failing("full"):
        time.sleep(1)
    kill(); lost = disk.cut_power(random.Random(7))

failing_disk.c makes the faults and records what is synced; its head lists the orders. A kill alone loses nothing: written
data stays in the page cache, as on a real machine.
"""

import contextlib
import os
import pathlib
import shutil
import time

ORDERS = ("full", "write-fails", "short", "sync-fails", "slow", "lies", "stuck")
WAYS_TO_LOSE = ("gone", "torn", "zeros behind", "zeros before")


class Disk:
    def __init__(self, folder, library):
        folder = pathlib.Path(folder).resolve()  # the form that /proc shows
        self.files = folder / "files"
        self.orders = folder / "orders"
        for one in (self.files, self.orders / "synced", self.orders / "lost"):
            one.mkdir(parents=True)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_DISK": str(self.files), "CHAOS_ORDERS": str(self.orders)}

    def order(self, what):
        """Sets how the disk fails from now on; None: it works."""
        if what is None:
            (self.orders / "order").unlink(missing_ok=True)
            return
        assert what in ORDERS, what
        unfinished = self.orders / "order.new"
        unfinished.write_text(what)
        unfinished.rename(self.orders / "order")

    @contextlib.contextmanager
    def failing(self, what):
        self.order(what)
        try:
            yield
        finally:
            self.order(None)

    def faults(self):
        """Returns the number of faults so far."""
        path = self.orders / "faults"
        return path.stat().st_size if path.exists() else 0

    def await_fault(self, before, timeout):
        deadline = time.monotonic() + timeout
        while self.faults() <= before:
            if time.monotonic() > deadline:
                raise AssertionError(f"the disk {self.files} was told to fail, and nobody wrote to it")
            time.sleep(0.02)

    def cut_power(self, rng):
        """Removes or damages unsynced data, as a disk may. Returns the lost bytes. No process may write meanwhile."""
        return self._cut_folder(self.files, rng)

    def _cut_folder(self, folder, rng):
        named = self._named(folder)
        for entry in sorted(folder.iterdir()):
            # A rename that was not synced did not happen. A file without a synced name does not exist.
            name = named.get(entry.lstat().st_ino)
            if name is None:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            elif name != entry.name and not (folder / name).exists():
                entry.rename(folder / name)
        lost = 0
        for entry in sorted(folder.iterdir()):
            lost += self._cut_folder(entry, rng) if entry.is_dir() else self._cut_file(entry, rng)
        return lost

    def _named(self, folder):
        path = self.orders / "synced" / str(folder.stat().st_ino)
        if not path.exists():
            return {}
        lines = (line.split(" ", 1) for line in path.read_text().splitlines())
        return {int(inode): name for inode, name in lines if name not in (".", "..")}

    def _cut_file(self, path, rng):
        about = path.stat()
        books = self.orders / "synced" / str(about.st_ino)
        synced = min(int(books.read_text()), about.st_size) if books.exists() else 0
        lost = about.st_size - synced
        if lost == 0:
            return 0
        how = rng.choice(WAYS_TO_LOSE)
        place = rng.randrange(synced, about.st_size)
        with path.open("r+b") as file:
            if how == "gone":
                file.truncate(synced)
            elif how == "torn":
                file.truncate(place)
            else:
                first, last = (place, about.st_size) if how == "zeros behind" else (synced, place + 1)
                file.seek(first)
                file.write(bytes(last - first))
            os.fsync(file.fileno())
        # The rest of the file is on the disk now.
        books.write_text(f"{path.stat().st_size:20d}")
        return lost
