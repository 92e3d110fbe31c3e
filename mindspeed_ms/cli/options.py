"""Options that several commands share, each described once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mindspeed_ms.serving.engine.params import SamplingParams

Model = Annotated[Path, typer.Argument(help="A Hugging Face directory, GGUF file, quantized directory or bundle.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, one line each.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads of the kernels; default: all cores.")]
KvTokens = Annotated[int, typer.Option(min=1, help="Tokens the key/value cache holds, of all requests together.")]

# None: what the model itself recommends; if it recommends nothing, SamplingParams' defaults.
Temperature = Annotated[
    float | None,
    typer.Option(help="0 takes the most likely token; higher is more varied. Default: the model's advice, else 1."),
]
TopK = Annotated[int | None, typer.Option("--top-k", help="Draw from the K most likely tokens; 0: from all.")]
TopP = Annotated[
    float | None, typer.Option("--top-p", help="Draw from the likeliest tokens of this total probability.")
]
MinP = Annotated[
    float | None, typer.Option("--min-p", help="Drop tokens less likely than this share of the likeliest.")
]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1: tokens already there become less likely.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.")]
MaxTokens = Annotated[int | None, typer.Option(help="Most tokens of an answer; default: 256.")]
StopTokenIds = Annotated[
    list[int] | None, typer.Option("--stop-token-id", help="A token that ends the answer; may be repeated.")
]
Stop = Annotated[list[str] | None, typer.Option(help="A string that ends the answer; may be repeated.")]


def sampling(defaults: "SamplingParams", **given: object) -> "SamplingParams":
    """The options that were given, over the model's own."""
    from mindspeed_ms.serving.engine.params import SamplingParams

    return SamplingParams.parse({name: value for name, value in given.items() if value is not None}, defaults)
