"""Computes when the rules of deploy/prometheus would have fired: promtool evaluates them over scraped metrics.

    scrapes = Scrapes()
    scrapes.begin()
    scrapes.add({"instance": "coordinator", "component": "coordinator"}, text)   # of /metrics; None: no answer
    firing(scrapes, rules, every=5)     # {"SynclineWorkersLost": [300, 315, ...]}: seconds
"""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile

PROMTOOL = shutil.which("promtool")
EVALUATED_EVERY = 15  # seconds, as in prometheus.yaml
_LINE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)$")
_FIRES = re.compile(r'alertname="(\w+)"')


def parsed(text):
    """Yields (name, labels as written without braces, value) of each line of Prometheus' text format."""
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and not line.startswith("#"):
            name, labels, value = match.groups()
            yield name, (labels or "{}")[1:-1], value


class Scrapes:
    """Samples of series, by the number of the round in which they were scraped."""

    def __init__(self):
        self.rounds = -1
        self.series = {}  # selector: {round: value}

    def begin(self):
        """Begins the next round of all targets."""
        self.rounds += 1

    def add(self, target, text):
        """Adds the answer of a target in this round; None: it did not answer."""
        own = ", ".join(f'{name}="{value}"' for name, value in {"job": "syncline", **target}.items())
        self._keep(f"up{{{own}}}", "0" if text is None else "1")
        for name, labels, value in parsed(text or ""):
            if name.startswith("syncline_"):
                self._keep(f"{name}{{{own}{', ' if labels else ''}{labels}}}", value)

    def _keep(self, selector, value):
        self.series.setdefault(selector, {})[self.rounds] = value

    def as_input(self):
        """Returns the series in the format of promtool's unit tests."""
        return [{"series": selector, "values": " ".join(values.get(number, "_") for number in range(self.rounds + 1))}
                for selector, values in sorted(self.series.items())]  # fmt: skip


def firing(scrapes, rules, every):
    """Returns the seconds since the first round at which alerts fire, by name, if rounds are `every` seconds apart."""
    times = range(0, scrapes.rounds * every + 1, EVALUATED_EVERY)
    test = {"interval": f"{every}s", "input_series": scrapes.as_input(),
            "promql_expr_test": [{"expr": f'ALERTS{{alertstate="firing"}} or vector({second})', "eval_time": f"{second}s"}
                                 for second in times]}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "test.json"
        path.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": f"{EVALUATED_EVERY}s", "tests": [test]}))
        # The test expects nothing, so promtool prints the actual alerts at each time.
        said = subprocess.run([PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True)
    found, seen = {}, set()
    for part in re.split(r"\bexpr: ", said.stderr + said.stdout)[1:]:
        at = re.match(r'.*?or vector\((\d+)\)', part)
        second = int(at.group(1))
        seen.add(second)
        for name in set(_FIRES.findall(part[at.end():])):
            found.setdefault(name, []).append(second)
    if seen != set(times):
        raise RuntimeError(f"promtool said nothing of {sorted(set(times) - seen)}: {said.stderr or said.stdout}")
    return {name: sorted(times) for name, times in found.items()}


def begins(times):
    """Returns the times at which an alert begins to fire."""
    return [at for at in times if at - EVALUATED_EVERY not in times]
