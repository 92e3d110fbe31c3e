"""Where this package writes on a user's behalf when no path is given."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The user's cache folder, not created: MINDSPEED_MS_CACHE, else mindspeed-ms under XDG_CACHE_HOME or ~/.cache."""
    chosen = os.environ.get("MINDSPEED_MS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mindspeed-ms"
