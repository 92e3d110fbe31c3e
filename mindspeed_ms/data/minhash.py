"""MinHash signatures for near duplicates (Broder, 1997), by datasketch.

A document is the set of its shingles: five consecutive words, in lower case, without punctuation. A character of a
script that puts no spaces between words (Chinese, Japanese, Thai, Lao, Burmese, Khmer) counts as a word. A text of
fewer than five words is one shingle. The share of equal entries in two signatures estimates the Jaccard similarity.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import xxhash

from mindspeed_ms.errors import ConfigError

PERMUTATIONS = 128
SHINGLE = 5
_SEED = 1
_AT_ONCE = 4096  # shingles; each takes a kilobyte or two on its way
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")


def require() -> None:
    """Raises ConfigError when datasketch is not installed."""
    try:
        import datasketch  # noqa: F401
    except ImportError:
        raise ConfigError(
            "clean.near_duplicates needs datasketch, which is not installed; run pip install 'mindspeed-ms[data]'"
        ) from None


def bands(threshold: float) -> tuple[int, int]:
    """Number of bands and rows in each that find pairs of this similarity best, weighing both kinds of error alike."""
    require()
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
    return int(index.b), int(index.r)


def signature(text: str) -> np.ndarray:
    """uint32 [128]: the signature of a text. Raises ConfigError when datasketch is not installed."""
    found: np.ndarray = signatures([text])[0]
    return found


def signatures(texts: Sequence[str]) -> np.ndarray:
    """uint32 [texts, 128]: the signature of each text. Raises ConfigError when datasketch is not installed."""
    out = np.empty((len(texts), PERMUTATIONS), np.uint32)
    blank = _blank()
    for row, text in zip(out, texts, strict=True):
        minhash = blank.copy()
        parts = shingles(text)
        for start in range(0, len(parts), _AT_ONCE):
            minhash.update_batch(parts[start : start + _AT_ONCE])
        row[:] = minhash.hashvalues
    return out


def shingles(text: str) -> list[bytes]:
    """The shingles of a text, each once, in UTF-8; at least one."""
    words = _WORDS.findall(text.lower())
    if not words:
        return [text.strip().encode()]
    count = max(1, len(words) - SHINGLE + 1)
    return list(dict.fromkeys(" ".join(words[i : i + SHINGLE]).encode() for i in range(count)))


@lru_cache(maxsize=1)
def _blank() -> Any:
    """The signature of nothing, with the permutations that all the others share."""
    require()
    from datasketch import MinHash

    return MinHash(num_perm=PERMUTATIONS, seed=_SEED, hashfunc=xxhash.xxh32_intdigest)
