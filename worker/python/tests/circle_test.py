"""Who goes on with a gossip, on stores that die when a test says so."""
import collections
import datetime
import threading
import types
import unittest
import unittest.mock

import torch_support  # noqa: F401, finds the package

from syncline.errors import Dropped, Unavailable
from syncline.torch._gossip import circle as _circle

PATIENCE = 20.0


class Store:
    """As a TCPStore of a process that may die."""

    def __init__(self):
        self.values, self.lives, self.changed, self.met = {}, True, threading.Condition(), collections.defaultdict(set)

    def check(self):
        if not self.lives:
            raise RuntimeError("Connection reset by peer")

    def set(self, key, value):
        with self.changed:
            self.check()
            self.values[key] = value.encode()

    def compare_set(self, key, expected, desired):
        with self.changed:
            self.check()
            return self.values.get(key, desired.encode())

    def meet(self, place, member, members):
        """Returns when all have come there."""
        with self.changed:
            self.check()
            self.met[place].add(member)
            self.changed.notify_all()
            while not self.met[place] >= set(members):
                self.changed.wait()
                self.check()

    def die(self):
        with self.changed:
            self.lives = False
            self.changed.notify_all()


class Prefixed:
    def __init__(self, prefix, store):
        self.prefix, self.store = prefix, store

    def set(self, key, value):
        self.store.set(f"{self.prefix}/{key}", value)

    def compare_set(self, key, expected, desired):
        return self.store.compare_set(f"{self.prefix}/{key}", expected, desired)


class Circles(unittest.TestCase):
    """Of four members, each in a thread. What they form is the place where they meet."""

    def setUp(self):
        self.stores = [Store() for _ in range(4)]
        self.formed, self.raised = {}, {}
        connect = lambda host, port, *_: self.stores[port]  # noqa: E731
        fake = types.SimpleNamespace(TCPStore=connect, PrefixStore=Prefixed)
        for name, value in (("dist", fake), ("_LOOK_AGAIN_S", 0.001)):
            patch = unittest.mock.patch.object(_circle, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def circle(self, number):
        circle = _circle.Circle.__new__(_circle.Circle)
        circle._timeout = datetime.timedelta(seconds=PATIENCE)
        circle._number, circle.members, circle._own = number, [0, 1, 2, 3], self.stores[number]
        circle._places = [("host", member) for member in range(4)]
        circle._asked = circle._led = 0
        circle._answered = {}
        circle._is_there = lambda member: self.stores[member].lives

        def form(place):
            place.store.meet(place.prefix, number, circle.members)
            self.formed[number] = (place.store, place.prefix, circle.members)
            return place

        circle._form = form
        return circle

    def reform(self, number, position, circle=None, rank=None):
        circle = circle or self.circle(number)
        error = Unavailable("a rank is gone")
        error.rank = rank

        def run():
            try:
                circle.reform(error, position)
            except Exception as raised:
                self.raised[number] = raised

        thread = threading.Thread(target=run, name=str(number), daemon=True)
        thread.start()
        return thread

    def ended(self, threads):
        for thread in threads:
            thread.join(2 * PATIENCE)
        self.assertFalse(any(thread.is_alive() for thread in threads))

    def dies_when_read_by(self, readers):
        """Member 0 leads, and dies when these have read what it settled and the others have not."""
        leader, look = self.circle(0), _circle.look
        names = {str(reader) for reader in readers}

        def look_and_die(store, key):
            name = threading.current_thread().name
            first = getattr(store, "store", store) is self.stores[0]
            if first and "verdict" in key and name != "0" and name not in names:
                self.stores[0].check()
                return None
            said = look(store, key)
            if first and said is not None and name in names:
                names.discard(name)
                if not names:
                    self.stores[0].die()
            return said

        with unittest.mock.patch.object(_circle, "look", look_and_die):
            leading = self.reform(0, 5, leader)
            followers = [self.reform(number, 5 + number) for number in (1, 2, 3)]
            self.ended(followers)
            leading.join(2 * PATIENCE)
        self.raised.pop(0, None)  # which is dead
        self.assertEqual(self.raised, {})
        self.assertEqual([self.formed[number] for number in (2, 3)], [self.formed[1]] * 2)
        self.assertEqual(self.formed[1][0], self.stores[1])
        self.assertEqual(self.formed[1][2], [1, 2, 3])

    def test_a_leader_that_dies_when_some_have_read_its_verdict_is_followed_by_the_next_for_all(self):
        for readers in ((2,), (1,), (1, 3), (1, 2, 3)):
            with self.subTest(readers=readers):
                self.stores[:] = [Store() for _ in range(4)]
                self.formed.clear()
                self.dies_when_read_by(readers)

    def test_one_that_others_blame_and_that_comes_too_late_hears_that_it_is_left_out(self):
        self.ended([self.reform(number, 5, rank=3) for number in (0, 1, 2)])
        self.assertEqual(self.formed[0][2], [0, 1, 2])
        self.ended([self.reform(3, 5)])
        self.assertIsInstance(self.raised[3], Dropped)

    def test_they_form_one_group_after_the_other(self):
        circles = [self.circle(number) for number in range(4)]
        self.ended([self.reform(number, 7, circles[number]) for number in range(4)])
        first = self.formed[0]
        self.stores[3].die()
        self.ended([self.reform(number, 9, circles[number]) for number in range(3)])
        self.assertEqual(self.formed[1], self.formed[0])
        self.assertNotEqual(self.formed[0][1], first[1])
        self.assertEqual(self.formed[0][2], [0, 1, 2])


if __name__ == "__main__":
    unittest.main()
