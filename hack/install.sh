#!/usr/bin/env bash
# Make a virtual environment with the locked dependencies and this project in editable mode.
# Usage: install.sh VENV    (environment: PYTHON, UV_VERSION)
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

if ! command -v "$python" >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && apt-get install -qy --no-install-recommends python3 python3-venv
  else
    echo "$python: not found. Install Python 3.11 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)." >&2
    exit 2
  fi
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$("$python" --version) is too old: 3.11 or newer is needed. Name another one: make PYTHON=python3.12 …" >&2
  exit 2
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -q && apt-get install -qy --no-install-recommends python3-venv
  else
    echo "$python has no venv module. Debian, Ubuntu: apt-get install python3-venv." >&2
    exit 2
  fi
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION"
UV_PROJECT_ENVIRONMENT=$venv "$venv/bin/uv" sync --frozen --inexact --quiet
echo "Installed: $("$venv/bin/disagg" --version), in $venv. Try: $venv/bin/disagg --help"
