#!/usr/bin/env bash
# Runs every test with the Python $1; further arguments go to pytest. Where this machine can carry a real Kubernetes
# cluster, its programs are built first (once; kept in a cache keyed by their pinned sources), so that the progress is
# seen; where it can't, those tests are skipped and named with the reason, unless KGPU_REQUIRE_REAL=1.
set -euo pipefail
python=$1
shift
say() {
    if [ -t 2 ] && [ -z "${NO_COLOR:-}" ]; then printf '\033[2m[test]\033[0m %s\n' "$*" >&2
    else printf '[test] %s\n' "$*" >&2; fi
}

if [ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ] && [ "${KGPU_SKIP_REAL:-0}" != 1 ]; then
    say "programs of the real cluster (built once, then cached)"
    if ! "$python" -m kgpu lab build --install-tools --helm --end-to-end; then
        [ "${KGPU_REQUIRE_REAL:-0}" != 1 ] || exit 1
        say "the tests on the real cluster will be skipped"
    fi
fi

# What needs no cluster runs on every core, four at the most; the tests on real programs have the machine to themselves.
workers=$(nproc 2>/dev/null || echo 1)
[ "$workers" -le 4 ] || workers=4
status=0
for part in "not real" "real"; do
    [ "$part" = real ] && spread=() || spread=(-n "$workers" --dist loadfile)
    say "the tests marked: $part"
    code=0
    "$python" -m pytest -m "$part" "${spread[@]}" "$@" || code=$?
    [ "$code" -le 1 ] || [ "$code" = 5 ] || exit "$code" # interrupted, or pytest itself failed; 5: there are none
    [ "$code" = 5 ] || status=$((status > code ? status : code))
    [ "$code" = 5 ] || some=1
done
[ -n "${some:-}" ] || exit 5
exit "$status"
