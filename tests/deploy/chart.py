"""Helm for the checks: the Go engine itself, through its Python binding.

Importing this module needs no package. Each function skips its check if Helm or PyYAML is missing.
"""

from pathlib import Path
from typing import Any

from report import CHART, Skip, need_module

RELEASE = "demo"
NAMESPACE = "ml"

Manifest = dict[str, Any]

# Mutual TLS with certificates of cert-manager.
SECURE = {"tls": {"enabled": True, "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}}


def helm() -> Any:
    module = need_module("helm_python")
    try:
        module.helm_sdk_version()
    except Exception as error:
        raise Skip(f"Helm's library does not load: {error}") from error
    return module


def read_values(path: Path) -> dict[str, Any]:
    return need_module("yaml").safe_load(path.read_text()) or {}


def lint(values: dict[str, Any]) -> list[str]:
    """Returns what `helm lint --strict` prints at level warning or error."""
    warning = 2
    found = helm().lint(CHART, values, strict=True, namespace=NAMESPACE)
    worse = [m for m in found["messages"] if m["severity"] >= warning]
    return [f"{m['path']}: {m['error']}" for m in worse] + found["errors"]


def render(values: dict[str, Any], chart: Path = CHART) -> list[Manifest]:
    """Returns the parsed output of `helm template`. Raises HelmError if the chart refuses the values."""
    yaml = need_module("yaml")
    with helm().Chart.load(chart) as loaded:
        files = loaded.render(values, name=RELEASE, namespace=NAMESPACE)
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [m for text in texts for m in yaml.safe_load_all(text) if m]


def notes(values: dict[str, Any]) -> str:
    with helm().Chart.load(CHART) as loaded:
        files = loaded.render(values, name=RELEASE, namespace=NAMESPACE)
    return files["syncline/templates/NOTES.txt"]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [m for m in manifests if m["kind"] == kind]


def named(manifests: list[Manifest], kind: str, suffix: str) -> Manifest:
    found = [m for m in of_kind(manifests, kind) if m["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, f"{len(found)} {kind} named …{suffix}, not one"
    return found[0]


def pods(manifests: list[Manifest]) -> list[Manifest]:
    """Returns every pod (or pod template) of the release, as {metadata, spec}."""
    templates = [m["spec"]["template"] for m in manifests if "template" in m.get("spec", {})]
    return templates + of_kind(manifests, "Pod")
