#!/usr/bin/env bash
# Build sdist and wheel twice, compare them, check their metadata, and try both in bare environments in an empty folder.
# usage: tools/check_package.sh [FOLDER]; PYTHON chooses the Python, FOLDER (default: dist) gets both files.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
dist="$(realpath -m "${1:-dist}")"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
# Seconds of the last commit, so that files of two builds are equal; 2020 without git (Zip files start in 1980).
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1577836800)}"

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet build hatchling
for number in 1 2; do
  "$work/tools/bin/python" -m build --no-isolation --outdir "$work/build$number" . >"$work/log$number" || { cat "$work/log$number"; exit 1; }
done
diff -r "$work/build1" "$work/build2" && echo "both builds are equal"
mkdir -p "$dist" && rm -f "$dist"/steptime-*.whl "$dist"/steptime-*.tar.gz && cp "$work/build1"/* "$dist"
if "$work/tools/bin/pip" install --quiet twine; then "$work/tools/bin/twine" check --strict "$dist"/*; else echo "no twine: metadata not checked"; fi

# The wheel, without an extra, in an empty folder.
mkdir "$work/empty" && cd "$work/empty"
"$python" -m venv wheel
# pip itself does not count.
bare=$(du -sm wheel | cut -f1)
wheel/bin/pip install --quiet "$dist"/steptime-*.whl
size=$(($(du -sm wheel | cut -f1) - bare))
echo "installed size: $size MB"
test "$size" -lt 130
wheel/bin/steptime --version
wheel/bin/steptime step llama-3.1-8b hgx-h100 --batch 64 --context 4k --json >/dev/null
wheel/bin/python -c "import steptime as st; names = {}; exec('from steptime import *', names); assert {*dir(st)} <= {*names}"

# The source distribution alone: the README's first command as it stands there, then a part of the tests of the second.
mkdir source && tar -xzf "$dist"/steptime-*.tar.gz -C source --strip-components 1 && cd source
bash -euo pipefail -c "$(grep -m 1 '^    python3 -m venv' README.md | sed "s|python3|$python|")" >"$work/plan" || { cat "$work/plan"; exit 1; }
grep -A 2 '^Serve ' "$work/plan"
.venv/bin/pip install --quiet '.[test]'
.venv/bin/python -m pytest -n auto tests/test_public.py tests/test_release.py
