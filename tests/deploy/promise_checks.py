"""What the chart promises beyond well-formed YAML: parts that fit together, nothing privileged,
upgrades that do not restart servers for nothing."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import chart
from report import CHART, VALUES_FILES, Report

WORKERS = {"worker": {"enabled": True, "image": {"repository": "train"}}}
TLS = {"tls": {"enabled": True, "existingSecret": "certificates"}}


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def containers(manifests: list[chart.Manifest]) -> list[chart.Manifest]:
    return [c for pod in chart.pods(manifests) for c in pod["spec"]["containers"]]


def check_hardened(manifests: list[chart.Manifest]) -> None:
    for pod in chart.pods(manifests):
        spec = pod["spec"]
        context = spec["securityContext"]
        assert spec["automountServiceAccountToken"] is False, "a token is mounted"
        assert context["runAsNonRoot"] and context["runAsUser"] >= 10000, context
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, context
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"] is True, own
            assert own["allowPrivilegeEscalation"] is False, own
            assert own["capabilities"]["drop"] == ["ALL"], own
            assert "memory" in container["resources"]["limits"], "no memory limit"


def check_parts_fit(manifests: list[chart.Manifest]) -> None:
    templates = chart.pods(manifests)
    for service in chart.of_kind(manifests, "Service"):
        found = [p for p in templates
                 if matches(service["spec"]["selector"], p["metadata"]["labels"])]
        name = service["metadata"]["name"]
        assert len(found) == 1, f"service {name} selects {len(found)} kinds of pods"
        ports = {p["name"] for c in found[0]["spec"]["containers"] for p in c["ports"]}
        wanted = {p["targetPort"] for p in service["spec"]["ports"]}
        assert wanted <= ports, f"service {name} wants the ports {wanted - ports}"
    services = {s["metadata"]["name"] for s in chart.of_kind(manifests, "Service")}
    for stateful in chart.of_kind(manifests, "StatefulSet"):
        spec = stateful["spec"]
        labels = spec["template"]["metadata"]["labels"]
        assert matches(spec["selector"]["matchLabels"], labels), "it selects other pods"
        assert spec["serviceName"] in services, spec["serviceName"]
    for budget in chart.of_kind(manifests, "PodDisruptionBudget"):
        selector = budget["spec"]["selector"]["matchLabels"]
        assert any(matches(selector, p["metadata"]["labels"]) for p in templates), selector
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def check_mounts_exist(manifests: list[chart.Manifest]) -> None:
    for owner in [m for m in manifests if m["kind"] in ("StatefulSet", "Job", "Pod")]:
        spec = owner["spec"].get("template", owner)["spec"]
        claims = owner["spec"].get("volumeClaimTemplates", [])
        volumes = {v["name"] for v in spec["volumes"]}
        volumes |= {c["metadata"]["name"] for c in claims}
        for container in spec["containers"]:
            mounted = {m["name"] for m in container["volumeMounts"]}
            assert mounted == volumes, f"{owner['kind']}: mounts {mounted}, has {volumes}"


def check_addresses_lead_somewhere(manifests: list[chart.Manifest]) -> None:
    """Every in-cluster host in a flag or a variable is a service that the release makes."""
    services = {s["metadata"]["name"] for s in chart.of_kind(manifests, "Service")}
    texts = [text for c in containers(manifests)
             for text in c.get("args", []) + [e.get("value", "") for e in c["env"] or []]]
    hosts = [t.split("=")[-1].split(":")[0] for t in texts if ".svc." in t]
    assert hosts, "no address at all"
    for host in hosts:
        service = host.removeprefix("$(POD_NAME).").split(".")[0]
        assert service in services, f"{host} is no service of this release"


def check_tls_or_insecure() -> None:
    for values, secure in (({}, False), (TLS, True)):
        for stateful in chart.of_kind(chart.render(values), "StatefulSet"):
            args = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
            assert ("--insecure" in args) is not secure, args
            assert any(a.startswith("--tls-ca=") for a in args) is secure, args


def check_worker_job() -> None:
    job = chart.named(chart.render(WORKERS | TLS), "Job", "-worker-example")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    rules = {r["action"]: r["onExitCodes"]["values"]
             for r in spec["podFailurePolicy"]["rules"] if "onExitCodes" in r}
    assert rules == {"FailJob": [2, 6, 7], "Ignore": [143]}, rules
    env = {e["name"]: e for e in spec["template"]["spec"]["containers"][0]["env"]}
    for name in ("SYNCLINE_COORDINATOR", "SYNCLINE_JOB", "RANK", "WORLD_SIZE",
                 "SYNCLINE_TLS_CA"):
        assert name in env, f"{name} is not set"
    assert not chart.of_kind(chart.render({}), "Job"), "the example job is on by default"


def pod_templates(values: dict[str, Any], path: Path = CHART) -> list[Any]:
    stateful = chart.of_kind(chart.render(values, path), "StatefulSet")
    return [s["spec"]["template"] for s in stateful]


def check_settings_restart_pods() -> None:
    before, after = pod_templates({}), pod_templates({"config": {"failureTimeout": "20s"}})
    assert all(a != b for a, b in zip(before, after)), "a changed setting restarts nothing"


def check_settings_leave_jobs_alone() -> None:
    changed = WORKERS | {"config": {"failureTimeout": "20s"}}
    before, after = (chart.of_kind(chart.render(v), "Job") for v in (WORKERS, changed))
    assert before == after, "Kubernetes would refuse to change the Job"


def check_chart_version_restarts_nothing() -> None:
    chart.helm()
    with tempfile.TemporaryDirectory() as folder:
        newer = Path(folder) / "syncline"
        shutil.copytree(CHART, newer)
        text = (newer / "Chart.yaml").read_text()
        (newer / "Chart.yaml").write_text(text.replace("\nversion: ", "\nversion: 9"))
        assert chart.render({}, newer) != chart.render({}), "the version was not changed"
        assert pod_templates({}, newer) == pod_templates({}), "servers would restart"


def check_service_monitor() -> None:
    manifests = chart.render({"serviceMonitor": {"enabled": True}})
    spec = chart.named(manifests, "ServiceMonitor", "")["spec"]
    rule = spec["selector"]["matchExpressions"][0]
    scraped = [
        s for s in chart.of_kind(manifests, "Service")
        if matches(spec["selector"]["matchLabels"], s["metadata"]["labels"])
        and s["metadata"]["labels"][rule["key"]] in rule["values"]
    ]
    selectors = [s["spec"]["selector"]["app.kubernetes.io/component"] for s in scraped]
    assert sorted(selectors) == ["coordinator", "server"], f"it scrapes {selectors}"
    for service in scraped:
        ports = {p["name"] for p in service["spec"]["ports"]}
        assert {e["port"] for e in spec["endpoints"]} <= ports
    assert not chart.of_kind(chart.render({}), "ServiceMonitor"), "on by default"


def check_network_policy() -> None:
    peer = {"podSelector": {"matchLabels": {"role": "trainer"}}}
    values = {"networkPolicy": {"clients": [peer]}}
    spec = chart.named(chart.render(values), "NetworkPolicy", "")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    clients, monitoring = spec["ingress"]
    assert peer in clients["from"] and {"podSelector": {}} not in clients["from"], clients
    assert {p["port"] for p in clients["ports"]} == {"control", 7100}, clients
    assert [p["port"] for p in monitoring["ports"]] == ["admin"], monitoring
    assert spec["podSelector"]["matchExpressions"][0]["values"] == ["coordinator", "server"]


def add_checks(report: Report) -> None:
    per_values = {
        "pods are hardened": check_hardened,
        "parts fit together": check_parts_fit,
        "mounts and volumes agree": check_mounts_exist,
        "addresses lead somewhere": check_addresses_lead_somewhere,
    }
    for path in VALUES_FILES:
        for name, function in per_values.items():
            report.check(
                f"{name} {path.name}",
                lambda path=path, function=function: function(
                    chart.render(chart.read_values(path))
                ),
            )
    report.check("chart uses TLS or says insecure", check_tls_or_insecure)
    report.check("worker job fits the exit codes", check_worker_job)
    report.check("a changed setting restarts pods", check_settings_restart_pods)
    report.check("a changed setting leaves jobs alone", check_settings_leave_jobs_alone)
    report.check("a new chart version restarts nothing", check_chart_version_restarts_nothing)
    report.check("service monitor scrapes each pod once", check_service_monitor)
    report.check("network policy admits who it should", check_network_policy)
