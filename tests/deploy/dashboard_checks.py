"""Checks of the Grafana dashboard: Grafana's linter rules, valid Prometheus expressions, and equal copies.

There is no Grafana here, so the look of panels is not checked.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any, Iterator

import chart
import prometheus_checks
from report import ROOT, Report, need_module, run

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD = FOLDER / "syncline.json"
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The units of Grafana that this dashboard may use.
UNITS = {"none", "s", "bytes", "Bps", "percentunit", "ops", "cps"}
COLUMNS = 24
SELECTOR = re.compile(r"\b(syncline_[a-z_]+|up)\{([^}]*)\}(\[[^\]]+\])?")
OF_NO_JOB = re.compile(r"syncline_(build_info|server_memory_bytes|auth_refused_total|audit_lines_lost_total)$")
# The text that Grafana inserts for a variable if all its values are chosen.
VALUES = {"$__rate_interval": "1m", "$__range": "1h", "$job_name": ".+", "$job": ".+", "$release": ".*", "$instance": ".+"}


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def panels() -> list[dict[str, Any]]:
    return [p for p in dashboard()["panels"] if p["type"] != "row"]


def variables() -> dict[str, dict[str, Any]]:
    return {v["name"]: v for v in dashboard()["templating"]["list"]}


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def check_variables() -> None:
    found = variables()
    assert list(found) == ["datasource", "job", "release", "instance", "job_name"], list(found)
    source = found.pop("datasource")
    assert (source["type"], source["query"], source["label"]) == ("datasource", "prometheus", "Data source")
    for name, variable in found.items():
        assert variable["datasource"] == DATASOURCE, f"{name} asks a data source of its own"
        assert variable["multi"] and variable["includeAll"] and variable["allValue"], name
        assert variable["refresh"] == 2, f"{name} is not asked again when the time range changes"


def check_panels() -> None:
    board = dashboard()
    assert board["editable"] is False and board["uid"] == "syncline"
    ids = [p["id"] for p in board["panels"]]
    assert len(ids) == len(set(ids)), "two panels have one id"
    titles = [p["title"] for p in board["panels"]]
    assert len(titles) == len(set(titles)), "two panels have one title"
    for panel in panels():
        title = panel["title"]
        assert title and panel["description"].endswith("."), f"'{title}' does not say what it shows"
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, f"'{title}' has no unit"
        sources = [panel["datasource"], *(t["datasource"] for t in panel["targets"])]
        assert all(s == DATASOURCE for s in sources), f"'{title}' asks a data source of its own"


def check_no_panel_covers_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS, f"'{panel['title']}' is wider than the page"
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            other = taken.setdefault(cell, panel["title"])
            assert other == panel["title"], f"'{panel['title']}' lies over '{other}'"


def check_selectors() -> None:
    """Each selector uses all variables for which its metric has a label, and counters are read as rates."""
    for title, expression in expressions():
        selectors = SELECTOR.findall(expression)
        named = re.findall(r"\bsyncline_[a-z_]+", expression)
        assert selectors and len(named) == len([s for s in selectors if s[0] != "up"]), f"'{title}': a metric without labels"
        for metric, labels, window in selectors:
            wanted = ["job", "instance", "release"]
            if metric.startswith("syncline_") and not OF_NO_JOB.match(metric):
                wanted.append("job_name")
            for label in wanted:
                assert f'{label}=~"${label}"' in labels, f"'{title}': {metric} is not chosen by {label}"
            assert window in ("", "[$__rate_interval]", "[$__range]"), f"'{title}': {window} is not Grafana's interval"
            counts = metric.endswith(("_total", "_bucket", "_count", "_sum"))
            rate = re.search(rf"\b(rate|increase)\({metric}\{{", expression)
            assert bool(counts) == bool(rate), f"'{title}': {metric} is read as what it is not"


def check_expressions_parse() -> None:
    """promtool parses each expression as that of a recording rule."""
    rules = []
    for number, (_, expression) in enumerate(expressions()):
        for variable, value in VALUES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression, f"an unknown variable in {expression}"
        rules.append({"record": f"panel:{number}", "expr": expression})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dashboard.json"
        path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
        run("promtool", "check", "rules", path)


def check_metrics_exist() -> None:
    prometheus_checks.check_registered(DASHBOARD.read_text())


def check_chart_has_it() -> None:
    values = {"grafanaDashboard": {"enabled": True, "annotations": {"grafana_folder": "ML"}}}
    config = chart.named(chart.render(values), "ConfigMap", "-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1", "the sidecar would not find it"
    assert config["metadata"]["annotations"] == {"grafana_folder": "ML"}
    (text,) = config["data"].values()
    assert json.loads(text) == dashboard(), f"cp {DASHBOARD.relative_to(ROOT)} helm/syncline/files/dashboard.json"
    names = [m["metadata"]["name"] for m in chart.of_kind(chart.render({}), "ConfigMap")]
    assert not [n for n in names if n.endswith("-dashboard")], "on by default"


def check_compose_shows_it() -> None:
    """Data source, provider and mounts of the compose file fit together."""
    yaml = need_module("yaml")
    service = yaml.safe_load(COMPOSE.read_text())["services"]["grafana"]
    mounts = {}
    for volume in service["volumes"]:
        source, target, mode = volume.split(":")
        assert mode == "ro" and (COMPOSE.parent / source).exists(), volume
        mounts[target] = (COMPOSE.parent / source).resolve()
    assert mounts["/etc/grafana/provisioning"] == FOLDER / "provisioning"
    home = service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert mounts[home] == DASHBOARD, home
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/syncline.yaml").read_text())["providers"]
    assert provider["options"]["path"] == str(Path(home).parent), provider
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/syncline.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["type"] == "prometheus", source
    scrape = yaml.safe_load((prometheus_checks.FOLDER / "prometheus.yaml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"], "$__rate_interval would be wrong"


def add_checks(report: Report) -> None:
    report.check("dashboard asks for its variables", check_variables)
    report.check("dashboard explains each panel", check_panels)
    report.check("dashboard panels do not overlap", check_no_panel_covers_another)
    report.check("dashboard selectors use all variables", check_selectors)
    report.check("dashboard expressions parse", check_expressions_parse)
    report.check("dashboard uses metrics that exist", check_metrics_exist)
    report.check("dashboard of the chart is that of deploy", check_chart_has_it)
    report.check("dashboard is provisioned by compose", check_compose_shows_it)
