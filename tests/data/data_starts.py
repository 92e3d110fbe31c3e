"""Preparations in processes of their own that can be killed, forked from one that has imported everything already."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Imports take two of the three seconds of such a run. Nothing is done before the fork but to import.
_SERVER = """
import os, sys
import mindspore.dataset, mindspore.mindrecord
{program}
for line in sys.stdin:
    number, out, *arguments = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if not child:
        code = 1
        try:
            for descriptor, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{{out}}.{{name}}", os.O_WRONLY | os.O_CREAT), descriptor)
            sys.argv[1:] = arguments
            main()
            sys.stdout.flush()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Starts:
    """Runs `main()` of a program, one process at a time; a with-statement ends the process they are forked from."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._number = 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER.format(program=program)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what select() says of the pipe is then all there is
        )

    def __enter__(self) -> Starts:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()
        self._folder.cleanup()

    def start(self, *arguments: object) -> Started:
        """Begin a run with these arguments in sys.argv[1:]; the run before it has to have ended."""
        self._number += 1
        out = Path(self._folder.name) / str(self._number)
        self._server.stdin.write(("\t".join(map(str, (self._number, out, *arguments))) + "\n").encode())
        return Started(self._server, out, int(self._server.stdout.readline()))

    def run(self, *arguments: object) -> Started:
        """A run that has ended."""
        started = self.start(*arguments)
        started.wait()
        return started


class Started:
    """A run: `kill_after` or `wait`, then its exit code (minus the signal that ended it) and what it wrote."""

    def __init__(self, server: subprocess.Popen[bytes], out: Path, pid: int) -> None:
        self._server, self._out, self._pid = server, out, pid
        self.returncode: int | None = None

    def kill_after(self, seconds: float) -> None:
        """SIGKILL when so many seconds have gone by, unless it has ended."""
        # Its number is free for others only when the server has collected it, which is when it writes the exit code.
        if not select.select([self._server.stdout], [], [], seconds)[0]:
            os.kill(self._pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        self.returncode = int(self._server.stdout.readline())

    @property
    def output(self) -> str:
        return self._out.with_suffix(".out").read_text()

    @property
    def error(self) -> str:
        path = self._out.with_suffix(".err")
        return path.read_text() if path.exists() else ""
