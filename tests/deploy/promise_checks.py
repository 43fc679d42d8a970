"""Checks of the chart's promises: its parts fit together, nothing is privileged, no upgrade restarts servers needlessly."""
import shutil
import tempfile
from pathlib import Path
from typing import Any

import chart
from report import CHART, ROOT, VALUES_FILES, Report, need_module

WORKERS = {"worker": {"enabled": True, "image": {"repository": "train"}}}
TLS = chart.SECURE


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
            assert set(own["capabilities"].get("add", [])) <= {"IPC_LOCK"}, own
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
        mounted = {m["name"] for container in spec["containers"] for m in container["volumeMounts"]}
        assert mounted == volumes, f"{owner['kind']}: mounts {mounted}, has {volumes}"


def check_revoked_list() -> None:
    """Only the coordinator sees the list, at the path in its flag."""
    values = {"tls": TLS["tls"] | {"revokedSecret": "taken-back"}}
    for owner in chart.of_kind(chart.render(values), "StatefulSet"):
        spec = owner["spec"]["template"]["spec"]
        flags = [a for a in spec["containers"][0]["args"] if a.startswith("--revoked=")]
        secrets = [v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "revoked"]
        if not owner["metadata"]["name"].endswith("-coordinator"):
            assert not flags and not secrets, f"{owner['metadata']['name']} has {flags} {secrets}"
            continue
        assert secrets == ["taken-back"], secrets
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        assert flags == [f"--revoked={mounts['revoked']}/revoked"], flags
    plain = [a for c in containers(chart.render(TLS)) for a in c.get("args", [])]
    assert not [a for a in plain if a.startswith("--revoked")], plain


def check_addresses_lead_somewhere(manifests: list[chart.Manifest]) -> None:
    """Every in-cluster host in a flag or a variable is a service of the release."""
    services = {s["metadata"]["name"] for s in chart.of_kind(manifests, "Service")}
    texts = [text for c in containers(manifests)
             for text in c.get("args", []) + [e.get("value", "") for e in c["env"] or []]]
    hosts = [a.split(":")[0] for t in texts if ".svc." in t for a in t.split("=")[-1].split(",")]
    assert hosts, "no address at all"
    pods = {f"{s['metadata']['name']}-{i}": s["spec"]["serviceName"]
            for s in chart.of_kind(manifests, "StatefulSet") for i in range(s["spec"]["replicas"])}
    for host in hosts:
        first, second = host.removeprefix("$(POD_NAME).").split(".")[:2]
        assert first in services or pods.get(first) == second, f"{host} is nothing of this release"


def check_tls_or_insecure() -> None:
    for values, secure in (({}, False), (TLS, True)):
        for stateful in chart.of_kind(chart.render(values), "StatefulSet"):
            args = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
            assert ("--insecure" in args) is not secure, args
            assert any(a.startswith("--tls-ca=") for a in args) is secure, args


def secrets_of(pod: chart.Manifest) -> list[str]:
    return [v["secret"]["secretName"] for v in pod["spec"]["volumes"] if "secret" in v]


def check_each_role_has_its_own_certificate() -> None:
    manifests = chart.render(WORKERS | TLS)
    uris = {c["spec"]["secretName"]: c["spec"]["uris"] for c in chart.of_kind(manifests, "Certificate")}
    cluster = "spiffe://syncline.internal/syncline/default"
    for kind, suffix, path in (("StatefulSet", "-coordinator", "role/coordinator"),
                               ("StatefulSet", "-server", "role/server"),
                               ("Job", "-worker-example", "job/example/role/worker")):
        pod = chart.named(manifests, kind, suffix)["spec"]["template"]
        (secret,) = secrets_of(pod)
        assert uris[secret] == [f"{cluster}/{path}"], (secret, uris)
    (test,) = chart.of_kind(manifests, "Pod")
    wanted = [[f"{cluster}/role/reader"], [f"{cluster}/job/helm-test/role/worker"]]
    assert [uris[s] for s in secrets_of(test)] == wanted, secrets_of(test)
    assert not chart.of_kind(chart.render({}), "Certificate"), "certificates without TLS"


def check_secrets_without_cert_manager() -> None:
    names = {"coordinator": "c", "server": "s", "reader": "r"}
    manifests = chart.render({"tls": {"enabled": True, "existingSecrets": names}})
    assert not chart.of_kind(manifests, "Certificate")
    assert secrets_of(chart.named(manifests, "StatefulSet", "-server")["spec"]["template"]) == ["s"]
    (test,) = chart.of_kind(manifests, "Pod")
    assert [c["name"] for c in test["spec"]["containers"]] == ["status"], "no worker's certificate, no worker"


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


def server_args(values: dict[str, Any], component: str = "server") -> list[str]:
    stateful = chart.named(chart.render(values), "StatefulSet", f"-{component}")
    return stateful["spec"]["template"]["spec"]["containers"][0]["args"]


def check_jobs_wait_for_all_servers() -> None:
    for replicas in (1, 5):
        args = server_args({"server": {"replicas": replicas}}, "coordinator")
        assert f"--servers={replicas}" in args, args


def check_standbys() -> None:
    """Several coordinators share an etcd that they can reach, and servers and workers know all of them."""
    etcd = {"endpoints": ["e-0.e:2379", "e-1.e:2380"], "prefix": "/x", "tlsSecret": "for-etcd"}
    manifests = chart.render({"coordinator": {"replicas": 2, "etcd": etcd}} | WORKERS)
    stateful = chart.named(manifests, "StatefulSet", "-coordinator")
    assert stateful["spec"]["replicas"] == 2
    spec = stateful["spec"]["template"]["spec"]
    container = spec["containers"][0]
    assert "--state=etcd://e-0.e:2379,e-1.e:2380/x" in container["args"], container["args"]
    assert not [a for a in container["args"] if a.startswith("--state-dir")], container["args"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert f"--etcd-ca={mounts['etcd']}/ca.crt" in container["args"], container["args"]
    secret = next(v["secret"] for v in spec["volumes"] if v["name"] == "etcd")
    assert secret == {"secretName": "for-etcd", "defaultMode": 0o440}, secret
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname", spread
    assert spread["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "coordinator", spread
    egress = chart.of_kind(manifests, "NetworkPolicy")[0]["spec"]["egress"]
    ports = {p["port"] for rule in egress for p in rule.get("ports", [])}
    assert {2379, 2380} <= ports, ports
    for who in (c for c in containers(manifests) if c["name"] != "coordinator"):
        texts = who.get("args", []) + [e.get("value", "") for e in who["env"] or []]
        both = [t for t in texts if "-coordinator-0." in t and "-coordinator-1." in t]
        assert len(both) == 1, texts
    alone = [a for c in containers(chart.render({})) for a in c.get("args", [])]
    assert "--state-dir=/var/lib/syncline" in alone and not [a for a in alone if "etcd" in a], alone


def check_releases_share_no_prefix() -> None:
    """Two releases have different prefixes, so that they do not use each other's coordinators."""
    states = set()
    for name in ("one", "two"):
        values = {"fullnameOverride": name, "coordinator": {"replicas": 2, "etcd": {"endpoints": ["e:2379"]}}}
        (state,) = [a for a in server_args(values, "coordinator") if a.startswith("--state=")]
        assert state.startswith("--state=etcd://e:2379/syncline/") and state.endswith(f"/{name}"), state
        states.add(state)
    assert len(states) == 2, states


def check_engine_threads_fit_the_pod() -> None:
    """The chart sets the engine threads to the cores of the pod, because a process sees those of its node."""
    for resources, setting, expected in (
        ({"requests": {"cpu": "6"}}, 0, 6),
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "3500m"}}, 0, 3),
        ({"requests": {"cpu": "250m"}}, 0, 1),
        ({"requests": {"cpu": 2.5}}, 0, 2),
        ({"requests": {"cpu": "6"}}, 4, 4),
    ):
        args = server_args({"server": {"resources": resources, "engineThreads": setting}})
        assert f"--engine-threads={expected}" in args, (resources, setting, args)


def check_capabilities_are_for_one_part() -> None:
    manifests = chart.render(WORKERS | {"server": {"addCapabilities": ["IPC_LOCK"]}})
    manifests += chart.render({})
    added = [c["securityContext"]["capabilities"] for c in containers(manifests)]
    assert added.count({"drop": ["ALL"], "add": ["IPC_LOCK"]}) == 1, added
    assert added.count({"drop": ["ALL"]}) == len(added) - 1, added


def check_servers_have_no_control_port() -> None:
    manifests = chart.render({})
    server = chart.named(manifests, "StatefulSet", "-server")["spec"]["template"]["spec"]
    ports = [p["name"] for p in server["containers"][0]["ports"]]
    assert ports == ["admin"], ports
    assert not [a for a in server_args({}) if a.startswith("--listen=")]


def check_parts_can_be_extended() -> None:
    """Each part can get a volume, a variable and a sidecar, for example the data of workers."""
    more = {
        "extraEnv": [{"name": "EXTRA", "value": "1"}],
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
        "sidecars": [{"name": "side", "image": "side"}],
        "runtimeClassName": "kata",
        "hostNetwork": True,
    }
    values = {"server": more, "coordinator": more, "worker": WORKERS["worker"] | more}
    owners = [m for m in chart.render(values) if m["kind"] in ("StatefulSet", "Job")]
    assert len(owners) == 3
    for owner in owners:
        spec = owner["spec"]["template"]["spec"]
        main, side = spec["containers"]
        assert side["name"] == "side" and spec["runtimeClassName"] == "kata"
        assert spec["hostNetwork"] is True and spec["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert {"name": "EXTRA", "value": "1"} in main["env"], main["env"]
        assert {"name": "data", "mountPath": "/data"} in main["volumeMounts"]
        assert {"name": "data", "emptyDir": {}} in spec["volumes"]


def check_worker_job_can_grow() -> None:
    """Jobs of 4 and of 6 workers differ only in fields that Kubernetes allows to change."""
    small = WORKERS["worker"] | {"worldSize": 4}
    jobs = [
        chart.of_kind(chart.render({"worker": small | {"replicas": n}}), "Job")[0]["spec"]
        for n in (4, 6)
    ]
    assert jobs[0]["template"] == jobs[1]["template"], "Kubernetes would refuse to change the Job"
    assert (jobs[1]["completions"], jobs[1]["parallelism"]) == (6, 6), jobs[1]
    queue = {"worker": WORKERS["worker"] | {"labels": {"kueue.x-k8s.io/queue-name": "q"}}}
    job = chart.of_kind(chart.render(queue), "Job")[0]
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q", "Kueue looks at the Job"


def check_upgrades_wait_for_you() -> None:
    for values, expected in (({}, "OnDelete"), ({"updateStrategy": "RollingUpdate"}, "RollingUpdate")):
        for stateful in chart.of_kind(chart.render(values), "StatefulSet"):
            assert stateful["spec"]["updateStrategy"] == {"type": expected}


def check_budget() -> None:
    values = {"podDisruptionBudget": {"maxUnavailable": 0}}
    for budget in chart.of_kind(chart.render(values), "PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 0


def check_alerts_know_every_release() -> None:
    """The labels that alerts use do not depend on names that a user chooses."""
    values = {"nameOverride": "ps", "serviceMonitor": {"enabled": True},
              "prometheusRule": {"enabled": True}}
    manifests = chart.render(values)
    monitor = chart.named(manifests, "ServiceMonitor", "")["spec"]
    assert "jobLabel" not in monitor, "the job would be called ps"
    targets = {r["targetLabel"]: r for r in monitor["endpoints"][0]["relabelings"]}
    assert targets["job"]["replacement"] == "syncline" and "release" in targets, targets
    rules = chart.named(manifests, "PrometheusRule", "")["spec"]
    written = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    assert rules == need_module("yaml").safe_load(written), "cp deploy/prometheus/alerts.yaml helm/syncline/files"


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


def admin_schemes(manifests: list[chart.Manifest]) -> set[str]:
    """Returns the schemes that probes, services and the monitor use for the admin port."""
    probes = {c[probe]["httpGet"]["scheme"].lower() for c in containers(chart.of_kind(manifests, "StatefulSet"))
              for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    ports = {p["appProtocol"] for s in chart.of_kind(manifests, "Service") for p in s["spec"]["ports"] if p["name"] == "admin"}
    (endpoint,) = chart.named(manifests, "ServiceMonitor", "")["spec"]["endpoints"]
    return probes | ports | {endpoint.get("scheme", "http")}


def check_admin_port_is_sealed() -> None:
    """With TLS all parts use HTTPS for it, and Prometheus verifies a name that the certificate has."""
    scraped = {"serviceMonitor": {"enabled": True}}
    for values, scheme, flag in (({}, "http", False), (TLS, "https", False), (TLS | {"admin": {"plain": True}}, "http", True)):
        manifests = chart.render(scraped | values)
        assert admin_schemes(manifests) == {scheme}, (values, admin_schemes(manifests))
        for stateful in chart.of_kind(manifests, "StatefulSet"):
            args = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
            assert ("--admin-plain" in args) is flag, args
    manifests = chart.render(scraped | TLS)
    (endpoint,) = chart.named(manifests, "ServiceMonitor", "")["spec"]["endpoints"]
    authority = endpoint["tlsConfig"]["ca"]["secret"]
    coordinator = chart.named(manifests, "StatefulSet", "-coordinator")["spec"]["template"]
    assert authority == {"name": secrets_of(coordinator)[0], "key": "ca.crt"}, authority
    (by_name,) = [r for r in endpoint["relabelings"] if r["targetLabel"] == "__address__"]
    for part in ("coordinator", "server"):
        pod = f"demo-syncline-{part}"
        name = by_name["replacement"].replace("$1", f"{pod}-0").replace("$2", pod).replace("$3", chart.NAMESPACE)
        certificate = chart.named(manifests, "Certificate", f"-{part}")["spec"]
        wanted = "*." + name.split(".", 1)[1].removesuffix(":7071")
        assert wanted in certificate["dnsNames"], (wanted, certificate["dnsNames"])
        assert "server auth" in certificate["usages"], certificate


def check_admin_token() -> None:
    """The services read the mounted file, and Prometheus sends the token of the same secret."""
    manifests = chart.render({"admin": {"tokenSecret": "readers"}, "serviceMonitor": {"enabled": True}})
    stateful = chart.of_kind(manifests, "StatefulSet")
    assert len(stateful) == 2
    for owner in stateful:
        spec = owner["spec"]["template"]["spec"]
        flags = [a for a in spec["containers"][0]["args"] if a.startswith("--admin-token-file=")]
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        assert flags == [f"--admin-token-file={mounts['admin']}/token"], flags
        assert [v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "admin"] == ["readers"]
    (endpoint,) = chart.named(manifests, "ServiceMonitor", "")["spec"]["endpoints"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": {"name": "readers", "key": "token"}}, endpoint
    plain = [a for c in containers(chart.render({})) for a in c.get("args", [])]
    assert not [a for a in plain if "admin-token" in a], plain


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
    report.check("chart gives each role its own certificate", check_each_role_has_its_own_certificate)
    report.check("chart takes secrets without cert-manager", check_secrets_without_cert_manager)
    report.check("the list of revoked certificates is the coordinator's", check_revoked_list)
    report.check("standby coordinators share an etcd, and all know all of them", check_standbys)
    report.check("releases that share an etcd have a prefix each", check_releases_share_no_prefix)
    report.check("worker job fits the exit codes", check_worker_job)
    report.check("jobs wait for all servers", check_jobs_wait_for_all_servers)
    report.check("engine threads fit the pod", check_engine_threads_fit_the_pod)
    report.check("capabilities are for one part", check_capabilities_are_for_one_part)
    report.check("servers have no control port", check_servers_have_no_control_port)
    report.check("parts can be extended", check_parts_can_be_extended)
    report.check("a worker job can grow", check_worker_job_can_grow)
    report.check("upgrades wait for you", check_upgrades_wait_for_you)
    report.check("the disruption budget is a setting", check_budget)
    report.check("alerts know every release", check_alerts_know_every_release)
    report.check("a changed setting restarts pods", check_settings_restart_pods)
    report.check("a changed setting leaves jobs alone", check_settings_leave_jobs_alone)
    report.check("a new chart version restarts nothing", check_chart_version_restarts_nothing)
    report.check("service monitor scrapes each pod once", check_service_monitor)
    report.check("the admin port is sealed with TLS", check_admin_port_is_sealed)
    report.check("the admin port's token reaches services and Prometheus", check_admin_token)
    report.check("network policy admits who it should", check_network_policy)
