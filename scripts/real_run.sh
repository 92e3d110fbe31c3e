# Sourced, after env.sh, by the scripts that make a real run. What a run has made already is used, and a training that was
# interrupted goes on: the same command again.

ms() { "$PYTHON" -m mindspeed_ms.cli.main "$@"; }
step() { echo; echo "== $1"; }

# begin NAME [--short] [FOLDER]: sets $NAME, $SHORT (empty, or --short) and $OUT, the folder that takes everything.
begin() {
    NAME="$1" SHORT="" OUT=""
    shift
    for argument in "$@"; do
        case "$argument" in
            --short) SHORT=--short ;;
            -*) fail "usage: bash scripts/$(basename "$0") [--short] [FOLDER]" ;;
            *) OUT="$argument" ;;
        esac
    done
    OUT="${OUT:-.demo/$NAME${SHORT#-}}"
    mkdir -p "$OUT"
    use_environment "serve,data"
}

# train_run [--set KEY=VALUE]...: by configs/train/$NAME.yaml, from $OUT/train-set into $OUT/run.
train_run() {
    local resume=()
    [ ! -e "$OUT/run/run.json" ] || resume=(--resume)
    ms train "configs/train/$NAME.yaml" --out "$OUT/run" "${resume[@]}" \
        --set "data.train=$OUT/train-set" --set "data.eval=$OUT/held-out-set" "$@"
}

# Text into $OUT/train-set and $OUT/held-out-set: text_sets TOKENS_OF_THE_VOCABULARY [OPTION OF data prepare]...
text_sets() {
    local vocabulary="$1"
    shift
    step "Fetch the text and hold a part of it out"
    [ -e "$OUT/held-out.jsonl" ] || "$PYTHON" scripts/real_run_text.py "$NAME" "$OUT" $SHORT
    step "Train a tokenizer of up to $vocabulary tokens"
    [ -e "$OUT/tokenizer" ] || ms data tokenizer "$OUT/train.jsonl" --out "$OUT/tokenizer" --vocab-size "$vocabulary"
    for part in train held-out; do
        step "Make rows of tokens: $OUT/$part-set"
        ms data prepare "$OUT/$part.jsonl" --out "$OUT/$part-set" --tokenizer "$OUT/tokenizer" "$@"
    done
}

# From text to a model that writes, for NAME poems or english: OPTION is of data prepare.
model_from_text() {
    local prompt="$1" vocabulary=4096 small=()
    shift
    # Two small layers and a few steps: all that the whole run does, in less than a minute.
    if [ -n "$SHORT" ]; then
        vocabulary=400
        small=(
            --set run.steps=6 --set run.eval_every=3 --set run.sample_every=3 --set run.log_every=1
            --set run.sample_tokens=16 --set schedule.warmup_steps=2 --set data.tokens_per_batch=512
            --set model.config.hidden_size=128 --set model.config.intermediate_size=256
            --set model.config.num_hidden_layers=2
        )
    fi
    text_sets "$vocabulary" "$@"
    step "Train"
    train_run "${small[@]}"
    step "Report"
    ms report "$OUT/run"
    step "Let it write"
    ms generate "$OUT/run/model" "$prompt" --temperature 0.8 --seed 1 --max-tokens 60
}
