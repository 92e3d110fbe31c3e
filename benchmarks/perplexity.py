"""Perplexity of one model under each quantization scheme, beside the model as it is.

`python benchmarks/perplexity.py MODEL TEXT [--tokens 20000]`; the last line is one JSON object. What MODEL is matters:
a GGUF file that is 4-bit already is a 4-bit source, and the table says how much a second rounding adds to the first.
"""

import argparse
import json
import tempfile
from pathlib import Path

SCHEMES = [
    ("w8a16", 0, False),
    ("w8a8", 0, False),
    ("w8a8", 32, False),
    ("w4a16", 32, True),
    ("w4a16", 32, False),
    ("w4a16", 64, True),
    ("w4a16", 128, True),
    ("w4a8", 32, False),
    ("w4a8", 64, True),
    ("w4a8", 64, False),
    ("w4a8", 128, True),
    ("w4a8", 128, False),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=20000)
    args = parser.parse_args()
    from mindspeed_ms.compress.quantize import quantize_model
    from mindspeed_ms.log import quiet_mindspore

    quiet_mindspore()
    from mindspeed_ms.serving.engine.llm import LLM
    from mindspeed_ms.serving.engine.perplexity import perplexity

    with LLM(args.model) as llm:
        ids = llm.tokenizer.encode(args.text.read_text())[: args.tokens]
        text = llm.tokenizer.decode(ids)
        results = {"as it is": perplexity(llm, text)["perplexity"]}
    print(f"{'as it is':28}{results['as it is']:10.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for scheme, group, asymmetric in SCHEMES:
            name = f"{scheme}, {f'groups of {group}' if group else 'rows'}{', asymmetric' if asymmetric else ''}"
            out = Path(folder) / name.replace(" ", "_")
            report = quantize_model(args.model, out, scheme, group, asymmetric)
            error = max(layer.relative_rms for layer in report.layers)
            with LLM(out) as llm:
                results[name] = perplexity(llm, text)["perplexity"]
            print(f"{name:28}{results[name]:10.3f}  largest relative error of a matrix {error:.3f}", flush=True)
    print(json.dumps({name: round(value, 3) for name, value in results.items()}))


if __name__ == "__main__":
    main()
