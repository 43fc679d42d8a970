"""Reads a file of `syncline trace`, and checks that Perfetto can show it. It is the tests' own validator."""

import collections
import json


class TraceFile:
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            whole = json.load(file)
        self.about = whole["otherData"]
        self.events = whole["traceEvents"]
        self.processes = {e["pid"]: e["args"]["name"] for e in self.events if e["ph"] == "M" and e["name"] == "process_name"}
        self.slices = [e for e in self.events if e["ph"] == "X"]
        self.check()

    def check(self):
        """Raises AssertionError for an invalid event, a slice that crosses another one of its thread, or an open arrow."""
        ways, flows, threads = {}, collections.defaultdict(list), collections.defaultdict(list)
        for event in self.events:
            assert event["ph"] in "MXbestf", event
            assert event["pid"] in self.processes, event
            if event["ph"] == "X":
                assert event["ts"] >= 0 and event["dur"] >= 0, event
                threads[event["pid"], event["tid"]].append(event)
            elif event["ph"] == "b":
                assert event["id"] not in ways, event
                ways[event["id"]] = event
            elif event["ph"] == "e":
                begin = ways.pop(event["id"])
                assert begin["ts"] <= event["ts"] and begin["name"] == event["name"], event
            elif event["ph"] in "stf":
                flows[event["id"]].append(event)
        assert not ways, f"ways that never end: {ways}"
        for slices in threads.values():
            self.check_nesting(slices)
        for events in flows.values():
            assert events[0]["ph"] == "s" and events[-1]["ph"] == "f", events
            for event in events:
                assert self.enclosing(threads[event["pid"], event["tid"]], event["ts"]), event
        self.flows = list(flows.values())

    @staticmethod
    def check_nesting(slices):
        stack = []
        for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            # Times are compared in whole nanoseconds, because sums of decimal numbers are not exact.
            begin, end = round(event["ts"] * 1000), round(event["ts"] * 1000) + round(event["dur"] * 1000)
            while stack and stack[-1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1], f"{event} crosses the slice that it begins in"
            stack.append(end)

    @staticmethod
    def enclosing(slices, time):
        return any(e["ts"] <= time <= e["ts"] + e["dur"] + 1e-3 for e in slices)

    def steps_of(self, member):
        """Returns the steps in which the member whose name begins so has events."""
        pids = [pid for pid, name in self.processes.items() if name.startswith(member)]
        return {e["args"]["step"] for e in self.events if e["pid"] in pids and "step" in e.get("args", {})}

    def names_of(self, member):
        pids = [pid for pid, name in self.processes.items() if name.startswith(member)]
        return {e["name"] for e in self.events if e["pid"] in pids and e["ph"] in "Xb"}

    @property
    def window(self):
        return set(range(self.about["first_step"], self.about["first_step"] + self.about["steps"]))
