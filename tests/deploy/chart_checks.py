"""Checks of the chart for its users: it lints, it renders, and it refuses unknown values."""

import json
import re
from typing import Any

import chart
from report import CHART, ROOT, VALUES_FILES, Report

# Mistakes of users, and a word that the refusal must contain.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("a misspelt section", {"sever": {"replicas": 3}}, "sever"),
    ("a misspelt key", {"server": {"replica": 3}}, "replica"),
    ("a misspelt nested key", {"coordinator": {"persistence": {"sise": "1Gi"}}}, "sise"),
    ("a misspelt resource list", {"server": {"resources": {"limit": {}}}}, "limit"),
    ("a misspelt toleration", {"worker": {"tolerations": [{"keys": "x"}]}}, "keys"),
    ("a misspelt network peer", {"networkPolicy": {"clients": [{"pods": {}}]}}, "pods"),
    ("a word for a number", {"server": {"replicas": "three"}}, "replicas"),
    ("a number for a switch", {"tls": {"enabled": 1}}, "enabled"),
    ("a number in an environment", {"config": {"env": {"A": 1}}}, "env"),
    ("no servers at all", {"server": {"replicas": 0}}, "replicas"),
    ("a time without a unit", {"config": {"failureTimeout": "10"}}, "failureTimeout"),
    ("a size with a blank", {"server": {"shmSize": "1 Gi"}}, "shmSize"),
    ("snapshots all the time", {"server": {"journal": {"snapshotFactor": 0.5}}}, "snapshotFactor"),
    ("an unknown log format", {"config": {"logFormat": "xml"}}, "logFormat"),
    ("a port that needs root", {"config": {"dataPorts": {"first": 80}}}, "first"),
    ("ports upside down", {"config": {"dataPorts": {"first": 7300}}}, "dataPorts"),
    ("TLS without a secret", {"tls": {"enabled": True}}, "existingSecrets"),
    ("cert-manager without an issuer", {"tls": {"enabled": True, "certManager": {"enabled": True}}}, "issuerRef"),
    ("a list of revoked certificates without TLS", {"tls": {"revokedSecret": "taken-back"}}, "tls.enabled"),
    ("a cluster no URI can name", {"tls": {"cluster": "my cluster"}}, "cluster"),
    ("workers without an image", {"worker": {"enabled": True}}, "repository"),
    ("a label that selects pods", {"commonLabels": {"app.kubernetes.io/name": "x"}}, "kubernetes.io/name"),
    ("a capability in lower case", {"server": {"addCapabilities": ["ipc_lock"]}}, "addCapabilities"),
    ("a volume without a name", {"worker": {"extraVolumes": [{"emptyDir": {}}]}}, "extraVolumes"),
    ("standbys without etcd", {"coordinator": {"replicas": 2}}, "etcd.endpoints"),
    ("an etcd in the clear where there is TLS", chart.SECURE | {"coordinator": {"etcd": {"endpoints": ["e:2379"]}}}, "etcd.tlsSecret"),
    ("an etcd without a port", {"coordinator": {"etcd": {"endpoints": ["e"]}}}, "endpoints"),
    ("a bucket without a secret", {"checkpoints": {"enabled": True, "s3": {"bucket": "models"}}}, "credentialsSecret"),
    ("a bucket in capitals", {"checkpoints": {"s3": {"bucket": "Models"}}}, "bucket"),
    ("an unknown update", {"updateStrategy": "Recreate"}, "updateStrategy"),
    ("the world without TLS", {"service": {"type": "LoadBalancer"}}, "tls.enabled"),
    ("a job name no pod can have", {"worker": {"job": "My_Job"}}, "job"),
]


def check_lint(values: dict[str, Any]) -> None:
    findings = chart.lint(values)
    assert not findings, "\n".join(findings)


def check_refusal(values: dict[str, Any], word: str) -> None:
    try:
        chart.render(values)
    except chart.helm().HelmError as error:
        assert word in str(error), f"the refusal does not say '{word}': {error}"
    else:
        raise AssertionError(f"the chart accepted {values}")


def check_notes() -> None:
    plain = chart.notes({})
    assert "NOT encrypted" in plain and "demo-syncline.ml.svc" in plain, plain
    secure = chart.notes(chart.SECURE)
    assert "SYNCLINE_TLS_CA" in secure and "NOT encrypted" not in secure, secure


def check_schema_is_closed() -> None:
    """No object of the schema accepts an unlisted key, unless it says that it is open."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    open_objects = []

    def visit(node: Any, path: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and "additionalProperties" not in node:
                if "$comment" not in node:
                    open_objects.append(path)
            for key, child in node.items():
                visit(child, f"{path}/{key}")

    visit(schema, "")
    assert not open_objects, f"open objects without a $comment: {open_objects}"


def check_schema_and_values_agree() -> None:
    """Each default has a schema, and each key of the schema a documented default."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = chart.read_values(CHART / "values.yaml")
    differences: list[str] = []

    def visit(node: dict[str, Any], value: dict[str, Any], path: str) -> None:
        known = set(node["properties"]) - {"global"}
        for key in sorted(known ^ set(value)):
            differences.append(f"{path}{key}")
        for key in known & set(value):
            child = node["properties"][key]
            if "$ref" in child:
                child = schema["$defs"][child["$ref"].rsplit("/", 1)[1]]
            # Kubernetes defines more keys of these contexts than the chart sets.
            partial = key in ("podSecurityContext", "containerSecurityContext")
            if "properties" in child and key != "resources" and not partial:
                if isinstance(value[key], dict) and value[key]:
                    visit(child, value[key], f"{path}{key}.")

    visit(schema, values, "")
    assert not differences, f"in only one of schema and values: {differences}"


def check_every_value_is_explained() -> None:
    """Each key has its own `# --` line, or is in a section that has one."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare: list[str] = []
    explained: list[tuple[int, bool]] = []  # (indent, explained) of the enclosing sections
    for number, line in enumerate(lines):
        key = re.match(r"^( *)([A-Za-z]+):(.*)$", line)
        if not key:
            continue
        indent = len(key[1])
        while explained and explained[-1][0] >= indent:
            explained.pop()
        inside = bool(explained) and explained[-1][1]
        own = lines[number - 1].strip().startswith("# -- ")
        is_section = not key[3].strip()
        if not (own or inside or is_section):
            bare.append(f"line {number + 1}: {key[2]}")
        explained.append((indent, own or inside))
    assert not bare, f"values without a `# --` line: {bare}"


def check_version() -> None:
    cmake = (ROOT / "CMakeLists.txt").read_text()
    version = re.search(r"project\(syncline VERSION (\S+)", cmake)
    assert version, "CMakeLists.txt names no version"
    app = re.search(r"^appVersion: (\S+)$", (CHART / "Chart.yaml").read_text(), re.M)
    assert app and app[1] == version[1], f"appVersion is not {version[1]}"


def add_checks(report: Report) -> None:
    for path in VALUES_FILES:
        report.check(
            f"helm lint {path.name}",
            lambda path=path: check_lint(chart.read_values(path)),
        )
        report.check(
            f"helm template {path.name}",
            lambda path=path: chart.render(chart.read_values(path)),
        )
    for what, values, word in REFUSED:
        report.check(
            f"chart refuses {what}",
            lambda values=values, word=word: check_refusal(values, word),
        )
    report.check("chart notes fit the settings", check_notes)
    report.check("chart schema is closed", check_schema_is_closed)
    report.check("chart schema and values agree", check_schema_and_values_agree)
    report.check("chart explains every value", check_every_value_is_explained)
    report.check("chart has the project's version", check_version)
