#!/usr/bin/env python3
"""Builds the wheel: the package, libsyncline.so, the program `syncline`, and the libraries that both need.

    worker/python/build_wheel.py [--build build/release] [--out build/wheel]

If CMake found nvcc, the wheel also has libsyncline_cuda.so with the codecs that run on GPUs. Prints the path of the wheel. It runs on
any x86-64 Linux whose glibc is at least as new as this machine's. Needs patchelf, and setuptools and wheel for the Python that runs it.
"""
import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MAX_WHEEL_BYTES = 40 << 20

# Libraries that the wheel does not bring: those of glibc and of the compiler, as in every wheel, and those of RDMA, which come with
# its driver.
OF_THE_SYSTEM = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+|ibverbs|rdmacm|nl-.*))\.so")
CUDA_MODULE = "libsyncline_cuda.so"
UCX_MODULES = ("libuct_cma.so.0", "libuct_ib.so.0", "libuct_rdmacm.so.0")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def needed(binary):
    """Returns the names and paths of the shared libraries that `binary` loads, directly or not, without those of the system."""
    found = {}
    for line in run("ldd", binary).splitlines():
        if match := re.match(r"\s*(\S+) => (/\S+)", line):
            found[match.group(1)] = Path(match.group(2))
        elif "not found" in line:
            sys.exit(f"build_wheel: {binary}: {line.strip()}")
    return {name: path for name, path in found.items() if not OF_THE_SYSTEM.match(name)}


def install(source, target, rpath):
    """Copies a binary without its symbols, and sets its search path for libraries to `rpath`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o755)
    run("strip", "--strip-unneeded", target)
    run("patchelf", "--set-rpath", rpath, target)


def install_license(library, folder):
    """Copies the copyright file of the Debian package that a library comes from."""
    owner = subprocess.run(["dpkg", "-S", library.resolve()], text=True, capture_output=True).stdout
    if not owner:  # dpkg may know the file by its path without /usr, or the other way round
        owner = run("dpkg", "-S", f"*/{library.resolve().name}")
    package = owner.split(":")[0]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(f"/usr/share/doc/{package}/copyright", folder / package)


def fill(package, build):
    """Copies all that is not Python into the package."""
    binaries = {build / "libsyncline.so": package / "lib/libsyncline.so", build / "syncline": package / "bin/syncline"}
    libraries = {}
    for source, target in binaries.items():
        libraries.update(needed(source))
        install(source, target, "$ORIGIN" if target.parent.name == "lib" else "$ORIGIN/../lib")
    if (cuda := build / CUDA_MODULE).exists():  # libsyncline.so looks for it beside itself
        if libraries_of_it := needed(cuda):
            sys.exit(f"build_wheel: {cuda} needs {', '.join(libraries_of_it)}, and may need nothing but the system and its driver")
        install(cuda, package / "lib" / CUDA_MODULE, "$ORIGIN")
    for name, path in sorted(libraries.items()):
        install(path, package / "lib" / name, "$ORIGIN")
        install_license(path, package / "lib/licenses")
    for name in UCX_MODULES:  # UCX looks for them in the folder `ucx` beside its own library
        if (module := libraries["libucs.so.0"].parent / "ucx" / name).exists():
            install(module, package / "lib/ucx" / name, "$ORIGIN/..")


def main():
    parser = argparse.ArgumentParser(description="Builds the wheel of the Python package.")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="where CMake built")
    parser.add_argument("--out", type=Path, default=ROOT / "build/wheel", help="where the wheel goes")
    flags = parser.parse_args()
    for tool in ("patchelf", "strip"):
        if not shutil.which(tool):
            sys.exit(f"build_wheel: no {tool}; apt-get install patchelf binutils")
    with tempfile.TemporaryDirectory() as folder:
        staging = Path(folder) / "python"
        shutil.copytree(HERE, staging, ignore=shutil.ignore_patterns("tests", "__pycache__", "*.egg-info"))
        shutil.copy(ROOT / "LICENSE", staging)
        fill(staging / "src/syncline", flags.build)
        flags.out.mkdir(parents=True, exist_ok=True)
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
            "--wheel-dir", flags.out, staging)
    wheel = max(flags.out.glob("syncline-*-py3-none-linux_x86_64.whl"), key=lambda path: path.stat().st_mtime)
    if wheel.stat().st_size > MAX_WHEEL_BYTES:
        sys.exit(f"build_wheel: {wheel} has {wheel.stat().st_size} bytes, more than {MAX_WHEEL_BYTES}")
    print(wheel)


if __name__ == "__main__":
    main()
