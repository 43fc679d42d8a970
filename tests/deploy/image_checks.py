"""Checks of the Dockerfile and the compose file, and that both and the chart use only flags that the binary has."""

import os
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import chart
import image_context
from report import ROOT, Report, Skip, need_module, run

DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"


def compose() -> dict[str, Any]:
    return need_module("yaml").safe_load(COMPOSE.read_text())


def own_services() -> dict[str, dict[str, Any]]:
    return {name: s for name, s in compose()["services"].items() if "build" in s}


def long_running() -> dict[str, dict[str, Any]]:
    return {name: s for name, s in own_services().items() if s["command"][0] == "serve"}


def check_dockerfile_promises() -> None:
    text = DOCKERFILE.read_text()
    runtime = text[text.index("AS runtime"):]
    for line in ("USER 10001:10001", "STOPSIGNAL SIGTERM", 'ENTRYPOINT ["syncline"]'):
        assert f"\n{line}\n" in runtime, f"the runtime stage lacks `{line}`"
    packages = re.findall(r"^ {8}(\S+) \\$", runtime, re.M)
    assert packages == sorted(packages), "packages are not in order"
    extra = [p for p in packages if p.endswith("-dev")]
    assert not extra, f"the runtime stage has {extra}"


def check_build_context() -> None:
    """Files that .dockerignore lets through exist, and it lets through all files that the build copies."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    absent = [path for path in allowed if not (ROOT / path).exists()]
    assert not absent, f".dockerignore lets through what is not there: {absent}"
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE.read_text(), re.M)
    hidden = [path for path in copied if path != "." and path not in allowed]
    assert not hidden, f".dockerignore hides {hidden} from the Dockerfile"


def check_ignore_rules() -> None:
    """image_context.py reads .dockerignore as Docker does."""
    ignore = image_context.Ignore("# a comment\n*\n!src\n**/*_test.cc\nsrc/old\n!src/old/keep.cc\n")
    seen = {
        "src/a.cc": True, "src/deep/b.cc": True, "src/a_test.cc": False, "a_test.cc": False,
        "srcs/a.cc": False, "other.cc": False, "src/old/a.cc": False, "src/old/keep.cc": True,
    }
    wrong = [path for path, expected in seen.items() if ignore.hides(path) == expected]
    assert not wrong, f"read wrongly: {wrong}"


def check_compose_is_hardened() -> None:
    services = own_services()
    expected = ["coordinator", "server-0", "server-1", "worker-0", "worker-1"]
    assert sorted(services) == expected, services.keys()
    for name, service in services.items():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
    for name, service in compose()["services"].items():
        public = [p for p in service.get("ports", []) if not p.startswith("127.0.0.1:")]
        assert not public, f"{name} listens beyond this host: {public}"


def check_compose_paths() -> None:
    for name, service in compose()["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), f"{name}: no {source}"
        if name in own_services():
            context = COMPOSE.parent / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).exists(), name
        if name in long_running():
            advertised = [c for c in service["command"] if c.startswith("--advertise=")]
            assert advertised == [f"--advertise={name}:7070"], advertised


def check_compose_trains() -> None:
    """Workers wait until the servers are healthy, and the coordinator waits for the right number of servers."""
    services = own_services()
    servers = [name for name in services if name.startswith("server-")]
    workers = [name for name in services if name.startswith("worker-")]
    assert f"--servers={len(servers)}" in services["coordinator"]["command"]
    for name in long_running():
        assert services[name]["healthcheck"], f"{name} has no health check"
    for rank, name in enumerate(workers):
        environment = services[name]["environment"]
        assert environment["RANK"] == str(rank), name
        assert environment["WORLD_SIZE"] == str(len(workers)), name
        waits = services[name]["depends_on"]
        assert waits == {s: {"condition": "service_healthy"} for s in servers}, waits


def check_compose_is_scraped() -> None:
    """Prometheus scrapes every service of the compose file, and nothing else."""
    config = need_module("yaml").safe_load(
        (ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text()
    )
    scrapes = config["scrape_configs"][0]["static_configs"]
    targets = {t for entry in scrapes for t in entry["targets"]}
    assert targets == {f"{name}:7071" for name in long_running()}, targets


def binary() -> Path:
    path = Path(os.environ.get("SYNCLINE_BINARY", ROOT / "build" / "release" / "syncline"))
    if not path.exists():
        raise Skip(f"{path.name} is not built (make build, or set SYNCLINE_BINARY)")
    return path


def check_compose_ports_and_volumes() -> None:
    """Services listen where their ports lead, and every named volume is declared and used."""
    whole = compose()
    listens = {name: {s["environment"][f"SYNCLINE_{v}"].rsplit(":", 1)[1] for v in ("LISTEN", "ADMIN_LISTEN")}
               for name, s in long_running().items()}
    listens |= {"prometheus": {"9090"}, "grafana": {"3000"}}
    published = [port for s in whole["services"].values() for port in s.get("ports", [])]
    assert len(set(published)) == len(published) == 4, published
    for name, service in whole["services"].items():
        for port in service.get("ports", []):
            assert port.rsplit(":", 1)[1] in listens[name], f"{name} does not listen at {port}"
    used = {volume.split(":")[0] for s in whole["services"].values() for volume in s.get("volumes", [])}
    assert {v for v in used if not v.startswith(".")} == set(whole["volumes"]), used


def check_compose_health_check() -> None:
    """The health check, run as it is in the file, tells a service that is ready from one that is not."""
    (script,) = {s["healthcheck"]["test"][3] for s in long_running().values()}
    assert "/7071 " in script, script
    for role in ("coordinator", "server"):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # Nobody listens where the server looks for its coordinator, so it is alive, but never ready.
        flags = ["--coordinator", "127.0.0.1:9"] if role == "server" else ["--listen", "127.0.0.1:0"]
        wanted = [(0, "livez"), (0 if role == "coordinator" else 1, "readyz")]
        with tempfile.TemporaryDirectory() as state:
            process = subprocess.Popen(
                [binary(), "serve", "--role", role, "--admin-listen", f"127.0.0.1:{port}", *flags],
                env=os.environ | {"SYNCLINE_STATE_DIR": state}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                for code, page in wanted:
                    asked = ["bash", "-c", script.replace("/7071 ", f"/{port} ").replace("/readyz", f"/{page}")]
                    until = time.monotonic() + 30
                    while (found := subprocess.run(asked, capture_output=True, timeout=30).returncode) != code:
                        assert time.monotonic() < until, f"{page} of a {role}: {found}"
                        time.sleep(0.1)
            finally:
                process.kill()
                process.wait()


def flags_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", run(str(binary()), *command.split(), "--help")))


def check_flags_exist() -> None:
    """The binary has all flags and SYNCLINE_ variables of the chart, the compose file and the image."""
    known = {name: flags_of(name) for name in ("serve", "status", "bench pushpull-worker")}
    used: set[tuple[str, str]] = set()
    server = {"engineThreads": 2, "journal": {"enabled": True}}
    admin = {"plain": True, "tokenSecret": "t"}
    secure = chart.SECURE | {"server": server, "checkpoints": {"enabled": True}, "admin": admin}
    commands = [s["command"] for s in own_services().values()]
    for values in ({}, secure):
        found = chart.pods(chart.render(values))
        commands += [c["args"] for pod in found for c in pod["spec"]["containers"]]
    for command in commands:
        words = [a for a in command if re.fullmatch(r"[a-z][a-z-]+", a)]
        flags = [a.split("=")[0] for a in command[1:] if a.startswith("--")]
        used |= {(" ".join(w for w in words if w != "json"), flag) for flag in flags}
    # The session of a worker reads RANK, WORLD_SIZE and the like.
    variables = [v for s in long_running().values() for v in s["environment"]]
    for config in chart.of_kind(chart.render({}), "ConfigMap"):
        variables += [v for v in config["data"] if v.startswith("SYNCLINE_")]
    variables += re.findall(r"^ENV (SYNCLINE_\w+)=", DOCKERFILE.read_text(), re.M)
    for name in variables:
        flag = "--" + name.removeprefix("SYNCLINE_").lower().replace("_", "-")
        used.add(("serve", flag))
    unknown = sorted(f"{c} {f}" for c, f in used if f not in known[c])
    assert not unknown, f"`syncline` does not know: {unknown}"


def add_checks(report: Report) -> None:
    report.check("hadolint Dockerfile", lambda: run("hadolint", DOCKERFILE))
    report.check("image is small and not root", check_dockerfile_promises)
    report.check("image build sees what it copies", check_build_context)
    report.check("dockerignore is read as Docker does", check_ignore_rules)
    report.check(
        "docker compose config",
        lambda: run("docker-compose", "-f", COMPOSE, "config", "--quiet"),
    )
    report.check("compose is hardened", check_compose_is_hardened)
    report.check("compose paths and names agree", check_compose_paths)
    report.check("compose trains something", check_compose_trains)
    report.check("compose is scraped", check_compose_is_scraped)
    report.check("compose ports and volumes fit", check_compose_ports_and_volumes)
    report.check("compose health check works", check_compose_health_check)
    report.check("deployed flags exist", check_flags_exist)
