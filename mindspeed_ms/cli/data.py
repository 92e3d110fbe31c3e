"""mindspeed-ms data: from text to what a model is trained on."""

import typer

from mindspeed_ms.cli.data_convert import convert
from mindspeed_ms.cli.data_inspect import inspect
from mindspeed_ms.cli.data_prepare import prepare
from mindspeed_ms.cli.data_tokenizer import tokenizer

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Make rows of tokens of text, look at them, convert them."
)
for command in (prepare, inspect, convert, tokenizer):
    app.command()(command)
