"""Checks of compose.tls.yaml: the script in the file, with the real binary, makes a certificate for each service."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import image_checks
from report import Report, Skip, need_module, run

PLAIN = image_checks.COMPOSE
SECURE = PLAIN.with_name("compose.tls.yaml")
# The text of the certificate in each volume, and the services that mount it.
ROLES = {
    "coordinator": ("role    coordinator of cluster default", {"coordinator"}),
    "server": ("role    server of cluster default", {"server-0", "server-1"}),
    "worker": ("role    worker of job 'example' of cluster default", {"worker-0", "worker-1"}),
    "operator": ("role    operator of cluster default", {"operator"}),
}


def merged() -> dict[str, dict[str, Any]]:
    """Returns the merged services of both files, as docker compose sees them."""
    yaml = need_module("yaml")
    files = ("-f", PLAIN, "-f", SECURE, "--profile", "operator")
    return yaml.safe_load(run("docker-compose", *files, "config"))["services"]


def check_own_certificates() -> None:
    services = merged()
    for volume, (_, users) in ROLES.items():
        source = f"certs-{volume}"
        mounted = {name for name, s in services.items() if name != "certs"
                   for v in s.get("volumes", []) if v["source"] == source}
        assert mounted == users, f"{source} is mounted by {sorted(mounted)}"
    assert not [n for n, s in services.items() if n != "certs"
                for v in s.get("volumes", []) if v["source"] == "authority"], "the CA's key is seen by others"
    for _, users in ROLES.values():
        for name in users:
            service = services[name]
            environment = service["environment"]
            assert environment["SYNCLINE_INSECURE"] == "false", f"{name} is insecure"
            for variable, file in (("CERT", "tls.crt"), ("KEY", "tls.key"), ("CA", "ca.crt")):
                assert environment[f"SYNCLINE_TLS_{variable}"] == f"/certs/{file}", name
            assert not [a for a in service["command"] if "insecure" in a], name
            revoked = environment.get("SYNCLINE_REVOKED")
            assert revoked == ("/certs/revoked" if name == "coordinator" else None), f"{name} has {revoked}"
            if name != "operator":  # the operator waits for the coordinator, which waits for `certs`
                assert service["depends_on"]["certs"]["condition"] == "service_completed_successfully", name
            assert all(v["read_only"] for v in service["volumes"] if v["target"] == "/certs"), name
            assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name


def check_prometheus_believes_the_authority() -> None:
    """Prometheus scrapes by HTTPS what it scrapes by HTTP otherwise, and has the authority's certificate and no key."""
    yaml = need_module("yaml")
    folder = PLAIN.parent.parent / "prometheus"
    plain, secure = (yaml.safe_load((folder / name).read_text()) for name in ("prometheus.yaml", "prometheus.tls.yaml"))
    (scrape,) = secure["scrape_configs"]
    assert scrape.pop("scheme") == "https"
    tls = scrape.pop("tls_config")
    assert secure == plain, "they differ in more than TLS"
    service = merged()["prometheus"]
    assert "--config.file=/etc/prometheus/prometheus.tls.yaml" in service["command"], service["command"]
    (mounted,) = [v for v in service["volumes"] if v["source"].startswith("certs-")]
    assert mounted["source"] == "certs-prometheus" and tls["ca_file"] == f"{mounted['target']}/ca.crt", (mounted, tls)


def check_script_makes_them() -> None:
    """Runs the service `certs` in a folder instead of its volumes, twice, as for a renewal."""
    if os.geteuid() != 0:
        raise Skip("only root may give files to another user")
    binary = image_checks.binary()
    service = need_module("yaml").safe_load(SECURE.read_text())["services"]["certs"]
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        script = service["command"][0].replace("$$", "$")
        for volume in service["volumes"]:
            target = volume.split(":")[1]
            (base / target[1:]).mkdir(parents=True, exist_ok=True)
        script = script.replace("/out/", f"{base}/out/").replace("/authority", f"{base}/authority")
        (base / "bin").mkdir()
        (base / "bin" / "syncline").symlink_to(binary)
        environment = os.environ | {"PATH": f"{base}/bin:{os.environ['PATH']}"}
        serials = set()
        for _ in range(2):
            done = subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stdout + done.stderr
            for volume, (role, _) in ROLES.items():
                at = base / "out" / volume
                said = run(str(binary), "certs", "show", at / "tls.crt")
                assert role in said, f"{volume} has: {said}"
                serials.add(said[said.index("serial"):].splitlines()[0])
                modes = {p.name: (oct(p.stat().st_mode & 0o777), p.stat().st_uid) for p in at.iterdir()}
                files = {"tls.key": ("0o400", 10001), "tls.crt": ("0o444", 10001), "ca.crt": ("0o444", 10001)}
                if volume == "coordinator":
                    files["revoked"] = ("0o444", 10001)
                assert modes == files, modes
            shown = {p.name: oct(p.stat().st_mode & 0o777) for p in (base / "out" / "prometheus").iterdir()}
            assert shown == {"ca.crt": "0o444"}, f"Prometheus has {shown}"
        said = run(str(binary), "certs", "show", base / "out" / "server" / "tls.crt")
        assert "hosts   server-0, server-1" in said, said
        assert len(serials) == 2 * len(ROLES), "the second run renewed nothing"
        serial = sorted(serials)[0].split()[1]
        run(str(binary), "certs", "revoke", base / "authority" / "ca", "--serial", serial)
        done = subprocess.run(["bash", "-ec", script], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        taken_back = (base / "out" / "coordinator" / "revoked").read_text()
        assert serial.replace(":", "").lstrip("0") in taken_back, f"{serial} is not in {taken_back}"
        said = run(str(binary), "certs", "show", base / "out" / "coordinator" / "tls.crt")
        assert "hosts   coordinator, localhost" in said, said


def add_checks(report: Report) -> None:
    report.check("compose with TLS is valid", lambda: run("docker-compose", "-f", PLAIN, "-f", SECURE, "config", "--quiet"))
    report.check("compose with TLS gives each service its own certificate", check_own_certificates)
    report.check("compose with TLS is scraped by HTTPS", check_prometheus_believes_the_authority)
    report.check("compose with TLS makes and renews certificates", check_script_makes_them)
