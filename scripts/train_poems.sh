#!/usr/bin/env bash
# A model of 6 million parameters that writes Tang poems, from nothing: docs/real-runs.md shows what comes of it.
# bash scripts/train_poems.sh [--short] [FOLDER]: some minutes on two cores; --short: less than one, without network.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
source "$ROOT/scripts/real_run.sh"
begin poems "$@"
model_from_text $'春望\n' --mode pack --max-length 256
