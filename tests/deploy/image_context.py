#!/usr/bin/env python3
"""Proves that the image builds and starts, without a container engine. It is the CI stage `image`.

    tests/deploy/image_context.py [--keep]

Copies the build context, as .dockerignore leaves it, to build/image-context. Runs there the commands that the
Dockerfile's build stage RUNs after its last COPY. Puts the binary where the runtime stage puts it, starts the image's
command with the image's environment, and calls its probes. If this machine runs the image's release of Debian, the
packages of the runtime stage must contain every library that the binary loads.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
CONTEXT = ROOT / "build" / "image-context"
START_SECONDS = 120
STOPPED_CLEANLY = 143
# Packages of every Debian image.
BASE_PACKAGES = {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"}


def pattern(line: str) -> re.Pattern[str]:
    """Returns a line of .dockerignore as a pattern: * stays within a folder, ** does not."""
    parts = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    tokens = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", line.strip("/"))
    return re.compile("".join(parts.get(token, re.escape(token)) for token in tokens))


class Ignore:
    """The rules of .dockerignore. The last line that matches a path, or a folder above it, decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        self._rules = [(pattern(line.lstrip("!")), not line.startswith("!")) for line in lines]

    def hides(self, path: str) -> bool:
        parents = [str(parent) for parent in PurePosixPath(path).parents][:-1]
        hidden = False
        for rule, hide in self._rules:
            if any(rule.fullmatch(name) for name in [path, *parents]):
                hidden = hide
        return hidden


def copy_context(ignore: Ignore) -> int:
    """Copies the files of the checkout, committed or not, except files that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file() and not ignore.hides(name)}
    # The build tree stays, so that a second run builds only changed files.
    for old in [path for path in CONTEXT.rglob("*") if path.is_file()]:
        name = str(old.relative_to(CONTEXT))
        if name not in wanted and not name.startswith("build/"):
            old.unlink()
    for name in wanted:
        target = CONTEXT / name
        if not target.exists() or target.read_bytes() != (ROOT / name).read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return len(wanted)


def stages(text: str) -> dict[str, list[str]]:
    """Returns the instructions of each build stage, with joined continuation lines and without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, list[str]] = {}
    name = ""
    for instruction in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if match := re.match(r"FROM \S+ AS (\S+)", instruction):
            name = match[1]
        if instruction.strip():
            found.setdefault(name, []).append(instruction.strip())
    return found


def build_commands(build_stage: list[str]) -> list[str]:
    last_copy = max(i for i, line in enumerate(build_stage) if line.startswith("COPY "))
    return [line.removeprefix("RUN ") for line in build_stage[last_copy:] if line.startswith("RUN ")]


def check_libraries(binary: Path, runtime: list[str]) -> str:
    if "bookworm" not in Path("/etc/os-release").read_text():
        return "not looked at: this is not the image's Debian"
    install = next(line for line in runtime if "apt-get install" in line)
    listed = set(re.findall(r"\s((?:lib|ca-)\S+)", install.split("&& rm")[0])) | BASE_PACKAGES
    needed = re.findall(r"NEEDED.*\[(.+)\]", subprocess.run(
        ["readelf", "-d", binary], capture_output=True, text=True, check=True).stdout)
    paths = dict(re.findall(r"(\S+) => (\S+)", subprocess.run(
        ["ldd", binary], capture_output=True, text=True, check=True).stdout))
    # Libraries such as abseil come with the packages that depend on them.
    known, queue = set(), list(listed)
    while queue:
        package = queue.pop()
        if package not in known:
            known.add(package)
            depends = subprocess.run(["dpkg-query", "-W", "-f=${Depends}", package],
                                     capture_output=True, text=True).stdout
            queue += re.findall(r"(?:^|, )([a-z0-9.+-]+)", depends)
    missing = []
    for library in needed:
        if library not in paths:
            continue  # The dynamic loader itself.
        path = Path(paths[library]).resolve()
        owner = subprocess.run(["dpkg-query", "-S", f"*/{path.name}"], capture_output=True, text=True).stdout
        if not {line.split(":")[0] for line in owner.splitlines()} & known:
            missing.append(library)
    assert not missing, f"the runtime stage installs no package with {missing}"
    return f"{len(needed)} libraries, all in the packages of the runtime stage"


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def check_start(binary: Path, runtime: list[str]) -> str:
    """The image's ENTRYPOINT and CMD, on free ports, answer the probes and end on a signal."""
    entry = json.loads(next(l for l in runtime if l.startswith("ENTRYPOINT ")).split(" ", 1)[1])
    command = json.loads(next(l for l in runtime if l.startswith("CMD ")).split(" ", 1)[1])
    assert entry == ["syncline"], entry
    with tempfile.TemporaryDirectory() as state:
        environment = {"PATH": f"{binary.parent}:/usr/bin:/bin", "SYNCLINE_STATE_DIR": state}
        version = subprocess.run(["syncline", "version"], env=environment, capture_output=True,
                                 text=True, check=True).stdout
        log = Path(state) / "log"
        with log.open("w") as out:
            process = subprocess.Popen(
                [*entry, *command, "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"],
                env=environment, stdout=out, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (ready := re.search(r"syncline: ready .*admin=(\S+)", log.read_text())):
                assert process.poll() is None, f"`serve` ended:\n{log.read_text()}"
                assert time.monotonic() < deadline, f"`serve` is not ready:\n{log.read_text()}"
                time.sleep(0.1)
            for probe in ("livez", "readyz"):
                ask(f"http://{ready[1]}/{probe}")
            assert "syncline_build_info" in ask(f"http://{ready[1]}/metrics"), "no metrics"
            process.terminate()
            code = process.wait(START_SECONDS)
            assert code == STOPPED_CLEANLY, f"`serve` exited with {code} after SIGTERM:\n{log.read_text()}"
        finally:
            process.kill()
            process.wait()
    return version.splitlines()[0]


def main() -> int:
    CONTEXT.mkdir(parents=True, exist_ok=True)
    files = copy_context(Ignore((ROOT / ".dockerignore").read_text()))
    print(f"ok   context: {files} files", flush=True)
    text = stages(DOCKERFILE.read_text())
    for command in build_commands(text["build"]):
        # git must not find this checkout from inside the context.
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(CONTEXT.parent)}
        subprocess.run(["sh", "-ec", command], cwd=CONTEXT, env=environment, check=True)
    copied = next(line for line in text["runtime"] if line.startswith("COPY --from=build "))
    source, target = copied.split()[-2:]
    installed = CONTEXT / "build" / "rootfs" / target.lstrip("/")
    installed.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(CONTEXT / source.removeprefix("/src/"), installed)
    print("ok   builds", flush=True)
    print(f"ok   loads: {check_libraries(installed, text['runtime'])}", flush=True)
    print(f"ok   starts and answers its probes: {check_start(installed, text['runtime'])}", flush=True)
    if "--keep" not in sys.argv:
        shutil.rmtree(CONTEXT)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (AssertionError, subprocess.CalledProcessError) as error:
        print(f"FAIL image: {error}", flush=True)
        sys.exit(1)
