"""Where this package writes on a user's behalf when no path is given."""

import os
from pathlib import Path

from mindspeed_ms.errors import ConfigError


def cache_dir() -> Path:
    """The user's cache folder, not created: MINDSPEED_MS_CACHE, else mindspeed-ms under XDG_CACHE_HOME or ~/.cache.

    Raises ConfigError when that is in a home directory and there is none.
    """
    chosen = os.environ.get("MINDSPEED_MS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (Path(base) if base else Path.home() / ".cache") / "mindspeed-ms"
    except RuntimeError:  # no such user, or a user without a home
        raise ConfigError(
            f"MINDSPEED_MS_CACHE={chosen or ''}: there is no home directory to put it in; set it to a folder's path"
        ) from None
