"""Helper modules of these tests (data_*.py) are imported by their bare names."""

import gc
import gzip
import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def no_thread_stays():
    """That no loader of a test leaves its thread behind."""
    from data_batches import producers

    yield
    gc.collect()
    for _ in range(100):
        if not producers():
            return
        time.sleep(0.02)
    raise AssertionError(f"still running: {producers()}")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A small tokenizer.json (see data_corpus.write_tokenizer)."""
    from data_corpus import write_tokenizer

    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def corpus(tmp_path):
    """A folder with 600 documents in a.txt and 300 others in b.jsonl.gz."""
    from data_corpus import sentences

    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(sentences(600)))
    lines = [json.dumps({"text": text}) for text in sentences(300, seed=1)]
    with gzip.open(folder / "b.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    return folder
