"""Checks of the chart's storage: checkpoints on a volume or in a bucket, journals on volumes of their own."""
import chart
from report import Report


def check_checkpoints_are_shared() -> None:
    """Coordinator and servers write to one claim, which outlives the release."""
    for values, claim in (({}, "demo-syncline-checkpoints"), ({"existingClaim": "mine"}, "mine")):
        manifests = chart.render({"checkpoints": {"enabled": True} | values})
        made = chart.of_kind(manifests, "PersistentVolumeClaim")
        assert [c["metadata"]["name"] for c in made] == ([] if values else [claim]), made
        assert all(c["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for c in made)
        for stateful in chart.of_kind(manifests, "StatefulSet"):
            spec = stateful["spec"]["template"]["spec"]
            assert {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}} in spec["volumes"]
            assert {"name": "checkpoints", "mountPath": "/checkpoints"} in spec["containers"][0]["volumeMounts"]
            assert "--checkpoint-dir=/checkpoints" in spec["containers"][0]["args"]
    assert not chart.of_kind(chart.render({}), "PersistentVolumeClaim"), "on by default"


def check_checkpoints_go_to_a_bucket() -> None:
    """There is no volume, and coordinator and servers have the keys and can reach the bucket."""
    for endpoint, port in (("", 443), ("http://minio.minio.svc:9000", 9000), ("https://s3.example.com/x", 443), ("http://s3", 80)):
        s3 = {"bucket": "training", "prefix": "team/night", "endpoint": endpoint, "credentialsSecret": "bucket"}
        values = {"checkpoints": {"enabled": True, "s3": s3}, "networkPolicy": {"enabled": True}}
        manifests = chart.render(values)
        assert not chart.of_kind(manifests, "PersistentVolumeClaim")
        for stateful in chart.of_kind(manifests, "StatefulSet"):
            spec = stateful["spec"]["template"]["spec"]
            container = spec["containers"][0]
            assert "checkpoints" not in {v["name"] for v in spec["volumes"]} | {m["name"] for m in container["volumeMounts"]}
            assert "--checkpoint-dir=s3://training/team/night" in container["args"]
            env = {e["name"]: e for e in container["env"]}
            for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
                source = env[key]["valueFrom"]["secretKeyRef"]
                assert (source["name"], source["key"]) == ("bucket", key)
                assert source.get("optional", False) == (key == "AWS_SESSION_TOKEN"), source
            assert env.get("AWS_ENDPOINT_URL_S3", {}).get("value", "") == endpoint
        egress = chart.of_kind(manifests, "NetworkPolicy")[0]["spec"]["egress"]
        assert port in {p["port"] for rule in egress for p in rule.get("ports", [])}, (endpoint, egress)


def check_values_of_an_older_release_do() -> None:
    """helm upgrade --reuse-values keeps the old values. A release from before buckets still has its volume."""
    for checkpoints in ({"enabled": True}, {"enabled": True, "existingClaim": "shared"}, {"enabled": False}):
        values = {"checkpoints": checkpoints, "networkPolicy": {"enabled": True}}
        older = values | {"checkpoints": checkpoints | {"s3": None}}  # null removes a key in Helm
        assert chart.render(older) == chart.render(values), checkpoints


def check_journals_stay() -> None:
    """Each server writes journals to a claim of its own, which outlives the pod and the release."""
    manifests = chart.render({"server": {"journal": {"enabled": True, "size": "7Gi", "snapshotFactor": 2.5}}})
    for stateful in chart.of_kind(manifests, "StatefulSet"):
        spec = stateful["spec"]
        container = spec["template"]["spec"]["containers"][0]
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        claims = {c["metadata"]["name"]: c["spec"] for c in spec.get("volumeClaimTemplates", [])}
        if not stateful["metadata"]["name"].endswith("-server"):
            assert "journal" not in mounts and "journal" not in claims, "of the coordinator"
            continue
        assert mounts["journal"] == "/journal", mounts
        assert claims["journal"]["resources"]["requests"]["storage"] == "7Gi"
        assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
        assert {"--journal-dir=/journal", "--journal-snapshot-factor=2.5"} <= set(container["args"])
        # On SIGTERM a server hands over its shares (45 s). Nothing may interrupt that.
        assert "preStop" not in container.get("lifecycle", {})
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 45
    for stateful in chart.of_kind(chart.render({}), "StatefulSet"):
        args = stateful["spec"]["template"]["spec"]["containers"][0]["args"]
        assert not [a for a in args if "journal" in a], "on by default"


def add_checks(report: Report) -> None:
    report.check("checkpoints are shared and stay", check_checkpoints_are_shared)
    report.check("checkpoints go to a bucket", check_checkpoints_go_to_a_bucket)
    report.check("values of a release that knew no bucket do", check_values_of_an_older_release_do)
    report.check("journals have a volume each, and stay", check_journals_stay)
