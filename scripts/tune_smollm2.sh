#!/usr/bin/env bash
# SmolLM2-135M-Instruct learns from the conversations of examples/pirate.jsonl to answer as a pirate: adapters (LoRA) are
# trained and merged, the model is quantized, exported and served, and asked the same before and after.
# bash scripts/tune_smollm2.sh [--short] [FOLDER]: some minutes on two cores; --short: a few steps, less than one.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
source "$ROOT/scripts/real_run.sh"
begin pirate "$@"

step "Fetch SmolLM2-135M-Instruct (Apache-2.0, 98 MB)"
model="${MINDSPEED_MS_SMOLLM2:-$(ms pull smollm2)}"
echo "$model"

step "Make rows of the conversations; the last eight are held out"
head -n -8 examples/pirate.jsonl > "$OUT/train.jsonl"
tail -n 8 examples/pirate.jsonl > "$OUT/held-out.jsonl"
for part in train held-out; do
    ms data prepare "$OUT/$part.jsonl" --out "$OUT/$part-set" --tokenizer "$model" --config configs/data/chat.yaml \
        --boundaries 256 --join
done

step "Train adapters"
small=()
[ -z "$SHORT" ] || small=(
    --set run.steps=3 --set run.log_every=1 --set run.sample_every=null --set "run.samples=[Hello]"
    --set run.sample_tokens=4 --set schedule.warmup_steps=1
    --set data.eval=null --set run.eval_every=null # one graph less to compile
)
train_run --set "model.from=$model" "${small[@]}"
step "Report"
ms report "$OUT/run"

step "Before: the model as it was, as a bundle"
[ -e "$OUT/before" ] || ms export "$model" "$OUT/before"

step "After: the model with the adapters merged, in 8 bits, as a bundle"
# Not in the 4 bits that the weights were in before: what the adapters add is less than half of a step of theirs, and
# would be rounded away.
if [ ! -e "$OUT/after" ]; then
    rm -rf "$OUT/run/model-int8"
    ms quantize "$OUT/run/model" "$OUT/run/model-int8" --scheme w8a8 > "$OUT/quantize.txt"
    tail -n 4 "$OUT/quantize.txt"
    ms export "$OUT/run/model-int8" "$OUT/after"
fi

step "Ask both, each served over gRPC"
"$PYTHON" scripts/ask_served.py "$OUT/before" "$OUT/after" --out "$OUT/answers.jsonl" ${SHORT:+--max-tokens 16 --questions 2}
