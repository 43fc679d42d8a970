"""Dockerfile, compose file, and whether both and the chart use flags that the binary has."""

import os
import re
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
    """What .dockerignore lets through exists, and what the build copies is let through."""
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
    """Workers wait until the servers are well, and the coordinator waits for as many servers as there are."""
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


def flags_of(command: str) -> set[str]:
    return set(re.findall(r"--[a-z][a-z-]+", run(str(binary()), *command.split(), "--help")))


def check_flags_exist() -> None:
    """Flags and SYNCLINE_ variables of the chart, the compose file and the image."""
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
    # Of workers, the session reads RANK, WORLD_SIZE and the like.
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
    report.check("deployed flags exist", check_flags_exist)
