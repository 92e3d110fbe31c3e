"""Token ids equal llama.cpp's on 10,000 mixed lines: SmolLM2's own vocabulary, and it under every other split rule."""

import gguf
import pytest
from tokenizers import Tokenizer

from mindspeed_ms.weights.gguf_header import read_header
from mindspeed_ms.weights.gguf_tokenizer import read_tokenizer
from mindspeed_ms.weights.safetensors_file import map_file

pytest.importorskip("llama_cpp")
pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.mark.parametrize("rule", ["own", "gpt-2", "llama-bpe", "qwen2", "default", "spm"])
def test_ids_equal_llama_cpps(smollm2, tmp_path, rule):
    from make_token_golden import llama_ids, sentencepiece, write
    from token_lines import lines

    path, texts = smollm2, lines(10_000)
    if rule != "own":
        path = tmp_path / "vocabulary.gguf"
        given = {name: field.contents() for name, field in gguf.GGUFReader(smollm2).fields.items() if "ggml" in name}
        tokens, types = given["tokenizer.ggml.tokens"], given["tokenizer.ggml.token_type"]
        if rule == "spm":
            tokens, types, scores = sentencepiece(tokens)
            write(path, tokens, types, scores=scores)
        else:
            write(path, tokens, types, rule=rule, merges=given["tokenizer.ggml.merges"])
    files = read_tokenizer(read_header(map_file(path), "x").metadata, "x")
    for special in (False, True):
        tokenizer = Tokenizer.from_buffer(files.tokenizer_json)
        tokenizer.encode_special_tokens = not special
        found = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        wrong = [t for t, ids, right in zip(texts, found, llama_ids(path, texts, special), strict=True) if ids != right]
        assert not wrong, f"{len(wrong)} of {len(texts)} lines differ, first {wrong[0]!r}"
