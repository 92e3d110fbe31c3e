"""One column of a parquet or arrow file as records: text, conversations as JSON, or token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mindspeed_ms.config.data import ReadConfig
from mindspeed_ms.data.readers import Rows
from mindspeed_ms.data.sources import Damaged, SourceFile
from mindspeed_ms.errors import ConfigError, DataError

_SLICE_BYTES = 1 << 20  # of a column that are converted at a time
_SLICE_ROWS = 1024
_FEWEST_ROWS = 16


def read_rows(source: SourceFile, read: ReadConfig, start: int) -> Iterator[Rows]:
    """The rows from the row group or record batch of row `start` on.

    Null is an empty document. Raises Damaged, DataError when the column is absent or of another type, ConfigError
    without pyarrow.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        hint = "run pip install 'mindspeed-ms[data]'"
        raise ConfigError(f"{source.original}: reading .{source.kind} needs pyarrow; {hint}") from None
    name = read.messages_key or read.ids_key or read.text_key
    columns = _parquet(source, name, start) if source.kind == "parquet" else _arrow(source, name, start)
    convert: Callable[[Any], list] = _texts
    if read.messages_key:
        convert = _conversations(name, source)
    elif read.ids_key:
        convert = _ids
    while (item := _guarded(source, None, next, columns, None)) is not None:
        first, column, before, after = item
        column = _guarded(source, first, _checked, column, name, read, source)
        for begin, end in _slices(column):
            records = _guarded(source, first + begin, convert, column.slice(begin, end - begin))
            consumed = before + (after - before) * np.arange(begin, end + 1, dtype=np.int64) // len(column)
            yield Rows(first + begin, records, consumed)


def _parquet(source: SourceFile, name: str, start: int) -> Iterator[tuple[int, Any, int, int]]:
    """First row, array, and the bytes of the file before and after it."""
    from pyarrow import parquet

    with parquet.ParquetFile(source.path, buffer_size=_SLICE_BYTES, page_checksum_verification=True) as file:
        _check_names(file.schema_arrow.names, name, source)
        row, total = 0, file.metadata.num_rows
        for group in range(file.num_row_groups):
            meta = file.metadata.row_group(group)
            if row + meta.num_rows <= start:
                row += meta.num_rows
                continue
            # The size of this column alone would be better, but asking a damaged file for it aborts the process.
            rows = _rows_of(meta.total_byte_size, meta.num_rows)
            for batch in file.iter_batches(rows, row_groups=[group], columns=[name], use_threads=False):
                end = row + batch.num_rows
                yield row, batch.column(0), source.size * row // total, source.size * end // total
                row = end


def _arrow(source: SourceFile, name: str, start: int) -> Iterator[tuple[int, Any, int, int]]:
    """The same; the IPC stream format, which `datasets` writes, or the file format."""
    import pyarrow

    with pyarrow.OSFile(str(source.path)) as data:  # a map of it would end the process if the file is cut meanwhile
        if source.size >= 6 and data.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(data)
            batches = map(reader.get_batch, range(reader.num_record_batches))
            parts = reader.num_record_batches
        else:
            data.seek(0)
            reader = pyarrow.ipc.open_stream(data)
            batches, parts = iter(reader), 0
        _check_names(reader.schema.names, name, source)
        row, before = 0, 0
        for number, batch in enumerate(batches, 1):
            after = source.size * number // parts if parts else data.tell()
            if row + batch.num_rows > start:
                yield row, batch.column(name), before, after
            row, before = row + batch.num_rows, after


def _guarded(source: SourceFile, row: int | None, function: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the library's, with what it says of a damaged file in our words."""
    import pyarrow

    try:
        return function(*arguments)
    # Names that a flipped byte has spoilt surface as the last three.
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, IndexError) as error:
        where = "" if row is None else f" from row {row + 1} on"
        text = " ".join(str(error).split())
        raise Damaged(f"{source.path}: damaged or no {source.kind} file{where} ({text}); copy it again") from None


def _check_names(names: list[str], name: str, source: SourceFile) -> None:
    if names.count(name) != 1:
        state = "twice" if name in names else "no"
        raise DataError(
            f"{source.path}: has {state} column {name!r}; its columns are {', '.join(names)}: name one of them by "
            "--text-key, --messages-key or --ids-key"
        )


def _check_type(kind: Any, name: str, read: ReadConfig, source: SourceFile) -> None:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if read.messages_key:
        fits, expected = lists and types.is_struct(kind.value_type), "a list of {role, content}"
    elif read.ids_key:
        fits, expected = lists and types.is_integer(kind.value_type), "a list of integers"
    else:
        text = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
        fits, expected = any(test(kind) for test in text), "text"
    if not fits and not types.is_null(kind):
        raise DataError(f"{source.path}: column {name!r} holds {kind}, expected {expected}; name another column")


def _checked(column: Any, name: str, read: ReadConfig, source: SourceFile) -> Any:
    """The array, of text as bytes, once its offsets are known to lie in its buffers: nobody vouches for the file."""
    import pyarrow
    from pyarrow import types

    _check_type(column.type, name, read, source)
    if types.is_string(column.type):
        column = column.view(pyarrow.binary())  # whether it is UTF-8 is the cleaner's business
    elif types.is_large_string(column.type):
        column = column.view(pyarrow.large_binary())
    elif types.is_string_view(column.type):
        column = column.view(pyarrow.binary_view())
    column.validate(full=True)
    return column


def _rows_of(size: int, rows: int) -> int:
    return max(_FEWEST_ROWS, min(_SLICE_ROWS, _SLICE_BYTES * rows // max(1, size)))


def _slices(column: Any) -> Iterator[tuple[int, int]]:
    step = _rows_of(column.nbytes, len(column))
    for begin in range(0, len(column), step):
        yield begin, min(begin + step, len(column))


def _texts(column: Any) -> list[bytes]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pyarrow.large_binary()).fill_null(b"").to_pylist()


def _conversations(name: str, source: SourceFile) -> Callable[[Any], list[bytes]]:
    def refuse(value: Any) -> None:
        raise DataError(f"{source.path}: column {name!r} holds {type(value).__name__}, expected text; convert it")

    def convert(column: Any) -> list[bytes]:
        return [
            # A table has every field in every message; those that are null are none.
            json.dumps(
                {name: [{key: item for key, item in (m or {}).items() if item is not None} for m in value or []]},
                ensure_ascii=False,
                default=refuse,
            ).encode()
            for value in column.to_pylist()
        ]

    return convert


def _ids(column: Any) -> list[np.ndarray]:
    """int64 arrays; a null among the ids is -1, which the tokenizer's vocabulary refuses."""
    import pyarrow

    if pyarrow.types.is_null(column.type):
        return [np.zeros(0, np.int64)] * len(column)
    column = column.cast(pyarrow.large_list(pyarrow.int64()))
    flat = column.flatten().fill_null(-1).to_numpy(zero_copy_only=False)
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.split(flat, np.cumsum(lengths)[:-1])
