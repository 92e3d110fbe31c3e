"""Logging: of ours only warnings are shown until more is asked for; MindSpore's go to a file in the cache."""

import atexit
import importlib.abc
import logging
import os
import sys
from pathlib import Path

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.paths import cache_dir

_ROOT = logging.getLogger("mindspeed_ms")
_KEPT_LOGS = 20
# MindSpore's C++ modules print to stderr even when told to log to a file; each repeats what its Python exception says.
_CPP_MODULES = (
    "CORE ANALYZER COMMON DEBUG OFFLINE_DEBUG DEVICE GE_ADPT IR KERNEL MD ME EXPRESS OPTIMIZER PARALLEL PARSER "
    "PIPELINE PRE_ACT PYNATIVE SESSION UTILS VM PROFILER PS PI FL DISTRIBUTED LITE ARMOUR HCCL_ADPT RUNTIME_FRAMEWORK "
    "GE API SYMBOLIC_SHAPE GRAPH_KERNEL TRACE INTERNAL_KERNEL EXTENSION HYPER_OFFLOAD"
).split()


def get_logger(name: str) -> logging.Logger:
    """The logger of one of our modules; `MINDSPEED_MS_LOG=debug|info|warning|error` says what reaches stderr."""
    return logging.getLogger(name if name.startswith("mindspeed_ms") else f"mindspeed_ms.{name}")


def mindspore_log_dir() -> Path:
    """The folder that receives MindSpore's own log files."""
    return cache_dir() / "log"


def quiet_mindspore() -> None:
    """Send MindSpore's warnings to a file from its import on, unless the user has set GLOG_* or MS_SUBMODULE_LOG_v."""
    if "mindspore" not in sys.modules and not any(isinstance(finder, _BeforeMindSpore) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeMindSpore())


class _BeforeMindSpore(importlib.abc.MetaPathFinder):
    """Finds nothing: it notices the first `import mindspore`, so that a process without MindSpore writes nothing."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]
        if fullname == "mindspore":
            sys.meta_path.remove(self)
            _set_environment()
        return None


def _set_environment() -> None:
    if "MS_SUBMODULE_LOG_v" in os.environ or any(key.startswith("GLOG_") for key in os.environ):
        return
    try:
        folder = mindspore_log_dir()
        # MindSpore would make the folder too, but changes the umask of the process to do so.
        (folder / "rank_0" / "logs").mkdir(parents=True, exist_ok=True)
        usable = os.access(folder / "rank_0" / "logs", os.W_OK | os.X_OK)
    except (OSError, ConfigError):
        usable = False
    if not usable:
        os.environ["GLOG_v"] = "4"
        return
    os.environ["GLOG_logtostderr"] = "0"
    os.environ["GLOG_log_dir"] = str(folder)
    os.environ["GLOG_stderrthreshold"] = "4"
    os.environ["MS_SUBMODULE_LOG_v"] = "{" + ",".join(f"{name}:4" for name in _CPP_MODULES) + "}"
    # Else a graph that fails to compile leaves a rank_0 folder where the user stands.
    os.environ.setdefault("MS_OM_PATH", str(folder))
    atexit.register(_keep_newest, folder)


def _keep_newest(folder: Path) -> None:
    """Each process has its own log file, so the old ones have to go."""
    try:
        logs = sorted(folder.glob("rank_*/logs/*.log.*"), key=lambda path: path.lstat().st_mtime)
        for path in logs[:-_KEPT_LOGS]:
            path.unlink(missing_ok=True)
    except OSError:
        pass  # another process may tidy at the same time


def _configure() -> None:
    """Nothing, unless asked: Python itself shows warnings where an application has set up no logging of its own."""
    level = os.environ.get("MINDSPEED_MS_LOG", "").upper()
    if level in ("DEBUG", "INFO", "WARNING", "ERROR") and not _ROOT.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _ROOT.addHandler(handler)
        _ROOT.setLevel(level)
        _ROOT.propagate = False


_configure()
