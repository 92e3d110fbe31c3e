"""What reaches the screen: our warnings, and of MindSpore's nothing unless its own settings say so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = """
from mindspeed_ms.log import get_logger
log = get_logger("test")
log.info("a detail")
log.warning("a warning")
log.error("an error")
"""
THEIRS = """
import os
import mindspeed_ms
umask = os.umask(0o22)
import mindspore as ms
from mindspore import log
ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
log.warning("theirs")
assert os.umask(0) == 0o22, "MindSpore changed it"
"""


def run(code, folder, **environment):
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("GLOG_", "MS_", "MINDSPEED_"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "MINDSPEED_MS_CACHE": str(folder / "cache"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (None, "a warning\nan error\n"),
        ("error", "ERROR mindspeed_ms.test: an error\n"),
        (
            "info",
            "INFO mindspeed_ms.test: a detail\n"
            "WARNING mindspeed_ms.test: a warning\n"
            "ERROR mindspeed_ms.test: an error\n",
        ),
    ],
)
def test_a_setting_says_which_of_our_records_are_shown(level, shown, tmp_path):
    assert run(OURS, tmp_path, **({"MINDSPEED_MS_LOG": level} if level else {})) == shown


def test_an_application_that_logs_gets_our_records_once(tmp_path):
    code = "import logging; logging.basicConfig(format='app: %(message)s')\n" + OURS
    assert run(code, tmp_path) == "app: a warning\napp: an error\n"


def test_mindspores_warnings_go_to_a_file(tmp_path):
    assert run(THEIRS, tmp_path) == ""
    written = "".join(file.read_text() for file in tmp_path.glob("cache/log/rank_0/logs/*.log.*"))
    assert "theirs" in written
    assert os.listdir(tmp_path) == ["cache"]


def test_only_the_newest_log_files_are_kept(tmp_path):
    logs = tmp_path / "cache/log/rank_0/logs"
    logs.mkdir(parents=True)
    for number in range(30):
        (logs / f"mindspore.log.{number}").touch()
        os.utime(logs / f"mindspore.log.{number}", (number, number))
    run(THEIRS, tmp_path)
    kept = {file.name for file in logs.iterdir()}
    assert len(kept) == 20 and "mindspore.log.29" in kept and "mindspore.log.5" not in kept


def test_a_users_own_settings_of_mindspore_stay(tmp_path):
    assert "theirs" in run(THEIRS, tmp_path, GLOG_v="2")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path):
    (tmp_path / "cache").write_text("a file is in the way")
    assert run(THEIRS, tmp_path) == ""
