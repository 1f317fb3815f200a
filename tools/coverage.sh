#!/usr/bin/env bash
# Runs every test with the Python $1 and measures which lines and branches they reach, in the tests' own process and in
# every kgpu that they start on this machine. What runs in containers of kgpu's image is not measured.
set -euo pipefail
python=$1
folder=$PWD/build/coverage
rm -rf "$folder"
mkdir -p "$folder"
export COVERAGE_FILE=$folder/data KGPU_COVERAGE=1
status=0
"$python" -m tools.suite || status=$?
"$python" -m coverage combine --quiet "$folder"
"$python" -m coverage json --quiet -o "$folder/coverage.json"
"$python" -m coverage html --quiet -d "$folder/html"
"$python" - "$folder/coverage.json" <<'PY'
import json, sys
t = json.load(open(sys.argv[1]))["totals"]
lines = 100 * t["covered_lines"] / t["num_statements"]
branches = 100 * t["covered_branches"] / t["num_branches"]
print(f"lines {lines:.2f} % of {t['num_statements']}, branches {branches:.2f} % of {t['num_branches']}")
PY
exit "$status"
