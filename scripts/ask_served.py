"""Serve bundles one after the other over gRPC, ask each the same, and print the answers beside one another.

python scripts/ask_served.py BUNDLE... --out answers.jsonl [--questions N] [--max-tokens N]
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindspeed_ms.serving.client import Client

QUESTIONS = [  # none is in examples/pirate.jsonl but the first two, which are held out there
    "Give me a tip for learning to swim.",
    "How do plants make food?",
    "How do I keep my bicycle from rusting?",
    "What is a good name for a dog?",
    "Why does the moon change its shape?",
    "I am nervous about my first day at school.",
]


@contextmanager
def served(bundle: Path) -> Iterator[Client]:
    """A client of a server of its own, which ends with the block."""
    command = [sys.executable, "-m", "mindspeed_ms.cli.main", "serve", str(bundle), "--grpc", "127.0.0.1:0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = server.stdout.readline()  # empty when it has ended: it has said why
            if not ready:
                sys.exit(f"{bundle}: the server has ended")
            with Client(json.loads(ready)["grpc"]) as client:
                yield client
        finally:
            server.send_signal(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=len(QUESTIONS))
    parser.add_argument("--max-tokens", type=int, default=80)
    options = parser.parse_args()
    answers = []
    for bundle in options.bundles:
        with served(bundle) as client:
            for question in QUESTIONS[: options.questions]:
                answer = client.chat(question, temperature=0, max_tokens=options.max_tokens)
                answers.append({"model": bundle.name, "question": question, "answer": answer.text})
    options.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in answers), encoding="utf-8")
    for question in QUESTIONS[: options.questions]:
        print(f"\n{question}")
        for line in answers:
            if line["question"] == question:
                print(f"  {line['model']:<7} {' '.join(line['answer'].split())}")


if __name__ == "__main__":
    main()
