#!/bin/sh
# Makes a virtual environment with pinned, hashed requirements: setup.sh FOLDER REQUIREMENTS
# Plain sh, since it has to say what is missing on a machine that has nothing. PYTHON names the Python to use.
set -eu

folder=$1
requirements=$2

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

command -v git >/dev/null 2>&1 || fail 'git is missing.' 'On Debian or Ubuntu: apt install git'

python=
for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    found=$("${PYTHON:-python3}" --version 2>&1 || true)
    fail "Python 3.11 or newer is missing; here: ${found:-none}." \
        'On Debian 12, Ubuntu 24.04 or newer: apt install python3 python3-venv' \
        'On an older one, install a newer Python beside it and name it: make PYTHON=/path/to/python3.12 ...'
fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments: its venv module is missing." \
        "On Debian or Ubuntu: apt install python$version-venv"

if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "setup: making $folder with Python $version" >&2
    "$python" -m venv --clear "$folder"
fi
echo "setup: installing $requirements into $folder, pinned and hashed" >&2
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$requirements"
