"""Which documents are kept and what is taken out of them; every rule is counted.

The rules, in the order in which they are applied, and their names in the manifest's `cleaning`:

- `documents_read`: all records, whatever became of them.
- `bad_json`: dropped; a line that is no JSON object.
- `no_text`: dropped; an object that lacks the key, or has no text (or no token ids) under it.
- `no_conversation`: dropped; an object without the key, or without a list of {role, content} under it.
- `invalid_utf8`: bytes that are no UTF-8, or half a surrogate pair in JSON. By `invalid_utf8` the document is dropped,
  kept with U+FFFD in place of each bad sequence, or an error. Counted in either case.
- `nul_bytes_removed`: documents that lost NUL characters.
- `control_characters_removed`: documents that lost others of C0 but tab, line feed and carriage return, DEL, or C1.
- `empty`: dropped; nothing but white space is left, or no token came of it.
- `too_short`, `too_long`: dropped; fewer than `min_chars` or more than `max_chars` characters, white space at the ends
  not counted. Records that are too long to be read at all count as too long.
- `refused_by_template`: dropped where `bad_conversations` says so, else an error; a conversation that the chat template
  does not take, or does not write in such a way that its answers can be found.
- `no_answer`: dropped; a conversation in which the assistant says nothing, so that there is nothing to learn.

Nothing else is changed: no Unicode normalization, no stripping, no case folding.
"""

from __future__ import annotations

import re

from mindspeed_ms.config.data import CleanConfig
from mindspeed_ms.errors import DataError

COUNTS = (
    "documents_read",
    "bad_json",
    "no_text",
    "no_conversation",
    "invalid_utf8",
    "nul_bytes_removed",
    "control_characters_removed",
    "empty",
    "too_short",
    "too_long",
    "refused_by_template",
    "no_answer",
)
_KEPT = b"\t\n\r"
_CONTROLS = bytes(c for c in (*range(1, 0x20), 0x7F) if c not in _KEPT)
_C1 = re.compile(rb"\xc2[\x80-\x9f]")  # U+0080 to U+009F in UTF-8
_SURROGATES = re.compile("[\ud800-\udfff]")


class Cleaner:
    """Applies the rules to one document at a time; `counts` holds what they did since the last `take_counts`."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config
        self.counts = dict.fromkeys(COUNTS, 0)

    def take_counts(self) -> dict[str, int]:
        """The counts so far, all rules included; they start again from 0."""
        counts, self.counts = self.counts, dict.fromkeys(COUNTS, 0)
        return counts

    def decode(self, record: bytes, file: str, number: int) -> str | None:
        """The text of a record, None when it is dropped; `number` counts from 1. Raises DataError if asked to."""
        try:
            return record.decode()
        except UnicodeDecodeError as error:
            return record.decode("utf-8", "replace") if self._repair(f"byte {error.start}", file, number) else None

    def encode(self, text: str, file: str, number: int) -> bytes | None:
        """The UTF-8 bytes of a string out of JSON, None when its document is dropped. Raises DataError if asked to."""
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            if not self._repair(f"half a surrogate pair at character {error.start}", file, number):
                return None
            return _SURROGATES.sub("\ufffd", text).encode()

    def strip(self, text: bytes) -> tuple[bytes, bool, bool]:
        """UTF-8 text without NUL and control characters, and whether it had NULs, and others."""
        nul = b"\0" in text
        if nul:
            text = text.replace(b"\0", b"")
        plain = text.translate(None, _CONTROLS)  # many times as fast as an expression that looks at each character
        if not plain.isascii():
            plain = _C1.sub(b"", plain)
        return plain, nul, len(plain) != len(text)

    def size_fits(self, characters: int) -> bool:
        """Whether a document of so many characters is kept; counts it where it is not."""
        config = self._config
        rule = (
            "empty"
            if not characters
            else "too_short"
            if characters < config.min_chars
            else "too_long"
            if characters > config.max_chars
            else ""
        )
        if rule:
            self.counts[rule] += 1
        return not rule

    def clean(self, record: bytes, file: str, number: int) -> tuple[str, bytes] | None:
        """A document's text and its UTF-8 bytes, or None when it is dropped. Raises DataError if asked to."""
        text = self.decode(record, file, number)
        if text is None:
            return None
        data = text.encode() if "\ufffd" in text else record  # else nothing was repaired
        cleaned, nul, control = self.strip(data)
        if nul or control:
            self.counts["nul_bytes_removed"] += nul
            self.counts["control_characters_removed"] += control
            text = cleaned.decode()
        return (text, cleaned) if self.size_fits(len(text.strip())) else None

    def _repair(self, what: str, file: str, number: int) -> bool:
        """Counts a document that is no valid Unicode; whether to repair it. Raises DataError if asked to."""
        if self._config.invalid_utf8 == "error":
            raise DataError(
                f"{file}: record {number}: {what} is not UTF-8; repair the file, name its encoding, "
                "or set clean.invalid_utf8 to drop or replace"
            )
        self.counts["invalid_utf8"] += 1
        return self._config.invalid_utf8 == "replace"


def read_limit(config: CleanConfig) -> int:
    """Bytes of the longest record that may be of use: `max_chars`, and what stands around them.

    A character has four bytes at most, and JSON may escape it in twelve.
    """
    return config.max_chars * 12 + 65536
