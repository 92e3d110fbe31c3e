"""The first use of a tokenizer's file, in a process of its own.

Nobody vouches for the file: the library may panic over it, end the process, fill the memory or never come back.
"""

from __future__ import annotations

import os
import signal
import string
import subprocess
import sys
from typing import NoReturn

from mindspeed_ms.errors import TokenizerError

_SECONDS = 5  # of processor time; one more for each MiB of the file
_MEMORY = 2 << 30  # bytes; 64 more for each byte of the file
_TEXT = f"{string.printable} The quick brown fox: {'a' * 40} {'e ' * 40}naïve 三国演义 😀"
_MOST_TOKENS = 1 << 14
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; from mindspeed_ms.data.probe import serve; serve(%d, %d)"
)


def probe(content: bytes, where: str) -> None:
    """Raises TokenizerError unless a tokenizer.json of these bytes opens, and encodes a line of text, within limits."""
    seconds, memory = _SECONDS + (len(content) >> 20), _MEMORY + 64 * len(content)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(part for part in sys.path if part),
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START % (seconds, memory)],
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # where a panic prints its trace
            env=env,
            timeout=10 * seconds,
        )
    except subprocess.TimeoutExpired:
        code = -signal.SIGXCPU
    else:
        code = done.returncode
    if code == 0:
        return
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        problem = f"a line of text takes more than {seconds} s to encode"
    elif code < 0:
        problem = f"encoding a line of text ends the process by signal {-code}, or takes more than {memory >> 20} MiB"
    else:
        raise TokenizerError(f"{where}: {done.stdout.decode('utf-8', 'replace') or 'cannot be opened'}")
    raise TokenizerError(f"{where}: {problem}; it is damaged or hostile: take another tokenizer")


def serve(seconds: int, memory: int) -> None:
    """The life of the process: the file comes by stdin, what is wrong with it goes to stdout."""
    import resource

    from tokenizers import Tokenizer

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        tokenizer = Tokenizer.from_buffer(sys.stdin.buffer.read())
    except BaseException as error:  # noqa: BLE001 - the library raises nothing narrower, its panics are no Exception
        _refuse(f"is not a tokenizer ({_line(error)})")
    try:
        count = len(tokenizer.encode(_TEXT))
    except Exception:  # noqa: BLE001 - likewise; that it knows no such character is no damage
        return
    except BaseException as error:  # noqa: BLE001 - a panic
        _refuse(f"is not a tokenizer ({_line(error)})")
    if count > _MOST_TOKENS:
        _refuse(f"makes {count} tokens of a line of {len(_TEXT)} characters; it is damaged: take another tokenizer")


def _refuse(problem: str) -> NoReturn:
    sys.stdout.write(problem)
    sys.exit(1)


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
