#!/usr/bin/env bash
# Checks deploy/ and helm/ with real tools: Helm, Kubernetes' own types, promtool, hadolint.
#
#   tests/deploy/check.sh [WORD…]     only the checks whose name contains one of the words
#
# It needs nothing installed: a check whose tool is not available prints a SKIP line, and does not fail. Python packages
# are installed to build/venv. The last line is "deploy: N passed, N failed, N skipped". The exit code is 1 if a check failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly VENV=build/venv

present() {
  case $1 in
    hadolint | docker-compose) [[ -x $VENV/bin/$1 ]] ;;
    *) "$VENV/bin/python" -c "import $1" 2>/dev/null ;;
  esac
}

# Without a package index this stops after seconds, at the first package.
install_python_tools() {
  local module requirement
  [[ -x $VENV/bin/pip ]] || python3 -m venv "$VENV" || return 0
  while read -r module requirement; do
    [[ $module == \#* ]] && continue
    present "$module" && continue
    echo "deploy: installing $requirement into $VENV"
    timeout 90 "$VENV/bin/pip" install --quiet --disable-pip-version-check --timeout 5 --retries 1 \
      "$requirement" >/dev/null 2>&1 || return 0
  done <tests/deploy/requirements.txt
}

mkdir -p build
# Two runs in one checkout must not install into the environment at the same time.
exec 9>build/venv.lock
flock 9
install_python_tools
exec 9>&-

python=python3
[[ -x $VENV/bin/python ]] && python=$VENV/bin/python
exec env PATH="$PWD/$VENV/bin:$PATH" PYTHONDONTWRITEBYTECODE=1 "$python" tests/deploy/main.py "$@"
