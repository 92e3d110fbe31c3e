#!/usr/bin/env bash
# Proves against the real package that MindFormers checkpoints and YAMLs go out and come in:
#   bash scripts/check_mindformers.sh [FOLDER]        (default: mindformers-check in the cache; about 4 GB, 10 minutes)
# What we export is loaded strictly by MindFormers 1.9.0 (with MindSpore 2.9, in an environment of its own) and gives
# our logits; what it saves, in its other layouts, is imported and gives its logits. Not part of CI: it downloads.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
folder=${1:-${MINDSPEED_MS_CACHE:-$HOME/.cache/mindspeed-ms}/mindformers-check}
python=${PYTHON:-python3}
theirs=$folder/venv/bin/python
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export PYTHONPATH=$root

if [ ! -x "$theirs" ] || ! "$theirs" -c 'import mindformers' 2>/dev/null; then
    "$python" -m venv "$folder/venv"
    "$theirs" -m pip install --quiet 'mindformers==1.9.0' 'mindspore==2.9.*'
fi
rm -rf "$folder/cases"
"$python" "$here/mindformers_ours.py" export "$folder/cases"
cd "$folder" # MindFormers writes its logs into the working folder
for case in cases/*; do
    if ! PYTHONPATH='' "$theirs" "$here/mindformers_theirs.py" "$case" >theirs.log 2>&1; then
        tail -n 40 theirs.log >&2
        exit 1
    fi
    grep 'largest difference' theirs.log
done
"$python" "$here/mindformers_ours.py" import "$folder/cases"
