"""Renders chat templates in a process of its own: `python template_worker.py`, JSON lines in, JSON lines out.

A template comes with a model from anywhere. Jinja2's immutable sandbox keeps it away from Python's attributes and
files; but it can still loop for hours or build a string of gigabytes, inside one C call that no thread can interrupt.
So this process limits its own memory, and an alarm it does not handle ends it when a rendering takes too long.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its neighbours must not stand in for library modules

import datetime
import functools
import json
import resource
import signal
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 5.0
MEMORY = 512 << 20
OUTPUT = 16 << 20


class Generation(Extension):
    """`{% generation %}` marks the assistant's part for training in Hugging Face's templates; here it is its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def environment() -> ImmutableSandboxedEnvironment:
    """Jinja2 as Hugging Face's `apply_chat_template` sets it up."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


@functools.lru_cache(maxsize=4)
def compiled(env: ImmutableSandboxedEnvironment, source: str) -> jinja2.Template:
    """Compiling takes many times as long as rendering."""
    return env.from_string(source)


def answer(env: ImmutableSandboxedEnvironment, request: dict[str, Any]) -> dict[str, Any]:
    """{"text": ...}, with "spans" where the request names "answers", or {"error": one line}; it may name a "date"."""
    try:
        variables = request["variables"]
        if request.get("date") is not None:  # else the day is this one
            variables["strftime_now"] = datetime.datetime.fromisoformat(request["date"]).strftime
        template = compiled(env, request["template"])
        text = template.render(**variables)
        spans = [answer_span(template, variables, text, at) for at in request.get("answers", ())]
    except Exception as error:  # noqa: BLE001 - a template may raise anything; the caller gets it as one line
        return {"error": (str(error) or type(error).__name__).splitlines()[0][:300]}
    if len(text) > OUTPUT:
        return {"error": f"the text has {len(text)} characters, more than {OUTPUT}"}
    return {"text": text, "spans": spans}


def answer_span(template: jinja2.Template, variables: dict[str, Any], text: str, at: int) -> tuple[int, int]:
    """Where message `at` stands in the rendered text, without what the generation prompt already says.

    Raises TemplateError when the template writes the start of a conversation differently once it goes on.
    """
    messages = variables["messages"]
    try:
        before = template.render(**{**variables, "messages": messages[:at], "add_generation_prompt": True})
    except jinja2.TemplateError as error:
        if at:
            raise
        reason = f"which this template has no prompt for ({error})"
        raise jinja2.TemplateError(f"messages[0]: the conversation begins with an answer, {reason}") from None
    through = template.render(**{**variables, "messages": messages[: at + 1], "add_generation_prompt": False})
    if not through.startswith(before):
        raise jinja2.TemplateError(f"messages[{at}]: the generation prompt is not how the answer begins")
    if text.startswith(through):
        return len(before), len(through)
    # Templates of reasoning models write an empty thought before the last answer only: the others are the text alone.
    content = messages[at]["content"].strip()
    place = through.rfind(content, len(before)) if content else -1
    while place >= len(before):
        alone = before + through[place:]
        if text.startswith(alone):
            return len(before), len(alone)
        place = through.rfind(content, len(before), place + len(content) - 1)
    raise jinja2.TemplateError(f"messages[{at}]: the answer is written differently once the conversation goes on")


def main() -> None:
    """Answer one request a line until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    env = environment()
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            request = json.loads(line)
        except (ValueError, RecursionError) as error:  # nested deeper, or longer numbers, than can be read
            reply = {"error": str(error)[:300]}
        else:
            reply = answer(env, request)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
