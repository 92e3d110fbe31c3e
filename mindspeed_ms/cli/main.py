"""The command `mindspeed-ms`: its table of contents, and what happens to errors."""

import importlib
import io
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mindspeed_ms import __version__
from mindspeed_ms.cli.interrupt import catch_terminate, leave_if_half_imported, was_interrupted
from mindspeed_ms.errors import MindSpeedError

# Name, module and panel, in the order of a model's life. A module is imported when its command is run or listed.
_COMMANDS = {
    "data": ("data", "1. Make data of text"),
    "pull": ("pull", "2. Get a model, train and judge it"),
    "train": ("train", "2. Get a model, train and judge it"),
    "checkpoint": ("checkpoint", "2. Get a model, train and judge it"),
    "report": ("report", "2. Get a model, train and judge it"),
    "eval": ("evaluate", "2. Get a model, train and judge it"),
    "quantize": ("quantize", "3. Make it small and portable"),
    "export": ("export", "3. Make it small and portable"),
    "generate": ("generate", "4. Use it"),
    "chat": ("chat", "4. Use it"),
    "serve": ("serve", "4. Use it"),
    "topo": ("topo", "5. Plan for many devices"),
    "plan": ("plan", "5. Plan for many devices"),
    "ops": ("ops", "6. Look underneath"),
}


_MOST_CHARS = 1000  # of an error's line


class _Commands(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module, panel = _COMMANDS[cmd_name]
        command: Any = typer.main.get_command(importlib.import_module(f"mindspeed_ms.cli.{module}").app)
        command.name = cmd_name
        command.rich_help_panel = panel
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
