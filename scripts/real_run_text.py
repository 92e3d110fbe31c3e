"""The text of the real runs: `python scripts/real_run_text.py poems|english FOLDER [--short]`.

Writes train.jsonl and, of each hundredth document, held-out.jsonl: the 57,000 poems of the Complete Tang Poems (npm
chinese-poetry, MIT) or 100,000 English sentences (npm nlp-corpus, MIT). --short fetches nothing: a few famous poems, or
the sentences of this documentation, each tenth held out.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from data_corpora import english_sentences, npm_package  # noqa: E402


def poems(folder: Path) -> list[str]:
    """Of all Tang poets: a title, and a line for each couplet."""
    parts = npm_package("chinese-poetry@2.0.1", folder).glob("dist/quantangshi/poet.tang.*.json")
    found = []
    for path in sorted(parts, key=lambda path: int(path.name.split(".")[2])):
        for poem in json.loads(path.read_text(encoding="utf-8")):
            found.append("\n".join([poem["title"], *poem["paragraphs"]]))
    return found


def famous_poems() -> list[str]:
    return (ROOT / "examples" / "tang-poems.txt").read_text(encoding="utf-8").strip().split("\n\n")


def sentences_of_the_documentation() -> list[str]:
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        lines = [line for line in prose.splitlines() if line[:1].isalpha()]
        found += [sentence for line in lines for sentence in re.split(r"(?<=[.:;]) ", line)]
    return found


FULL = {"poems": poems, "english": english_sentences}
SHORT = {"poems": famous_poems, "english": sentences_of_the_documentation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", choices=FULL)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args()
    if options.short:
        documents, every = SHORT[options.text](), 10
    else:
        with tempfile.TemporaryDirectory() as temporary:
            documents, every = FULL[options.text](Path(temporary)), 100
    documents = list(dict.fromkeys(documents))  # a copy of what is learnt would not be held out
    held_out = documents[every - 1 :: every]
    del documents[every - 1 :: every]
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", documents), ("held-out", held_out)):
        path = options.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in chosen), encoding="utf-8")
        print(f"{path}: {len(chosen):,} documents, {sum(map(len, chosen)):,} characters")


if __name__ == "__main__":
    main()
