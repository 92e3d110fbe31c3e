"""One process of the decoding benchmark: a bundle through its MINDIR. Prints one JSON line."""

import argparse
import json
import os
import time

import decode_common as common


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    os.environ["MINDSPEED_MS_THREADS"] = str(args.threads)

    started = time.perf_counter()
    from mindspeed_ms.log import quiet_mindspore

    quiet_mindspore()
    import mindspore  # noqa: F401

    imported_mb = common.peak_mb()
    from mindspeed_ms.serving.engine.llm import LLM, SamplingParams

    llm = LLM(args.model, profile=args.profile, token_budget=common.PREFILL)

    def seconds(ids: list[list[int]], tokens: int) -> float:
        begin = time.perf_counter()
        outputs = llm.generate(ids, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
        spent = time.perf_counter() - begin
        if any(len(output.output_ids) != tokens for output in outputs):
            raise SystemExit(f"an answer has not {tokens} tokens: {outputs}")
        return spent

    one, many, long = (
        common.prompts(1, common.PROMPT),
        common.prompts(common.BATCH, common.PROMPT),
        common.prompts(1, common.PREFILL),
    )
    seconds(one, 1)
    first_token = time.perf_counter() - started

    def decode(ids: list[list[int]], steps: int) -> float:
        """Tokens/s of decoding alone: a run of many tokens less a run of one."""
        short = min(seconds(ids, 1) for _ in range(args.repeat))
        long_run = min(seconds(ids, 1 + steps) for _ in range(args.repeat))
        return len(ids) * steps / (long_run - short)

    result = {
        "decode_b1": decode(one, common.STEPS_1),
        "decode_b16": decode(many, common.STEPS_16),
        "prefill512": common.PREFILL / min(seconds(long, 1) for _ in range(args.repeat)),
        "first_token_s": first_token,
        "peak_mb": common.peak_mb(),
        "over_import_mb": common.peak_mb() - imported_mb,
    }
    if args.profile:
        result["profile"] = {
            "decode_b1": shares(llm, lambda: seconds(one, 1 + common.STEPS_1), rows=1),
            "decode_b16": shares(llm, lambda: seconds(many, 1 + common.STEPS_16), rows=common.BATCH),
        }
    print(json.dumps(result))


def shares(llm, run, rows: int) -> dict[str, float]:
    """Milliseconds a decoding step by part; the library times its kernels, the graph is the rest of the runner."""
    from mindspeed_ms.ops.native.build import library

    llm.profile.clear()
    kernels = library().MsmsSeconds()
    wall = run()
    kernels = library().MsmsSeconds() - kernels
    steps = [step for step in llm.profile if step.tokens == rows]
    everything = sum(s.schedule + s.runner + s.sampling + s.detokenize for s in llm.profile)
    decoding = sum(s.runner for s in steps)
    kernels *= decoding / sum(s.runner for s in llm.profile)  # the prompt's share left out
    parts = {
        "kernels": kernels,
        "graph": decoding - kernels,
        "sampling": sum(s.sampling for s in steps),
        "detokenize": sum(s.detokenize for s in steps),
        "schedule": sum(s.schedule for s in steps),
        "between_steps": (wall - everything) * len(steps) / len(llm.profile),
    }
    return {name: round(value / len(steps) * 1e3, 3) for name, value in parts.items()}


if __name__ == "__main__":
    main()
