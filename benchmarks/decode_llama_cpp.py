"""One process of the decoding benchmark: llama.cpp through its C functions. Prints one JSON line."""

import argparse
import ctypes
import json
import time

import decode_common as common
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--flash", type=int, default=-1, choices=(-1, 0, 1), help="-1 lets llama.cpp choose")
    parser.add_argument("--ubatch", type=int, default=512)
    parser.add_argument("--requantize", metavar="OUT", help="write the model's Q4_0 form to OUT, and nothing else")
    args = parser.parse_args()

    started = time.perf_counter()
    import llama_cpp as lib

    imported_mb = common.peak_mb()
    silent = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silent, ctypes.c_void_p(0))
    lib.llama_backend_init()
    if args.requantize:
        form = lib.llama_model_quantize_default_params()
        form.ftype, form.allow_requantize = lib.LLAMA_FTYPE_MOSTLY_Q4_0, True
        if lib.llama_model_quantize(args.model.encode(), args.requantize.encode(), ctypes.byref(form)):
            raise SystemExit(f"{args.requantize}: llama.cpp cannot write it")
        print("{}")
        return
    model = lib.llama_model_load_from_file(args.model.encode(), lib.llama_model_default_params())
    if not model:
        raise SystemExit(f"{args.model}: llama.cpp cannot load it")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 4096, 512, args.ubatch, common.BATCH
    params.n_threads = params.n_threads_batch = args.threads
    params.flash_attn_type = args.flash
    params.kv_unified = True
    context = lib.llama_init_from_model(model, params)
    vocabulary = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    memory = lib.llama_get_memory(context)
    batch = lib.llama_batch_init(512, 0, 1)

    def step(entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """Decode (token, position, sequence, wanted) entries; returns the most likely next token of the wanted ones."""
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        if lib.llama_decode(context, batch):
            raise SystemExit("llama_decode failed")
        best = []
        for i, entry in enumerate(entries):
            if entry[3]:
                logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, i), (vocabulary,))
                best.append(int(logits.argmax()))
        return best

    def decode(ids: list[list[int]], steps: int) -> float:
        best = 0.0
        for _ in range(args.repeat):
            lib.llama_memory_clear(memory, True)
            tokens = []
            for s, prompt in enumerate(ids):
                last = len(prompt) - 1
                tokens += step([(token, i, s, i == last) for i, token in enumerate(prompt)])
            begin = time.perf_counter()
            for n in range(steps):
                tokens = step([(token, len(ids[0]) + n, s, True) for s, token in enumerate(tokens)])
            best = max(best, len(ids) * steps / (time.perf_counter() - begin))
        return best

    def prefill(ids: list[int]) -> float:
        best = 0.0
        for _ in range(args.repeat):
            lib.llama_memory_clear(memory, True)
            begin = time.perf_counter()
            step([(token, i, 0, i == len(ids) - 1) for i, token in enumerate(ids)])
            best = max(best, len(ids) / (time.perf_counter() - begin))
        return best

    one = common.prompts(1, common.PROMPT)
    step([(token, i, 0, i == common.PROMPT - 1) for i, token in enumerate(one[0])])
    first_token = time.perf_counter() - started
    result = {
        "decode_b1": decode(one, common.STEPS_1),
        "decode_b16": decode(common.prompts(common.BATCH, common.PROMPT), common.STEPS_16),
        "prefill512": prefill(common.prompts(1, common.PREFILL)[0]),
        "first_token_s": first_token,
        "peak_mb": common.peak_mb(),
        "over_import_mb": common.peak_mb() - imported_mb,
        "settings": f"threads {args.threads}, flash_attn {args.flash}, n_batch 512, n_ubatch {args.ubatch}, "
        "n_ctx 4096, f16 cache, unified",
        "system": lib.llama_print_system_info().decode().strip(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
