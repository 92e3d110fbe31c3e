"""Memory does not grow with the corpus: MINDSPEED_MS_LONG_GB gigabytes of text (10 in the long tests, else 0.1)."""

import io
import os
import random
import subprocess
import sys
import threading
from pathlib import Path

from data_corpus import WORDS, write_tokenizer

from mindspeed_ms.data.manifest import read_manifest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.prepare import prepare
prepare([sys.argv[1]], sys.argv[2], sys.argv[3], PrepareConfig.parse({"arrange": {"join": True}}), workers=2)
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


def test_memory_stays_below_a_gigabyte(tmp_path):
    size = float(os.environ.get("MINDSPEED_MS_LONG_GB", "0.1"))
    tokenizer = Path(os.environ.get("MINDSPEED_MS_SMOLLM2") or write_tokenizer(tmp_path / "tokenizer.json"))
    corpus = tmp_path / "corpus.txt.zst"
    documents = write_corpus(corpus, int(size * 1e9))
    command = [sys.executable, "-c", PROGRAM, str(corpus), str(tmp_path / "set"), str(tokenizer)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    peak = [0, 0]
    ended = threading.Event()

    def watch():
        while not ended.wait(0.1):
            peak[:] = map(max, peak, memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.wait() == 0
    ended.set()
    watcher.join()
    manifest = read_manifest(tmp_path / "set")
    print(f"{size} GB, {manifest.tokens} tokens: peak {peak[0] / 1e6:.0f} MB, {peak[1] / 1e6:.0f} MB without files")
    assert manifest.documents == documents
    assert peak[0] < 1e9, peak
