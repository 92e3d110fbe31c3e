"""Writes tests/weights/data/tokens.json.gz: a small vocabulary, mixed lines, and the ids that llama.cpp gives them.

    python tests/peers/make_token_golden.py SmolLM2-135M-Instruct.Q4_1.gguf

needs llama-cpp-python. The vocabulary is the head of SmolLM2's (Apache-2.0): its 17 control tokens, the bytes and the
first merges. The same pieces, scored by rank, make a SentencePiece vocabulary.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path

import gguf

sys.path.insert(0, str(Path(__file__).parent))
from token_lines import lines

MERGES = 1500
RULES = ("smollm", "gpt-2", "llama-bpe", "qwen2", "default")
OUT = Path(__file__).parents[1] / "weights" / "data" / "tokens.json.gz"


def small_vocabulary(path):
    """(tokens, types, merges) of the head of a GGUF file's vocabulary."""
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = fields["tokenizer.ggml.merges"].contents()[:MERGES]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    letters = [token for token, kind in zip(tokens, types, strict=True) if kind == 1 and len(token) == 1]
    joined = list(dict.fromkeys(merge.replace(" ", "") for merge in merges))
    return special + letters + joined, [3] * len(special) + [1] * (len(letters) + len(joined)), merges


def sentencepiece(tokens):
    """(tokens, types, scores): the plain ASCII pieces of a byte-level vocabulary behind the control and byte tokens."""
    pieces = [token.replace("Ġ", "▁") for token in tokens[17:]]
    pieces = list(dict.fromkeys(p for p in pieces if p.replace("▁", "").isascii()))
    head = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces))]
    return head + pieces, [2, 3, 3] + [6] * 256 + [1] * len(pieces), scores


def write(path, tokens, types, *, rule="default", merges=None, scores=None):
    """A GGUF file with a vocabulary and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(512)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_tokenizer_model("gpt2" if scores is None else "llama")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores is None:
        writer.add_token_merges(merges)
    else:
        writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def llama_ids(path, texts, special):
    """Ids as llama.cpp gives them, special tokens in the text read as such or as plain text."""
    from llama_cpp import Llama

    model = Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=False, special=special) for text in texts]


def main(source):
    tokens, types, merges = small_vocabulary(source)
    texts = lines(500)
    golden = {"tokens": tokens, "types": types, "merges": merges, "lines": texts, "ids": {}}
    golden["spm"] = dict(zip(("tokens", "types", "scores"), sentencepiece(tokens), strict=True))
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "vocabulary.gguf"
        for rule in RULES:
            write(path, tokens, types, rule=rule, merges=merges)
            golden["ids"][rule] = llama_ids(path, texts, special=False)
        golden["special_ids"] = llama_ids(path, texts, special=True)  # of the last rule
        write(path, **golden["spm"])
        golden["ids"]["spm"] = llama_ids(path, texts, special=False)
    raw = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).encode()
    OUT.write_bytes(gzip.compress(raw, 9, mtime=0))
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main(sys.argv[1])
