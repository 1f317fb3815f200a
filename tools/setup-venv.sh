#!/usr/bin/env bash
# Makes the virtual environment $1 with kgpu (editable) and the development tools at the pinned versions.
# Prefers uv when it is there; needs a Python of 3.11 or newer. Says what it does, step by step.
set -euo pipefail
venv=${1:-.venv}
cd "$(dirname "$0")/.."

say() {
    if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then printf '\033[2m[setup]\033[0m %s\n' "$*" >&2
    else printf '[setup] %s\n' "$*" >&2; fi
}
fail() { # what failed, what was expected, what to do
    printf 'error: %s\n  expected: %s\n  to do: %s\n' "$1" "$2" "$3" >&2
    exit 2
}

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-} python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
    if command -v "$candidate" >/dev/null && new_enough "$candidate"; then python=$candidate; break; fi
done
[ -n "$python" ] || fail "no suitable Python was found" "Python 3.11 or newer" \
    "install it, or name one: make PYTHON=/path/to/python3 setup"

if [ ! -x "$venv/bin/python" ] || ! new_enough "$venv/bin/python"; then
    say "1/3 virtual environment in $venv with $("$python" --version)"
    rm -rf "$venv"
    if ! "$python" -m venv "$venv" 2>/dev/null; then
        rm -rf "$venv"
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "    this Python lacks venv; installing Debian's python3-venv"
            { apt-get update && apt-get install -y --no-install-recommends python3-venv; } >/dev/null 2>&1 || true
            python=/usr/bin/python3
        fi
        new_enough "$python" && "$python" -m venv "$venv" || fail "the virtual environment could not be made" \
            "a Python of 3.11 or newer with its venv module" "install python3-venv (Debian, Ubuntu)"
    fi
fi

say "2/3 packages at the versions in constraints.txt"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check 'pip>=25.1'
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    --editable '.[lab]' --group dev

# Precompiled modules keep a process 10 MB smaller for as long as it lives.
say "3/3 compiling modules"
"$venv/bin/python" -m compileall -q -j 2 "$venv/lib" src >/dev/null 2>&1 || true
rm -f "$venv"/.ready-*
say "ready"
