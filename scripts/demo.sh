#!/usr/bin/env bash
# Command one: a real model, from its weights to an answer over gRPC.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment "serve"

ms() { "$PYTHON" -m mindspeed_ms.cli.main "$@"; }
step() { echo; echo "== $1"; }

demo="$ROOT/.demo"
question="${1:-How do plants make food?}"
server=""
stop_server() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    server=""
}
trap stop_server EXIT
mkdir -p "$demo"

step "Fetch SmolLM2-135M-Instruct (Apache-2.0, 98 MB)"
model="$(ms pull smollm2)"
echo "$model"

step "Quantize it to INT4 (4-bit weights in groups of 32, 8-bit activations)"
rm -rf "$demo/smollm2-int4" "$demo/smollm2-bundle"
ms quantize "$model" "$demo/smollm2-int4" --scheme w4a8 --group 32 --asymmetric > "$demo/quantize.txt"
tail -n 5 "$demo/quantize.txt"
echo "(the error of each layer: .demo/quantize.txt; the file was 4-bit already, so nothing is lost)"

step "Export a bundle (the first time, the kernels are built too)"
ms export "$demo/smollm2-int4" "$demo/smollm2-bundle"

step "Serve it over gRPC on a free port"
# Not by the function above: $! has to be the server itself and not a shell around it.
"$PYTHON" -m mindspeed_ms.cli.main serve "$demo/smollm2-bundle" --grpc 127.0.0.1:0 --json > "$demo/serve.json" 2> "$demo/serve.log" &
server=$!
for _ in $(seq 600); do
    [ -s "$demo/serve.json" ] && break
    kill -0 "$server" 2>/dev/null || fail "The server ended: $(tail -n 1 "$demo/serve.log")"
    sleep 0.2
done
[ -s "$demo/serve.json" ] || fail "The server did not answer within two minutes; see .demo/serve.log"
cat "$demo/serve.json"

step "Ask: $question"
"$PYTHON" - "$demo/serve.json" "$question" <<'PYTHON'
import json
import sys
import time

from mindspeed_ms.serving.client import Client

with open(sys.argv[1]) as file:
    address = json.load(file)["grpc"]
with Client(address) as client:
    client.chat("Hello", max_tokens=1)
    started = time.perf_counter()
    answer = client.chat(sys.argv[2], temperature=0, max_tokens=160)
    seconds = time.perf_counter() - started
print(answer.text)
print(f"\n{answer.completion_tokens} tokens in {seconds:.2f} s: {answer.completion_tokens / seconds:.0f} tokens/s (prompt included)")
PYTHON

step "Next"
cat <<END
source .venv/bin/activate
mindspeed-ms chat .demo/smollm2-bundle --temperature 0.2 --top-p 0.9
mindspeed-ms serve .demo/smollm2-bundle --grpc 127.0.0.1:5500
bash scripts/test.sh
END
