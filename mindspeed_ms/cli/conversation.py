"""The loop of `chat`: read a line, stream the answer, remember both."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from mindspeed_ms.cli.interrupt import Terminated
from mindspeed_ms.cli.output import stream
from mindspeed_ms.errors import RequestError

Message = dict[str, str]


class Chatting(Protocol):
    """What a conversation needs of an LLM."""

    def chat_stream(self, messages: Sequence[Message], params: Any = None) -> Iterable[Any]: ...


def converse(llm: Chatting, params: Any, system: str | None = None) -> None:
    """Talk until the input ends or /exit is typed."""
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    history = list(opening)
    # On a terminal, readline gives the arrow keys their meaning.
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401

        print("/reset forgets the conversation, /exit or Ctrl-D ends it.", file=sys.stderr)
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            break
        except Terminated:
            raise
        except KeyboardInterrupt:
            print()
            continue
        if line == "/exit":
            break
        if line == "/reset":
            history = list(opening)
        elif line.startswith("/"):
            print(f"{line.split()[0]}: no such command; there are /reset and /exit", file=sys.stderr)
        elif line:
            history = _turn(llm, params, history, line)


def _turn(llm: Chatting, params: Any, history: list[Message], line: str) -> list[Message]:
    """One question and its answer; a question that fails leaves the history as it was."""
    asked = [*history, {"role": "user", "content": line}]
    try:
        answer = stream(llm.chat_stream(asked, params))
    except Terminated:
        raise
    except KeyboardInterrupt:
        print("\n(stopped; not remembered)", file=sys.stderr)
        return history
    except RequestError as error:
        print(f"error: {error} (/reset forgets the conversation)", file=sys.stderr)
        return history
    return [*asked, {"role": "assistant", "content": answer}]
