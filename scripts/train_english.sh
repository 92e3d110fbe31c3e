#!/usr/bin/env bash
# A model of 6 million parameters that writes English sentences, from nothing: docs/real-runs.md shows what comes of it.
# bash scripts/train_english.sh [--short] [FOLDER]: some minutes on two cores; --short: less than one, without network.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
source "$ROOT/scripts/real_run.sh"
begin english "$@"
model_from_text "The old man" --boundaries 32,64,128 --join
