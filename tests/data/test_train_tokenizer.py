"""A tokenizer trained on a corpus: usable everywhere, the same every time, and true to the text."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from transformers import AutoTokenizer

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data.tokenizer import open_tokenizer
from mindspeed_ms.data.train_tokenizer import train_tokenizer
from mindspeed_ms.data.words import can_cut
from mindspeed_ms.errors import ConfigError, DataError

WORDS = "the model reads a book and the reader trains on 三国 演义 with tokens of 2024 naïve café".split()
ODD = "Ünïcode 😀\n\n\ttabs  and   spaces, 1234567 don't <|endoftext|> 三国演义\u200b"


@pytest.fixture
def corpus(tmp_path):
    """A text file and a gz of JSON lines."""
    chance = random.Random(1)
    lines = [" ".join(chance.choices(WORDS, k=12)) for _ in range(400)]
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(lines[:200]), encoding="utf-8")
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines[200:]), encoding="utf-8")
    return folder


def test_bpe_brings_every_text_back_as_it_was(corpus, tmp_path):
    done = train_tokenizer([corpus], tmp_path / "t", vocab_size=320, special_tokens=["<|im_start|>", "<|im_end|>"])
    theirs = AutoTokenizer.from_pretrained(tmp_path / "t")
    ours = open_tokenizer(tmp_path / "t")
    assert (done.vocab_size, len(theirs), ours.vocab_size) == (320, 320, 320)
    assert (ours.eos_id, ours.pad_id, ours.bos_id) == (theirs.eos_token_id, theirs.pad_token_id, None) == (0, 0, None)
    assert theirs.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    for text in (ODD, *WORDS):
        assert theirs.decode(theirs.encode(text), skip_special_tokens=False) == text
    assert len(theirs.encode("2024")) == 4 and len(theirs.encode(" the")) == 1
    assert can_cut(json.loads(ours.json))


def test_wordpiece_is_bert_s(corpus, tmp_path):
    done = train_tokenizer([corpus], tmp_path / "t", kind="wordpiece", vocab_size=120)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert done.vocab_size == len(theirs) <= 120
    tokens = theirs.convert_ids_to_tokens(theirs.encode("The Book, 三国 naïve"))
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and tokens[1:3] == ["the", "book"]
    assert "三" in tokens and "国" in tokens and "##国" not in theirs.get_vocab()
    assert theirs.all_special_tokens == ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]
    assert theirs.decode(theirs.encode("The reader reads"), skip_special_tokens=True) == "the reader reads"
    ours = open_tokenizer(tmp_path / "t")
    assert (ours.pad_id, ours.eos_id, ours.add_bos) == (theirs.pad_token_id, None, False)


def test_the_report_counts_documents_bytes_and_bytes_a_token(corpus, tmp_path):
    told = []
    done = train_tokenizer([corpus / "a.txt"], tmp_path / "t", vocab_size=300, progress=lambda *what: told.append(what))
    lines = (corpus / "a.txt").read_text(encoding="utf-8").split("\n")
    size = sum(len(line.encode()) for line in lines)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert (done.documents, done.bytes) == (200, size)
    assert done.bytes_per_token == pytest.approx(size / sum(len(theirs.encode(line)) for line in lines), abs=1e-3)
    total = (corpus / "a.txt").stat().st_size
    assert told[-1] == ("read", total, total, "bytes")


def test_conversations_give_their_messages(tmp_path):
    talk = {"m": [{"role": "user", "content": "zebra"}, {"role": "assistant", "content": "zebra zebra"}]}
    (tmp_path / "c.jsonl").write_text("\n".join([json.dumps(talk)] * 9))
    done = train_tokenizer([tmp_path / "c.jsonl"], tmp_path / "t", vocab_size=300, read=ReadConfig(messages_key="m"))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "t")
    assert done.documents == 18 and theirs.tokenize(" zebra") == ["Ġzebra"] and "user" not in theirs.get_vocab()


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_every_process_makes_the_same_bytes(corpus, tmp_path, kind):
    path = os.pathsep.join(part for part in sys.path if part)
    code = (
        "import sys; from mindspeed_ms.data.train_tokenizer import train_tokenizer as train\n"
        f"train([sys.argv[1]], sys.argv[2], kind={kind!r}, vocab_size=330)"
    )
    made = []
    for name, threads in (("one", "1"), ("two", "2"), ("three", "2")):
        env = {**os.environ, "PYTHONPATH": path, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        subprocess.run([sys.executable, "-c", code, corpus, tmp_path / name], env=env, check=True)
        made.append([(file.name, file.read_bytes()) for file in sorted((tmp_path / name).iterdir())])
    assert made[0] == made[1] == made[2] and len(made[0]) == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"vocab_size": 256}, ConfigError, r"^vocab_size: 256: expected 257 \(256 bytes and 1 special tokens\)"),
        ({"special_tokens": [" "]}, ConfigError, "^special_tokens: one is empty"),
        ({"read": ReadConfig(ids_key="ids")}, ConfigError, r"^read\.ids_key: a tokenizer is trained on text"),
        ({"read": ReadConfig(text_key="other")}, DataError, "b.jsonl: no record has the key 'other'"),
    ],
)
def test_options_that_cannot_work_are_refused(corpus, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        train_tokenizer([corpus], tmp_path / "t", **{"vocab_size": 300, **options})
    assert not (tmp_path / "t").exists()


def test_a_corpus_of_nothing_and_a_folder_in_use_are_refused(corpus, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n\n")
    with pytest.raises(DataError, match=r"empty\.txt: no document is left after cleaning"):
        train_tokenizer([tmp_path / "empty.txt"], tmp_path / "t", vocab_size=300)
    with pytest.raises(ConfigError, match="corpus: is there already; give a new folder"):
        train_tokenizer([corpus], corpus, vocab_size=300)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_ends_with_a_signal_and_leaves_nothing(tmp_path, number):
    chance = random.Random(2)
    words = ["".join(chance.choices("abcdefghijklmnopqrst", k=8)) for _ in range(300_000)]
    lines = (" ".join(words[start : start + 20]) for start in range(0, len(words), 20))
    (tmp_path / "a.txt").write_text("\n".join(lines))
    code = f"""
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored
from mindspeed_ms.cli.interrupt import catch_terminate
from mindspeed_ms.data.train_tokenizer import train_tokenizer
catch_terminate()
tell = lambda phase, done, total, unit: print("read" if done == total else "", flush=True)
train_tokenizer([{str(tmp_path / "a.txt")!r}], {str(tmp_path / "t")!r}, vocab_size=200_000, progress=tell)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.stdout.readline() != b"read\n":
            pass
        process.send_signal(number)
        begin = time.monotonic()
        _, error = process.communicate(timeout=60)
    assert time.monotonic() - begin < 20 and process.returncode in (1, -signal.SIGINT, 130)
    assert error.strip().splitlines()[-1].endswith((b"KeyboardInterrupt", b"Terminated"))
    assert not (tmp_path / "t").exists()
