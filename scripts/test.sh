#!/usr/bin/env bash
# Command two: passes the tests. Arguments go to pytest, for example: bash scripts/test.sh tests/ops -k rope
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment "serve,test"

# What the tests build and export stays out of the user's own cache, and is kept between runs.
export MINDSPEED_MS_CACHE="${MINDSPEED_MS_CACHE:-$ROOT/.venv/cache}"

step() { echo; echo "== $1"; }

# The real MindSpore Serving client exists for Python 3.9 and older only, so it gets an environment of its own.
# Without a Python 3.9 its tests say that they are skipped.
old_client_environment() {
    local python candidate
    if [ ! -e .venv39/installed ]; then
        python=""
        for candidate in python3.9 "$HOME"/.pyenv/versions/3.9*/bin/python /opt/python/cp39-cp39/bin/python; do
            "$candidate" -c 'import venv, ensurepip' >/dev/null 2>&1 && { python="$candidate"; break; }
        done
        if [ -n "$python" ]; then
            "$python" -m venv --clear .venv39
        else
            "$PYTHON" -m pip install -qq --disable-pip-version-check uv &&
                "$PYTHON" -m uv venv --quiet --clear --seed --python 3.9 .venv39 || return 1
        fi
        .venv39/bin/python -m pip install -qq --disable-pip-version-check \
            grpcio==1.47.0 protobuf==3.20.3 numpy==1.23.5 || return 1
        .venv39/bin/python -m pip install -qq --disable-pip-version-check --no-deps mindspore-serving==2.0.2 ||
            return 1
        touch .venv39/installed
    fi
    export MINDSPEED_MS_PYTHON39="$ROOT/.venv39/bin/python"
}

if [ $# -eq 0 ]; then
    step "ruff"
    "$PYTHON" -m ruff check .
    "$PYTHON" -m ruff format --check .

    step "mypy on the rooms that import no MindSpore"
    "$PYTHON" -m mypy mindspeed_ms/{errors,log,paths}.py mindspeed_ms/{config,weights,cli} \
        mindspeed_ms/ops/native mindspeed_ms/serving

    step "native kernels under the address and undefined-behaviour sanitizers"
    "$PYTHON" -m mindspeed_ms.ops.native.selftest

    step "a Python 3.9 environment for the real MindSpore Serving client"
    old_client_environment || echo "none could be made: the tests of the real client will be skipped"

    step "pytest"
    set -- -n 2 --durations=15
elif [ -e .venv39/installed ]; then
    export MINDSPEED_MS_PYTHON39="$ROOT/.venv39/bin/python"
fi
"$PYTHON" -m pytest "$@"
