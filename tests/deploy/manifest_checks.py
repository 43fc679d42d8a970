"""Checks the rendered manifests against Kubernetes' own types, in two ways.

kubernetes-validate has the API's JSON schemas (all kinds, several releases, closed objects). kubectl decodes kinds with
pod templates into the real client types, and silently drops unknown fields: a field that its answer lacks is misspelt.
Neither knows custom resources.
"""

import copy
import json
from typing import Any

import chart
from report import VALUES_FILES, Report, Skip, need_module, run

# The oldest release whose schemas the tool has, and the newest.
RELEASES = ("1.32", "1.37")
CUSTOM = ("Certificate", "PrometheusRule", "ServiceMonitor")
POD_TEMPLATE_KINDS = ("StatefulSet", "Job")
# Chart.yaml's kubeVersion. An older kubectl drops valid fields.
OLDEST_KUBECTL = (1, 29)


def validate(manifest: chart.Manifest, release: str) -> None:
    tool = need_module("kubernetes_validate")
    try:
        tool.validate(manifest, release, strict=True)
    except tool.ValidationError as error:
        where = "/".join(map(str, error.absolute_path))
        raise AssertionError(f"{manifest['kind']} {where}: {error.message}") from error


def check_schemas(manifests: list[chart.Manifest], release: str) -> None:
    need_module("kubernetes_validate")
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            validate(manifest, release)


def dropped(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Returns the paths of `sent` that `kept` lacks."""
    if isinstance(sent, dict):
        if not isinstance(kept, dict):
            return [path] if sent else []
        # Empty values may be omitted. This is not a typing error.
        filled = {key: value for key, value in sent.items() if value not in (None, "", [])}
        return [
            p for key, value in filled.items()
            for p in (dropped(value, kept[key], f"{path}/{key}") if key in kept
                      else [f"{path}/{key}"])
        ]
    if isinstance(sent, list):
        if not isinstance(kept, list) or len(kept) < len(sent):
            return [path]
        pairs = enumerate(zip(sent, kept))
        return [p for i, (a, b) in pairs for p in dropped(a, b, f"{path}/{i}")]
    return []


def need_kubectl() -> None:
    client = json.loads(run("kubectl", "version", "--client", "-o", "json"))["clientVersion"]
    version = tuple(int(part) for part in client["gitVersion"].lstrip("v").split(".")[:2])
    if version < OLDEST_KUBECTL:
        raise Skip(f"kubectl {client['gitVersion']} is too old to know the chart's fields")


def kubectl_decode(manifest: chart.Manifest) -> None:
    """Decodes with the client's own types, by a change that affects no file and no server."""
    need_kubectl()
    answer = run(
        "kubectl", "set", "env", "--local", "-f", "-", "-o", "json", "TYPED_DECODE=1",
        stdin=json.dumps(manifest),
    )
    missing = dropped(manifest, json.loads(answer))
    assert not missing, f"{manifest['kind']}: kubectl does not know {missing}"


def check_kubectl(manifests: list[chart.Manifest]) -> None:
    for kind in POD_TEMPLATE_KINDS:
        for manifest in chart.of_kind(manifests, kind):
            kubectl_decode(manifest)


def broken_statefulsets() -> list[tuple[str, chart.Manifest]]:
    """Returns damaged copies of a valid manifest. Each validator must refuse all of them."""
    good = chart.named(chart.render({}), "StatefulSet", "-server")
    misspelt = copy.deepcopy(good)
    container = misspelt["spec"]["template"]["spec"]["containers"][0]
    container["readinessProb"] = container.pop("readinessProbe")
    mistyped = copy.deepcopy(good)
    mistyped["spec"]["replicas"] = "three"
    return [("a misspelt field", misspelt), ("a wrong type", mistyped)]


def check_finds_damage(validator: Any) -> None:
    validator(chart.named(chart.render({}), "StatefulSet", "-server"))
    for what, manifest in broken_statefulsets():
        try:
            validator(manifest)
        except AssertionError:
            continue
        raise AssertionError(f"it accepted {what}")


def add_checks(report: Report) -> None:
    for path in VALUES_FILES:
        for release in RELEASES:
            report.check(
                f"kubernetes {release} types {path.name}",
                lambda path=path, release=release: check_schemas(
                    chart.render(chart.read_values(path)), release
                ),
            )
        report.check(
            f"kubectl types {path.name}",
            lambda path=path: check_kubectl(chart.render(chart.read_values(path))),
        )
    report.check(
        "kubernetes-validate finds damage",
        lambda: check_finds_damage(lambda manifest: validate(manifest, RELEASES[-1])),
    )
    report.check("kubectl finds damage", lambda: check_finds_damage(kubectl_decode))
