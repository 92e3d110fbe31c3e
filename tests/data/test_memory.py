"""Memory does not grow with the corpus; the long tests prepare MINDSPEED_MS_LONG_GB gigabytes of text."""

import io
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from data_corpus import WORDS, write_tokenizer

from mindspeed_ms.data.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.prepare import prepare
config = PrepareConfig.parse({"arrange": {"join": True}, "shard_tokens": int(sys.argv[4])})
prepare(sys.argv[1:2], sys.argv[2], sys.argv[3], config, workers=2)
"""


def write_corpus(path, size):
    """So many bytes of different documents of 1 to 300 words, compressed."""
    import zstandard

    rng = random.Random(0)
    vocabulary = [
        *WORDS,
        *(word.capitalize() for word in WORDS),
        *(f"{a}{b}" for a in WORDS for b in ("ly", "s", "ing")),
    ]
    written = number = 0
    with open(path, "wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as out:
        while written < size:
            lines = io.StringIO()
            for _ in range(2000):
                lines.write(f"{number} {' '.join(rng.choices(vocabulary, k=rng.randint(1, 300)))}\n")
                number += 1
            written += out.write(lines.getvalue().encode())
    return number


def memory(process):
    """Bytes of a process and its children that are resident, and those of them that are no file's."""
    found = [0, 0]
    children = [process]
    while children:
        number = children.pop()
        try:
            children += map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
            status = Path(f"/proc/{number}/status").read_text()
        except OSError:
            continue
        sizes = dict(line.split(":", 1) for line in status.splitlines())
        found[0] += int(sizes.get("VmRSS", "0 kB").split()[0]) << 10
        found[1] += int(sizes.get("RssAnon", "0 kB").split()[0]) << 10
    return found


def peak_of(folder, size, tokenizer, shard_tokens):
    """Peak memory while `size` bytes of text are prepared, and the same without the pages of files; in bytes."""
    folder.mkdir()
    corpus = folder / "corpus.txt.zst"
    documents = write_corpus(corpus, size)
    command = [sys.executable, "-c", PROGRAM, str(corpus), str(folder / "set"), str(tokenizer), str(shard_tokens)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    peak = [0, 0]
    ended = threading.Event()

    def watch():
        while not ended.wait(0.05):
            peak[:] = map(max, peak, memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert process.wait() == 0
    finally:
        ended.set()
        watcher.join()
    manifest = read_manifest(folder / "set")
    assert manifest.documents == documents
    print(f"{size / 1e9:.2f} GB, {manifest.tokens} tokens: {peak[0] / 1e6:.0f} MB, {peak[1] / 1e6:.0f} without files")
    return peak


def test_five_times_the_text_takes_no_more_memory(tmp_path):
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    small = peak_of(tmp_path / "small", 20_000_000, tokenizer, 1 << 20)
    large = peak_of(tmp_path / "large", 100_000_000, tokenizer, 1 << 20)
    # The tokens alone of the difference are 80 MB.
    assert large[1] - small[1] < 40e6, (small, large)


@pytest.mark.skipif("MINDSPEED_MS_LONG_GB" not in os.environ, reason="a long test: it takes half an hour")
def test_memory_stays_below_a_gigabyte(tmp_path):
    tokenizer = Path(os.environ.get("MINDSPEED_MS_SMOLLM2") or write_tokenizer(tmp_path / "tokenizer.json"))
    size = int(float(os.environ["MINDSPEED_MS_LONG_GB"]) * 1e9)
    assert peak_of(tmp_path / "long", size, tokenizer, 32 << 20)[0] < 1e9
