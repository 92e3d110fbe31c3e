#!/usr/bin/env bash
# Makes a Python 3.9 environment with MindSpore Serving's own client: make_client_env.sh DIR
# Its last release exists for Python 3.7 to 3.9 only; the client alone needs no MindSpore.
set -euo pipefail
target=${1:?usage: make_client_env.sh DIR}
[ -e "$target/installed" ] && exit 0
for python in python3.9 "$HOME"/.pyenv/versions/3.9*/bin/python3.9 /opt/python/cp39-cp39/bin/python; do
    if "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        "$python" -m venv --clear "$target"
        "$target/bin/python" -m pip install -qq --disable-pip-version-check --no-deps \
            mindspore-serving==2.0.2 grpcio==1.47.0 protobuf==3.20.3 numpy==1.23.5 six==1.16.0
        "$target/bin/python" -c 'import mindspore_serving.client'
        touch "$target/installed"
        exit 0
    fi
done
echo "$0: no Python 3.9 with venv found: install one, or skip the tests of the real client" >&2
exit 3
