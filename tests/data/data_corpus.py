"""Small corpora and tokenizers for the tests."""

import json
import random
import string
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.manifest import read_manifest

WORDS = "the sea was calm and a small boat went out with three men who spoke of fish and weather".split()


def sentences(count, seed=0, longest=40):
    """Different texts of 1 to `longest` words, many of them short."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        words = [rng.choice(WORDS) for _ in range(min(longest, 1 + int(rng.expovariate(1 / 8))))]
        made.append(" ".join([*words, str(number)]))
    return made


def small(**arrange):
    """A configuration of short rows and many segments."""
    return PrepareConfig.parse({"arrange": {"max_length": 64, **arrange}, "shard_tokens": 4096})


def write_tokenizer(path: Path) -> Path:
    """A byte-level BPE tokenizer.json with </s> (id 0) and <s> (id 1)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["</s>", "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(500), trainer)
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return path


CHATML = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def write_chat_model(folder: Path) -> Path:
    """A Hugging Face folder with a tokenizer and a chat template, no weights."""
    write_tokenizer(folder / "tokenizer.json")
    settings = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False, "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def pieces_of(out: Path) -> list[tuple[int, ...]]:
    """The documents of a set, or the parts of those that were split, as ids: by its blocks and manifest alone."""
    manifest, found = read_manifest(out), []
    for bucket in manifest.buckets:
        for shard in bucket.shards:
            flat = np.fromfile(out / shard.block.path, dtype="<i4")
            ids = flat[: shard.rows * bucket.length].reshape(shard.rows, bucket.length)
            ends = flat[ids.size :][: shard.rows * bucket.ends].reshape(shard.rows, bucket.ends)
            for row, stops in zip(ids.tolist(), ends.tolist(), strict=True):
                found += [tuple(row[a:b]) for a, b in zip([0, *stops], stops, strict=False) if b > a]
    return found


def noise(count, seed=0):
    """Random letters, which hardly compress."""
    rng = random.Random(seed)
    return "".join(rng.choices(string.ascii_letters, k=count))
