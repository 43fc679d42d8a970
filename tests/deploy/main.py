"""Runs every deploy check; tests/deploy/check.sh prepares the tools and starts it."""

import sys

import chart_checks
import compose_tls_checks
import dashboard_checks
import image_checks
import manifest_checks
import promise_checks
import prometheus_checks
import runbook_checks
import storage_checks
from report import Report


def main() -> int:
    report = Report(only=sys.argv[1:])
    for module in (
        chart_checks,
        manifest_checks,
        promise_checks,
        storage_checks,
        image_checks,
        compose_tls_checks,
        prometheus_checks,
        dashboard_checks,
        runbook_checks,
    ):
        module.add_checks(report)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
