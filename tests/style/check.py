#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that no compiler checks.

    tests/style/check.py [ROOT]

Reads every file of the tree that git tracks or would track (without git: every file outside build/). Prints "path:line:
what is wrong and what to do" for each violation. The exit code is 1 if there is one.
"""
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

SOURCE = re.compile(r"\.(cc|h|cu|cuh)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
MAX_README_LINES = 90
MAX_SOURCE_LINES = 500

# Allowed includes: area -> areas that it may use besides itself. An area is a folder and everything below it.
COMM = ("comm/base", "comm/codec", "comm/device", "comm/compression", "comm/job", "comm/transport", "comm/collective", "comm/rpc")
MAY_INCLUDE = {
    "comm/base": (),
    "comm/codec": ("comm/base",),
    "comm/device": ("comm/base", "comm/codec"),
    "comm/compression": ("comm/base", "comm/codec"),
    "comm/job": ("comm/base", "comm/compression"),
    "comm/transport": ("comm/base",),
    "comm/collective": ("comm/base", "comm/codec", "comm/compression", "comm/transport"),
    "comm/rpc": ("comm/base", "comm/job", "proto"),
    "proto": (),
    "server": (*COMM, "proto"),
    "worker": (*COMM, "proto"),
    "cli": (*COMM, "proto", "server", "worker"),
    "tests": (*COMM, "proto", "server", "worker", "cli"),
}

GRPC_USERS = ("comm/rpc/", "server/etcd/", "server/service/", "worker/client/", "cli/", "tests/")
# Headers that only some folders may include: (name, pattern of the include, allowed path prefixes). A prefix "*/x/" is
# any folder named x.
CONFINED = (
    ("UCX", re.compile(r"^uc[mpst]/"), ("comm/transport/ucx/",)),
    ("NCCL", re.compile(r"^nccl\.h$"), ("comm/collective/nccl/",)),
    ("CUDA", re.compile(r"^(cuda|cuda_\w+|cublas\w*|curand\w*|device_launch_parameters)\.h$|^cub/|^thrust/"), ("*/cuda/", "comm/base/buffer.")),
    ("gRPC", re.compile(r"^(grpc|grpcpp)/"), GRPC_USERS),
    ("generated protobuf", re.compile(r"\.pb\.h$|^google/protobuf/"), GRPC_USERS),
    ("LibTorch", re.compile(r"^(torch|ATen|c10)/"), ("worker/examples/", "worker/python/")),
)

# The deterministic state machines use no clock, socket, file, thread or random device: they get everything as input.
PURE = ("server/shard/", "server/coordinator/", "server/machine/", "server/optimizer/")
IMPURE_INCLUDE = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|semaphore|fstream|filesystem|ctime|time\.h|pthread\.h|"
    r"unistd\.h|fcntl\.h|netdb\.h|poll\.h|sys/(socket|time|epoll|stat|mman)\.h|netinet/.*|arpa/.*|sqlite3\.h|httplib\.h|"
    r"absl/synchronization/.*|absl/time/clock\.h|spdlog/.*)$")
IMPURE_CODE = re.compile(
    r"\b(random_device|(steady|system|high_resolution)_clock|absl::Now|clock_gettime|gettimeofday|getenv|sleep_for|"
    r"SleepFor|rand)\s*(\(|::|\b)")

# Setting the clock of a host must not affect heartbeats, repetitions and deadlines. So waits and ages use the monotonic
# clock (comm/base/env.h, comm/base/steady_condition.h). Log lines show the time of day.
WALL_CLOCK = re.compile(
    r"\babsl::Now\b|\babsl::Time\b|\bsystem_clock\b|\bgettimeofday\b|\bCLOCK_REALTIME\b|\bWait(With)?(Timeout|Deadline)\b|"
    r"\b(Await|LockWhen)With(Timeout|Deadline)\b|\bstd::time\(")
MAY_KNOW_THE_TIME_OF_DAY = ("comm/base/log.cc", "server/service/event_log.", "cli/launcher.", "cli/launcher_services.", "cli/launcher_restarts.", "cli/process.", "cli/trainjob/progress.", "cli/trainjob/pusher.cc", "cmake/", "comm/rpc/tls_probe.cc",
                            "comm/rpc/trace_clock.",  # files of other profilers use it
                            "comm/rpc/certificate.", "comm/rpc/issuer.", "comm/rpc/tls.cc",
                            "comm/rpc/trust.", "server/service/gate.", "cli/certs.",  # certificates expire
                            "cli/certs_join.", "cli/certs_renew.", "cli/authority/", "comm/rpc/authorities.",
                            "server/checkpoint/", "cli/checkpoint",  # files have dates
                            "server/service/server_node_journal.",  # to find the last run of a job
                            "server/admin/history.")  # for display

# Types that begin at the first column, with the namespaces around them.
NAMESPACE = re.compile(r"^(?:inline )?namespace\s*([\w:]*)\s*\{(?!.*\})")
NAMESPACE_END = re.compile(r"^\}\s*//\s*(?:anonymous )?namespace")
TYPE = re.compile(r"^(?:struct|class|union|enum(?: class)?)\s+(?:alignas\([^)]*\)\s*)?(\w+)\s*(?:final\s*)?(?=[{:]|$)(?!::)")

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
HOME = re.compile(r"(?<![\w./-])/(home/[a-z][\w-]*|root|Users/\w+)/[\w.]")
SYSTEM_FOLDERS = ("/", "/tmp", "/opt", "/usr", "/usr/src", "/usr/local", "/var", "/var/tmp", "/srv", "/mnt", "/home")


class Violation(NamedTuple):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def tree_files(root: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True, text=True)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if "build" not in path.relative_to(root).parts]
    return sorted({name for name in names if (root / name).is_file()})


def area_of(path: str) -> str | None:
    return next((area for area in MAY_INCLUDE if path.startswith(area + "/")), None)


def under(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(f"/{prefix[2:]}" in path if prefix.startswith("*/") else path.startswith(prefix) for prefix in prefixes)


def is_test(path: str) -> bool:
    return bool(re.search(r"(_test|_bench|_fuzz)\.cc$|_contract\.(h|cc)$|_for_test\.|_test_util\.", path))


def without_comment(line: str) -> str:
    return line.split("//", 1)[0]


def check_include(path: str, number: int, included: str) -> Iterator[Violation]:
    area, target = area_of(path), area_of(included)
    if area and target and target != area and target not in MAY_INCLUDE[area]:
        allowed = ", ".join((area, *MAY_INCLUDE[area]))
        yield Violation(path, number, f"{area} may not include {target} ({included}); it may use {allowed}")
    for name, pattern, users in CONFINED:
        if pattern.search(included) and not under(path, users):
            yield Violation(path, number, f"{name} ({included}) belongs only in {', '.join(users)}")
    if under(path, PURE) and not is_test(path) and IMPURE_INCLUDE.search(included):
        yield Violation(path, number, f"<{included}> in a pure state machine; pass what it gives as an input")


def check_source(path: str, lines: list[str]) -> Iterator[Violation]:
    if len(lines) > MAX_SOURCE_LINES:
        yield Violation(path, len(lines), f"longer than {MAX_SOURCE_LINES} lines; split it")
    if path.endswith(".h") and "#pragma once" not in lines:
        yield Violation(path, 1, "header without #pragma once")
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            yield from check_include(path, number, match.group(2))
        elif under(path, PURE) and not is_test(path) and (match := IMPURE_CODE.search(without_comment(line))):
            yield Violation(path, number, f"{match.group(1)} in a pure state machine; pass it as an input")
        if not is_test(path) and not under(path, ("tests/", *PURE, *MAY_KNOW_THE_TIME_OF_DAY)):
            if match := WALL_CLOCK.search(without_comment(line)):
                yield Violation(path, number, f"{match.group(0)} goes by the time of day; use a SteadyClock or a SteadyCondition")
        if match := UNFINISHED.search(line):
            yield Violation(path, number, f"{match.group(1)}: finish it, or list it in CONTRIBUTING.md")


def types_of(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Yields the types that a file defines, with their namespaces, except those that are local to the file."""
    spaces: list[str] = []
    for number, line in enumerate(lines, 1):
        if match := NAMESPACE.match(line):
            spaces.append(match.group(1))
        elif NAMESPACE_END.match(line) and spaces:
            spaces.pop()
        elif "" not in spaces and (match := TYPE.match(line)) and not line.rstrip().endswith(";"):
            yield "::".join((*spaces, match.group(1))), number


def check_types(sources: dict[str, list[str]]) -> Iterator[Violation]:
    """Finds types with the same name. The linker keeps only one set of inline functions, which then corrupts memory."""
    first: dict[str, tuple[str, int]] = {}
    for path, lines in sources.items():
        for name, number in types_of(lines):
            where = first.setdefault(name, (path, number))
            if where[0] != path:
                yield Violation(path, number, f"{name} is also a type of {where[0]}:{where[1]}; rename one")


def workplace_patterns(root: Path) -> list[re.Pattern]:
    """Returns patterns of local paths: the folder of this tree, and home folders."""
    place = next((str(place) for place in (root.parent, root) if str(place) not in SYSTEM_FOLDERS), None)
    return [HOME] + ([re.compile(rf"(?<![\w./-]){re.escape(place)}(?![\w-])")] if place else [])


def check_paths(path: str, lines: list[str], patterns: list[re.Pattern]) -> Iterator[Violation]:
    for number, line in enumerate(lines, 1):
        for pattern in patterns:
            if match := pattern.search(line):
                yield Violation(path, number, f"absolute path of a workplace: {match.group(0)}")


def check_readmes(root: Path, files: list[str]) -> Iterator[Violation]:
    folders = {str(Path(name).parent) for name in files if SOURCE.search(name) or name.endswith(".proto")} - {"."}
    for folder in sorted(folders):
        readme = root / folder / "README.md"
        if not readme.is_file():
            yield Violation(f"{folder}/README.md", 1, "missing: say what the folder is, its limits, options and tests")
        elif (count := len(readme.read_text().splitlines())) > MAX_README_LINES:
            yield Violation(f"{folder}/README.md", count, f"longer than {MAX_README_LINES} lines")


def check_docs_index(root: Path, files: list[str]) -> Iterator[Violation]:
    index = root / "docs" / "index.md"
    if not index.is_file():
        return
    links = index.read_text()
    for name in files:
        if re.fullmatch(r"docs/(adr/)?[^/]+\.md", name) and name != "docs/index.md" and f"]({name[5:]})" not in links:
            yield Violation(name, 1, "docs/index.md does not link to it: nobody finds it")


def check_tree(root: Path) -> list[Violation]:
    root = root.resolve()
    files = tree_files(root)
    violations = [*check_readmes(root, files), *check_docs_index(root, files)]
    patterns = workplace_patterns(root)
    sources = {}
    for name in files:
        try:
            lines = (root / name).read_text().splitlines()
        except UnicodeDecodeError:
            continue  # a picture or another binary file
        violations += check_paths(name, lines, patterns)
        if SOURCE.search(name):
            violations += check_source(name, lines)
            sources[name] = lines
    violations += check_types(sources)
    return violations


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(os.path.dirname(__file__)) / "../.."
    violations = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"style: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
