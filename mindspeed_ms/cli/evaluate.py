"""mindspeed-ms eval: how well a model predicts a text."""

from pathlib import Path
from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command("eval")
def evaluate(
    model: o.Model,
    text: Annotated[Path, typer.Option(help="A text file in UTF-8.")],
    context: Annotated[int, typer.Option(help="Tokens of a window.")] = 1024,
    stride: Annotated[int, typer.Option(help="Tokens by which the window advances.")] = 512,
    as_json: o.AsJson = False,
) -> None:
    """Perplexity of a model on a text file (lower is better), over windows that advance by a stride."""
    from mindspeed_ms.cli.output import busy, read_text, report
    from mindspeed_ms.serving.engine.perplexity import perplexity

    content = read_text(text)
    with busy("Reading the text through the model"):
        result = perplexity(model, content, context=context, stride=stride)
    report(result, as_json)
