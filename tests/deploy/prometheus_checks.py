"""Checks of scrape configuration and alerts: promtool accepts them, and the metrics that they name exist."""

import re

from report import ROOT, Report, Skip, need_module, run

FOLDER = ROOT / "deploy" / "prometheus"
SOURCES = ("comm", "server", "worker", "cli")


def check_alerts_are_tested() -> None:
    """Each alert has a test in which it fires and one in which it does not."""
    yaml = need_module("yaml")
    rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    fires = {case["alertname"] for case in cases if case.get("exp_alerts")}
    quiet = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    alerts = {rule["alert"] for rule in rules}
    assert fires == alerts and quiet == alerts, f"fires {fires}, stays quiet {quiet}"


def metrics_in(text: str) -> set[str]:
    suffix = r"_(bucket|sum|count)$"
    return {re.sub(suffix, "", name) for name in re.findall(r"\bsyncline_[a-z_]+", text)}


def registered() -> set[str]:
    """Returns the metrics that the code names. Skips the check if there are none."""
    code = ""
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cc", ".h") and "_test" not in path.name:
                code += path.read_text()
    found = set(re.findall(r'"(syncline_[a-z_]+)"', code))
    if not found:
        raise Skip("the code registers no metrics yet")
    return found


def check_registered(text: str) -> None:
    unknown = metrics_in(text) - registered()
    assert not unknown, f"no code registers {sorted(unknown)}"


def check_metrics_exist() -> None:
    """Every metric of an alert is registered somewhere in the code."""
    check_registered((FOLDER / "alerts.yaml").read_text())


def promtool(*args: str) -> None:
    run("promtool", *args, cwd=FOLDER)


def add_checks(report: Report) -> None:
    report.check("promtool check config", lambda: promtool("check", "config", "prometheus.yaml"))
    # The authority's certificate is in a volume.
    report.check("promtool check config with TLS", lambda: promtool("check", "config", "--syntax-only", "prometheus.tls.yaml"))
    report.check("promtool check rules", lambda: promtool("check", "rules", "alerts.yaml"))
    report.check("promtool test rules", lambda: promtool("test", "rules", "alerts_test.yaml"))
    report.check("every alert is tested both ways", check_alerts_are_tested)
    report.check("alerts use metrics that exist", check_metrics_exist)
