#!/usr/bin/env bash
# Trains Fashion-MNIST twice, on 2 servers and 4 workers of this host: all in FP32, then in BF16. Prints a table and
# writes build/demo.json. Ctrl-C stops everything.
#
#   worker/examples/fashion_mnist/demo.sh [flags of fashion_mnist, such as --steps 100]
#
# SYNCLINE_BUILD_DIR names another build tree than build/release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."

readonly build=${SYNCLINE_BUILD_DIR:-build/release}
readonly reports=build/demo

if [[ ! -x $build/fashion_mnist ]]; then
  echo "demo: $build/fashion_mnist is not built; 'make deps build' builds it where LibTorch is installed" >&2
  exit 1
fi

# In the background, so that this shell hears a signal while it waits, and hands it on.
child=
stop() {
  trap - INT TERM
  if [[ -n $child ]]; then
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" || true
  fi
  exit "$1"
}
trap 'stop 130' INT
trap 'stop 143' TERM

train() {
  local precision=$1
  shift
  echo "demo: training in $precision"
  "$build/syncline" run --standalone --servers 2 --nproc-per-node 4 --job "fashion-mnist-$precision" -- \
    "$build/fashion_mnist" --precision "$precision" --report "$reports/$precision.json" "$@" &
  child=$!
  wait "$child"
  child=
}

rm -rf "$reports" build/demo.json
train fp32 "$@"
train bf16 "$@"
echo
"$build/fashion_mnist" summarize "$reports"/fp32.json* "$reports"/bf16.json* --out build/demo.json
