#!/usr/bin/env bash
# Command two: passes the tests. Arguments go to pytest, for example: bash scripts/test.sh tests/ops -k rope
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment "serve,data,ray,plan,test"

# What the tests build and export stays out of the user's own cache, and is kept between runs.
export MINDSPEED_MS_CACHE="${MINDSPEED_MS_CACHE:-$ROOT/.venv/cache}"

step() { echo; echo "== $1"; }

# A laptop may go without; where every change has to pass, a skipped test would be a test that nobody runs.
missing() {
    [ "${CI:-}" != true ] || fail "$1"
    echo "$1"
}

# The real MindSpore Serving client exists for Python 3.9 and older only, so it gets an environment of its own.
old_client_environment() {
    local found
    bash tests/serving/make_client_env.sh .venv39 2>/dev/null && return
    # No Python 3.9 here; uv brings one where it may download it.
    "$PYTHON" -m pip install -qq --disable-pip-version-check uv || return 1
    "$PYTHON" -m uv python install --quiet 3.9 2>/dev/null || return 1
    found="$("$PYTHON" -m uv python find 3.9)" || return 1
    PATH="$(dirname "$found"):$PATH" bash tests/serving/make_client_env.sh .venv39
}

if [ $# -eq 0 ]; then
    # First the library that tests wait for, then the kernels' own tests with the address and undefined-behaviour
    # sanitizers: compilers keep one core busy while other checks need the other.
    compiled="$(mktemp)"
    { "$PYTHON" -m mindspeed_ms.cli.main ops build && "$PYTHON" -m mindspeed_ms.ops.native.selftest; } >"$compiled" 2>&1 &
    compiling=$!
    trap 'kill "$compiling" 2>/dev/null || true; rm -f "$compiled"' EXIT

    step "ruff"
    "$PYTHON" -m ruff check .
    "$PYTHON" -m ruff format --check .

    step "mypy on the rooms that import no MindSpore"
    "$PYTHON" -m mypy mindspeed_ms/{errors,log,paths}.py mindspeed_ms/{config,text,weights,data,checkpoint,report,cli} \
        mindspeed_ms/train/{metrics,events,environment,schedule,loss_scale,lock,memory}.py \
        mindspeed_ms/ops/native mindspeed_ms/serving mindspeed_ms/parallel/{topology,plan}

    step "a Python 3.9 environment for the real MindSpore Serving client"
    old_client_environment && echo "in .venv39" || missing "no Python 3.9 is to be had: the tests of the real client will be skipped"

    step "a real model for the tests that want one"
    if MINDSPEED_MS_SMOLLM2="$("$PYTHON" -m mindspeed_ms.cli.main pull smollm2)"; then
        export MINDSPEED_MS_SMOLLM2
        echo "$MINDSPEED_MS_SMOLLM2"
    else
        missing "it cannot be fetched: those tests will be skipped"
        unset MINDSPEED_MS_SMOLLM2
    fi

    step "pytest"
    # Each worker begins with a half of its own, so that what a file shares is made once; the quicker one takes from the other.
    set -- -n 2 --dist worksteal --durations=15
fi
"$PYTHON" -m pytest "$@" && status=0 || status=$?
if [ -n "${compiling:-}" ]; then
    step "native kernels under the address and undefined-behaviour sanitizers"
    wait "$compiling" || { cat "$compiled"; fail "the kernels do not compile, or their own tests fail"; }
    cat "$compiled"
fi
exit "$status"
