"""What is in a prepared set: lengths, buckets, padding, sources, what cleaning did, and some of its rows as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mindspeed_ms.data.manifest import Bucket, LengthBin, Manifest, Source, read_manifest
from mindspeed_ms.data.samples import Sample, draw_samples


@dataclass(frozen=True)
class BucketSummary:
    """A bucket: its rows' length, and what is in them."""

    length: int
    rows: int
    documents: int  # pieces, where documents were split
    tokens: int  # without padding
    padding_share: float  # of this bucket's places
    tokens_share: float  # of the set's tokens


@dataclass(frozen=True)
class SourceSummary:
    """What came of one input."""

    name: str
    documents: int
    tokens: int
    bytes: int  # of text, as read
    tokens_share: float


@dataclass(frozen=True)
class Inspection:
    """All that `data inspect` says; plain values, so that `dataclasses.asdict` of it is JSON."""

    path: str
    made_by: str
    mode: str
    documents: int
    rows: int
    tokens: int
    padding_share: float
    padding_to_longest: float  # if each document had a row to itself, all as long as the longest
    verified: bool  # whether the SHA-256 of every file was compared
    buckets: list[BucketSummary]
    sources: list[SourceSummary]
    lengths: list[tuple[int, int, int]]  # longest length in the bin, documents, tokens
    cleaning: dict[str, int]
    samples: list[Sample] = field(default_factory=list)


def inspect_set(
    folder: str | Path,
    samples: int = 3,
    seed: int = 0,
    verify: bool = False,
    tokenizer: str | Path | None = None,
) -> Inspection:
    """Describe a set, with `samples` of its rows, drawn by `seed`, decoded.

    verify: compare the SHA-256 of every file with the manifest's. tokenizer: one that has to be the set's own.
    Raises DataError when the set is damaged or made with another tokenizer, TokenizerError.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if tokenizer is not None:
        from mindspeed_ms.data.tokenizer import check_tokenizer

        check_tokenizer(tokenizer, manifest.tokenizer.file.sha256, folder)
    if verify:
        from mindspeed_ms.data.blocks import verify_set

        verify_set(folder)
    return summarise(folder, manifest, draw_samples(folder, manifest, samples, seed), verified=verify)


def summarise(
    folder: str | Path, manifest: Manifest, samples: list[Sample] | None = None, verified: bool = False
) -> Inspection:
    """What the manifest alone says of a set."""
    return Inspection(
        path=str(folder),
        made_by=manifest.made_by,
        mode=manifest.config.arrange.mode,
        documents=manifest.documents,
        rows=manifest.rows,
        tokens=manifest.tokens,
        padding_share=manifest.padding_share,
        padding_to_longest=padding_to_longest(manifest),
        verified=verified,
        buckets=[_summary(bucket, manifest.tokens) for bucket in manifest.buckets],
        sources=[_source(source, manifest) for source in manifest.sources],
        lengths=[(b.upto, b.documents, b.tokens) for b in manifest.lengths],
        cleaning=dict(manifest.cleaning),
        samples=samples or [],
    )


def padding_to_longest(manifest: Manifest) -> float:
    """The share of padding if each document had a row to itself and all rows were as long as the longest document.

    No row is longer than the set's longest: what is done with longer documents is done here too, by the mean of their
    bin of the histogram.
    """
    arrange = manifest.config.arrange
    limit = max((bucket.length for bucket in manifest.buckets), default=0)
    overlong = "split" if arrange.mode == "stream" else arrange.overlong
    bins = [b for b in manifest.lengths if b.documents and (overlong != "drop" or b.upto <= limit)]
    longest = min(limit, max((b.upto for b in bins), default=0))
    rows = tokens = 0
    for b in bins:
        cut = b.upto > longest
        rows += b.documents * (_pieces(b, longest) if cut and overlong == "split" else 1)
        tokens += b.documents * longest if cut and overlong == "truncate" else b.tokens
    return _share(rows * longest - tokens, rows * longest)


def _summary(bucket: Bucket, all_tokens: int) -> BucketSummary:
    places = bucket.rows * bucket.length
    return BucketSummary(
        length=bucket.length,
        rows=bucket.rows,
        documents=bucket.documents,
        tokens=bucket.tokens,
        padding_share=_share(places - bucket.tokens, places),
        tokens_share=_share(bucket.tokens, all_tokens),
    )


def _source(source: Source, manifest: Manifest) -> SourceSummary:
    share = _share(source.tokens, sum(other.tokens for other in manifest.sources))
    return SourceSummary(source.name, source.documents, source.tokens, source.bytes, share)


def _pieces(b: LengthBin, longest: int) -> int:
    return -(-b.tokens // (b.documents * longest))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
