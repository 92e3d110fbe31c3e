"""How the data commands show a set."""

import dataclasses
import sys
from typing import TYPE_CHECKING

from mindspeed_ms.cli.output import report, table

if TYPE_CHECKING:
    from mindspeed_ms.data.convert import Conversion
    from mindspeed_ms.data.inspect import Inspection
    from mindspeed_ms.data.samples import SampleDocument

_MOST_SOURCES = 20
_MOST_DOCUMENTS = 8
_MOST_CHARS = 400


def show_summary(found: "Inspection", as_json: bool) -> None:
    """The whole as a line of JSON; or, for people, totals, buckets and what cleaning did. Buckets count pieces."""
    if as_json:
        report(dataclasses.asdict(found), as_json)
        return
    report(
        {
            "set": found.path,
            "mode": found.mode,
            "documents": f"{found.documents:,}",
            "tokens": f"{found.tokens:,}",
            "rows": f"{found.rows:,}",
            "padding": f"{found.padding_share:.2%}",
            "padded_to_the_longest": f"{found.padding_to_longest:.2%}",
            **({"SHA-256": "all files are as the manifest says"} if found.verified else {}),
        },
        as_json,
    )
    print()
    table(
        [
            {
                "length": bucket.length,
                "rows": bucket.rows,
                "pieces": bucket.documents,
                "tokens": bucket.tokens,
                "padding_%": round(100 * bucket.padding_share, 2),
                "of_all_tokens_%": round(100 * bucket.tokens_share, 2),
            }
            for bucket in found.buckets
        ],
        as_json,
    )
    counted = sorted(((count, rule) for rule, count in found.cleaning.items() if count), reverse=True)
    if counted:
        print("\ncleaning")
        table([{"rule": rule.replace("_", " "), "count": count} for count, rule in counted], as_json)


def show_lengths(found: "Inspection") -> None:
    """A histogram of the documents' lengths."""
    from mindspeed_ms.data.plots import text_histogram

    mark = "█" if (sys.stdout.encoding or "").lower().startswith("utf") else "#"
    print("\ndocuments by length in tokens")
    print("\n".join(text_histogram(found, mark=mark)))


def show_sources(found: "Inspection") -> None:
    """The sources of most tokens."""
    ordered = sorted(found.sources, key=lambda source: source.tokens, reverse=True)
    print("\ntokens by source")
    table(
        [
            {
                "source": _printable(source.name),
                "documents": source.documents,
                "tokens": source.tokens,
                "of_all_tokens_%": round(100 * source.tokens_share, 2),
                "bytes": source.bytes,
            }
            for source in ordered[:_MOST_SOURCES]
        ],
        as_json=False,
    )
    if len(ordered) > _MOST_SOURCES:
        print(f"and {len(ordered) - _MOST_SOURCES} more, which --json lists")


def show_samples(found: "Inspection") -> None:
    """Rows as text, a line a document; answers of conversations stand between « and »."""
    for sample in found.samples:
        count = len(sample.documents)
        documents = "1 document" if count == 1 else f"{count} documents"
        print(f"\nrow {sample.row} of length {sample.length}: {documents}, {sample.tokens} tokens")
        for document in sample.documents[:_MOST_DOCUMENTS]:
            print(f"{document.tokens:>8}  {_line(document)}")
        if count > _MOST_DOCUMENTS:
            print(f"{'':>8}  and {count - _MOST_DOCUMENTS} more")
    if any(part.answer for sample in found.samples for document in sample.documents for part in document.parts):
        print("\nAnswers, which are learnt, stand between « and ».")


def _line(document: "SampleDocument") -> str:
    """A document on one line: what a terminal would obey is escaped, of long parts the middle is left out."""
    most = max(_MOST_CHARS // len(document.parts), 40) if document.parts else _MOST_CHARS
    pieces = []
    for part in document.parts:
        text = _printable(part.text)
        text = text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"
        pieces.append(f"«{text}»" if part.answer else text)
    return "".join(pieces)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def show_conversion(done: "Conversion", as_json: bool) -> None:
    """What was made, and what of the source is not in it."""
    values: dict[str, object] = {done.made: str(done.out), "documents": done.documents, "tokens": done.tokens}
    if as_json or done.split:
        values["more_by_splitting"] = done.split
    if as_json or done.answers_lost:
        values["answers_lost"] = done.answers_lost
    report(values, as_json)
    if as_json:
        return
    if done.split:
        print(f"\n{done.split} documents more than there were: those longer than a row were split, and stay so.")
    if done.answers_lost:
        print("\nWhich tokens belong to answers is not in it: the format has no place for that.")
