"""The command `mindspeed-ms`: its table of contents, and what happens to errors."""

import importlib
import io
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mindspeed_ms import __version__
from mindspeed_ms.cli.interrupt import catch_terminate, leave_if_half_imported, was_interrupted
from mindspeed_ms.errors import MindSpeedError

# Module and what the list says of each command, by panel, in the order of a model's life. A module is imported when its
# command is run: to print the list alone, thirty imports would take as long as all else.
_PANELS = {
    "1. Make data of text": {"data": ("data", "Make rows of tokens of text, look at them, convert them.")},
    "2. Get a model, train and judge it": {
        "pull": ("pull", "Fetch a model file, check it against its pinned SHA-256 and print its path."),
        "train": (
            "train",
            "Train a model on a prepared set: from nothing, from a trained one, or adapters of one (LoRA).",
        ),
        "checkpoint": ("checkpoint", "List, check, compare, remove, export and import checkpoints."),
        "report": ("report", "Make one page of HTML of a run, or of two side by side: curves, speed, memory, samples."),
        "eval": (
            "evaluate",
            "Perplexity of a model on a text file (lower is better), over windows that advance by a stride.",
        ),
    },
    "3. Make it small and portable": {
        "quantize": (
            "quantize",
            "Round a model's weights to 8 or 4 bits; reports the size and the error of each layer.",
        ),
        "export": ("export", "Write a model as a bundle: one folder that holds all a service needs, on any machine."),
    },
    "4. Use it": {
        "generate": ("generate", "Complete prompts; several run as one batch."),
        "chat": (
            "chat",
            "Talk with a model. /reset forgets the conversation; /exit or Ctrl-D ends it, Ctrl-C stops an answer.",
        ),
        "serve": (
            "serve",
            "Answer over gRPC by the MindSpore Serving protocol, until Ctrl-C or SIGTERM. There is no authentication.",
        ),
    },
    "5. Plan for many devices": {
        "topo": (
            "topo",
            "Read a cluster's links, find rings, check and draw a job's groups, write rank tables.",
        ),
        "plan": (
            "plan",
            "Choose how to spread a training job over a cluster, by models of time and memory, and write its launch.",
        ),
    },
    "6. Look underneath": {"ops": ("ops", "The native kernels: build them, or ask about them.")},
}
_COMMANDS = {
    name: (module, panel, summary)
    for panel, commands in _PANELS.items()
    for name, (module, summary) in commands.items()
}


_MOST_CHARS = 1000  # of an error's line


class _Commands(TyperGroup):
    _listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module, panel, summary = _COMMANDS[cmd_name]
        if self._listing:
            return TyperCommand(cmd_name, help=summary, rich_help_panel=panel)
        command: Any = typer.main.get_command(importlib.import_module(f"mindspeed_ms.cli.{module}").app)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, ImportError) as error:
            if not was_interrupted(error):
                raise
            how = f"; {error}" if isinstance(error, KeyboardInterrupt) and error.args else ""
            print(f"interrupted{how}", file=sys.stderr)
            leave_if_half_imported()
            raise typer.Exit(130) from None


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _version(value: bool) -> None:
    if value:
        print(f"mindspeed-ms {__version__}")
        raise typer.Exit()


@app.callback(context_settings={"help_option_names": ["-h", "--help"]})
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A language model's whole life on MindSpore: prepare data, train, judge, quantize, export, serve.

    `mindspeed-ms COMMAND --help` explains a command.
    """


def main() -> None:
    """Run the command line: 0 is success, 2 a mistake that one line on stderr explains, 130 an interruption."""
    # Accepted after the command as well, where one adds it when a command has failed.
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    catch_terminate()
    _accept_any_text()
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        app(args=arguments, prog_name="mindspeed-ms")
    except BrokenPipeError:
        # The reader of our output has left; there is nobody to tell.
        sys.stderr.close()
        sys.exit(141)
    except (MindSpeedError, OSError, MemoryError) as error:
        if debug:
            raise
        text = " ".join(str(error).split()) or "not enough memory"
        if len(text) > _MOST_CHARS:  # a hostile file may have names of any length
            text = f"{text[: _MOST_CHARS // 2]} ... {text[-_MOST_CHARS // 2 :]}"
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)


def _accept_any_text() -> None:
    """Print escaped what the terminal cannot show; leave input that is no text to the model, which refuses it."""
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


if __name__ == "__main__":
    main()
