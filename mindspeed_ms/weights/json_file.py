"""Small JSON files of a model directory, read with a size limit."""

import json
from pathlib import Path
from typing import Any

from mindspeed_ms.errors import MindSpeedError, WeightsError
from mindspeed_ms.paths import read_regular

MAX_BYTES = 64 << 20


def read_bytes(path: Path, error: type[MindSpeedError] = WeightsError, limit: int = MAX_BYTES) -> bytes:
    """The whole file; raises `error` when it is absent, unreadable, no plain file or longer than `limit` bytes."""
    try:
        return read_regular(path, limit)
    except FileNotFoundError:
        raise error(f"{path}: no such file; a download may be incomplete") from None
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})") from None


def read_json(path: Path, error: type[MindSpeedError] = WeightsError) -> dict[str, Any]:
    """The object in the file; raises `error` when it is no JSON object."""
    try:
        content = json.loads(read_bytes(path, error).decode("utf-8"))
    except json.JSONDecodeError as problem:
        raise error(f"{path}: is not valid JSON (line {problem.lineno}: {problem.msg})") from None
    except (ValueError, RecursionError):
        raise error(f"{path}: is not valid JSON (not UTF-8, or nested too deep)") from None
    if not isinstance(content, dict):
        raise error(f"{path}: holds a {type(content).__name__}, expected a JSON object")
    return content


def read_json_if_there(path: Path, error: type[MindSpeedError] = WeightsError) -> dict[str, Any]:
    """The object in the file, or an empty one when there is no such file."""
    return read_json(path, error) if path.exists() else {}
