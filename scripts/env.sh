# Sourced by the other scripts: leaves $ROOT (the checkout, entered) and $PYTHON (that of its virtual environment).
# use_environment EXTRAS makes .venv if there is none and installs the checkout into it with these extras; where
# MINDSPEED_MS_ENVIRONMENT names the Python of an environment that has them, it is that one.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"

fail() { echo "$*" >&2; exit 1; }

# A Python of a supported version with venv and pip inside, or one line that says what to install.
find_python() {
    local candidate found=""
    for candidate in "${MINDSPEED_MS_PYTHON:-python3}" python3.12 python3.11 python3.10; do
        "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null || continue
        found="$candidate"
        "$candidate" -c 'import venv, ensurepip' 2>/dev/null && { echo "$candidate"; return; }
    done
    [ -n "$found" ] && fail "$found has no venv module: apt-get install python3-venv"
    fail "Python 3.10, 3.11 or 3.12 is needed and none was found: apt-get install python3 python3-venv, or set MINDSPEED_MS_PYTHON"
}

use_environment() {
    local extras="$1" base state
    if [ -n "${MINDSPEED_MS_ENVIRONMENT:-}" ]; then
        PYTHON="$MINDSPEED_MS_ENVIRONMENT"
        export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
        return
    fi
    # The same choice as the build's: $CXX, else g++, else clang++.
    command -v ${CXX:-g++ clang++} >/dev/null || fail "A C++ compiler is needed for the kernels: apt-get install g++"
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        base="$(find_python)" || exit 1
        echo "Making .venv with $("$base" --version)"
        "$base" -m venv --clear .venv
    fi
    PYTHON="$ROOT/.venv/bin/python"
    # Installing again what is installed takes seconds: a note in .venv says what was installed last.
    state="$(cksum < setup.cfg) $(cksum < pyproject.toml) $ROOT"
    if [ "$(cat ".venv/installed-$extras" 2>/dev/null || true)" != "$state" ]; then
        echo "Installing mindspeed-ms[$extras] into .venv (MindSpore is large: this takes a few minutes the first time)"
        "$PYTHON" -m pip install -qq --disable-pip-version-check -e ".[$extras]"
        echo "$state" > ".venv/installed-$extras"
    fi
}
