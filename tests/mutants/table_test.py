#!/usr/bin/env python3
"""Tests that the table of checks fits the sources: a change of a check must also change its line there."""

import pathlib
import re
import unittest

from checks import CHECKS

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Table(unittest.TestCase):
    def test_each_check_stands_where_the_table_says_and_once(self):
        for check in CHECKS:
            with self.subTest(check.name):
                self.assertEqual((ROOT / check.file).read_text().count(check.find), 1, f"{check.file} has not once: {check.find}")
                self.assertNotEqual(check.find, check.replace)

    def test_each_target_has_tests_of_that_name(self):
        for check in CHECKS:
            folder = check.target.removesuffix("_test").replace("_", "/")
            sources = "".join(path.read_text() for path in (ROOT / folder).glob("*_test.cc"))
            for pattern in check.tests.split(":"):
                with self.subTest(check.target, pattern=pattern):
                    found = re.search(rf"TEST(_F|_P)?\(\w*{pattern.strip('*')}", sources)
                    self.assertTrue(found, f"no test of {check.target} is called {pattern}")

    def test_names_differ(self):
        self.assertEqual(len({check.name for check in CHECKS}), len(CHECKS))


if __name__ == "__main__":
    unittest.main()
