#!/usr/bin/env bash
# Makes dist/*.whl with the native library inside, for hosts of this architecture that have no compiler.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment "serve"
"$PYTHON" -m pip install -qq --disable-pip-version-check build
{ read -r library; read -r inside; } < <("$PYTHON" -c '
from mindspeed_ms.ops.native.build import PREBUILT, build
print(build(), PREBUILT, sep="\n")')
# Only while the wheel is made: in a checkout it would hide a change of the sources.
trap 'rm -rf "$(dirname "$inside")"' EXIT
mkdir -p "$(dirname "$inside")"
cp "$library" "$inside"
"$PYTHON" -m build --wheel "-C--build-option=--plat-name=linux_$(uname -m)"
