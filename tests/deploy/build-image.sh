#!/usr/bin/env bash
# Builds deploy/docker/Dockerfile and runs the result, with buildah: no daemon, no registry.
#
#   sudo tests/deploy/build-image.sh [CONTEXT]      (default: this checkout)
#
# Needs root, and Debian's packages buildah and debootstrap. It takes minutes, so CI does not run it.
# debootstrap makes the base image once. All files are in build/image (several GB).
# KEEP=1 keeps the built image as localhost/syncline:dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly CONTEXT=${1:-.}
readonly BASE=localhost/debian:bookworm-slim
readonly IMAGE=localhost/syncline:dev
readonly STORE=$PWD/build/image
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

buildah() { command buildah --root "$STORE/root" --runroot "$STORE/run" "$@"; }

fail() {
  echo "build-image: $*" >&2
  exit 1
}

for tool in buildah debootstrap; do
  command -v "$tool" >/dev/null || fail "$tool is not installed: apt-get install buildah debootstrap"
done
mkdir -p "$STORE"

make_base() {
  local rootfs=$STORE/rootfs container
  rm -rf "$rootfs"
  debootstrap --variant=minbase bookworm "$rootfs" >"$STORE/debootstrap.log"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$rootfs" / >/dev/null
  buildah commit --quiet --rm "$container" "$BASE" >/dev/null
  rm -rf "$rootfs"
}

# expect NAME WANTED ACTUAL
expect() { [[ $3 == "$2" ]] && echo "ok   $1: $3" || fail "$1 is '$3', not '$2'"; }

setting() { buildah inspect --type image --format "{{.OCIv1.Config.$1}}" "$IMAGE"; }

buildah inspect --type image "$BASE" >/dev/null 2>&1 || make_base
buildah bud --pull-never --build-arg "BASE=$BASE" -f deploy/docker/Dockerfile -t "$IMAGE" "$CONTEXT"

expect user 10001:10001 "$(setting User)"
expect "stop signal" SIGTERM "$(setting StopSignal)"
expect "entry point" "[syncline]" "$(setting Entrypoint)"

container=$(buildah from --pull-never "$IMAGE")
trap 'buildah rm "$container" >/dev/null; [[ -n ${KEEP:-} ]] || buildah rmi "$IMAGE" >/dev/null' EXIT
inside() { buildah run "$container" -- "$@"; }
expect "user id" 10001 "$(inside id -u)"
expect "owner of the state directory" 10001 "$(inside stat -c %u /var/lib/syncline)"
expect "headers and compilers" "" "$(inside sh -c 'ls /usr/bin/g++ /usr/include/grpc 2>/dev/null || true')"
expect version "$(sed -n 's/^project(syncline VERSION \([^ ]*\).*/\1/p' CMakeLists.txt)" \
  "$(inside syncline version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)"
echo "image: $(du -sm "$(buildah mount "$container")" | cut -f1) MB unpacked"
buildah umount "$container" >/dev/null
