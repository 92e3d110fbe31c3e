"""Options of the data commands, each described once; they stand for the keys of PrepareConfig, by the same names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from mindspeed_ms.config.data import PrepareConfig

_READ, _CLEAN, _TOKENIZE, _ARRANGE = "What is read", "What is kept", "How text becomes tokens", "How rows are made"

Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT...",
        help="Files (.txt .jsonl .ndjson .json, also .gz, .zst; .parquet .arrow .bin), folders, saved data sets, URLs.",
        show_default=False,
    ),
]
Tokenizer = Annotated[
    Path, typer.Option(help="A tokenizer.json, Hugging Face directory, GGUF file or bundle.", show_default=False)
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A YAML file with these settings; options go before it.")
]
Cache = Annotated[
    Path | None, typer.Option(help="Folder that keeps copies of remote files; default: in the user's cache.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes that tokenize; default: one a core.")]

# None: what --config says, else the default of PrepareConfig, which the help names.
TextKey = Annotated[
    str | None,
    typer.Option(help="JSON lines, parquet, arrow: the field of the text. Default: text.", rich_help_panel=_READ),
]
MessagesKey = Annotated[
    str | None, typer.Option(help="Instead: the field of a conversation; answers are learnt.", rich_help_panel=_READ)
]
IdsKey = Annotated[str | None, typer.Option(help="Instead: the field of token ids.", rich_help_panel=_READ)]
TxtBy = Annotated[
    Literal["line", "paragraph", "file"] | None,
    typer.Option(help="What a document of a .txt file is. Default: line.", rich_help_panel=_READ),
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Of .txt files; a byte order mark wins. Default: utf-8.", rich_help_panel=_READ),
]
SkipDamaged = Annotated[
    bool | None,
    typer.Option(
        "--skip-damaged/--no-skip-damaged",
        help="Keep what a damaged file has before the damage. Default: an error.",
        rich_help_panel=_READ,
    ),
]
BadConversations = Annotated[
    Literal["error", "drop"] | None,
    typer.Option(help="Conversations that the chat template refuses. Default: error.", rich_help_panel=_READ),
]
InvalidUtf8 = Annotated[
    Literal["drop", "replace", "error"] | None,
    typer.Option("--invalid-utf8", help="Documents that are no UTF-8. Default: drop.", rich_help_panel=_CLEAN),
]
MinChars = Annotated[
    int | None, typer.Option(help="Shorter documents are dropped. Default: 1.", rich_help_panel=_CLEAN)
]
MaxChars = Annotated[
    int | None, typer.Option(help="Longer documents are dropped. Default: 2000000.", rich_help_panel=_CLEAN)
]
Dedup = Annotated[
    bool | None,
    typer.Option("--dedup/--no-dedup", help="Drop exact copies. Default: drop them.", rich_help_panel=_CLEAN),
]
NearDuplicates = Annotated[
    float | None,
    typer.Option(
        help="Drop documents as similar as this to an earlier one, such as 0.8. Default: look for none.",
        rich_help_panel=_CLEAN,
    ),
]
Bos = Annotated[
    bool | None,
    typer.Option(
        "--bos/--no-bos", help="Begin documents with BOS. Default: as the tokenizer.", rich_help_panel=_TOKENIZE
    ),
]
Eos = Annotated[
    bool | None,
    typer.Option("--eos/--no-eos", help="End documents with EOS. Default: end them.", rich_help_panel=_TOKENIZE),
]
SpecialTokens = Annotated[
    Literal["plain", "parse"] | None,
    typer.Option(
        help="Whether a special token's name in a text is text or that token. Default: plain.",
        rich_help_panel=_TOKENIZE,
    ),
]
Date = Annotated[
    str | None,
    typer.Option(help="What chat templates take for today. Default: 2024-07-26.", rich_help_panel=_TOKENIZE),
]
Mode = Annotated[
    Literal["bucket", "pack", "stream"] | None,
    typer.Option(
        help="Rows of a few lengths, full rows of whole documents, or one stream, cut. Default: bucket.",
        rich_help_panel=_ARRANGE,
    ),
]
Boundaries = Annotated[str | None, typer.Option(help="Lengths of rows, such as 128,256,512.", rich_help_panel=_ARRANGE)]
Buckets = Annotated[
    int | None,
    typer.Option(help="Or: how many lengths, those that pad least. Default: 5.", rich_help_panel=_ARRANGE),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Tokens of the longest row, without --boundaries. Default: 2048.", rich_help_panel=_ARRANGE),
]
MultipleOf = Annotated[
    int | None, typer.Option(help="Lengths of rows are multiples of this. Default: 1.", rich_help_panel=_ARRANGE)
]
Join = Annotated[
    bool | None,
    typer.Option(
        "--join/--no-join",
        help="Fill rows of buckets with further short documents. Default: one a row.",
        rich_help_panel=_ARRANGE,
    ),
]
Overlong = Annotated[
    Literal["split", "truncate", "drop"] | None,
    typer.Option(help="Documents longer than the longest row. Default: split.", rich_help_panel=_ARRANGE),
]
MaxDocuments = Annotated[
    int | None,
    typer.Option(help="Most documents in a row. Default: a quarter of its length.", rich_help_panel=_ARRANGE),
]
ShardTokens = Annotated[
    int | None, typer.Option(help="About so many tokens make a shard. Default: 33554432.", rich_help_panel=_ARRANGE)
]


_RIVALS = {
    "boundaries": ("buckets", "max_length"),
    "buckets": ("boundaries",),
    "max_length": ("boundaries",),
    "messages_key": ("ids_key",),
    "ids_key": ("messages_key",),
}


def prepare_config(file: Path | None, **given: Any) -> "PrepareConfig":
    """The configuration of a file, or the default one, with the options that were given. Raises ConfigError."""
    from mindspeed_ms.config.base import load_yaml
    from mindspeed_ms.config.data import PrepareConfig

    values = (load_yaml(file, PrepareConfig) if file else PrepareConfig()).model_dump(exclude_unset=True)
    sections = {
        key: name
        for name, field in PrepareConfig.model_fields.items()
        for key in getattr(field.annotation, "model_fields", {})
    }
    for key, value in given.items():
        if value is not None:
            section = values.setdefault(sections[key], {}) if key in sections else values
            for rival in _RIVALS.get(key, ()):  # of the file: an option goes before it
                if given.get(rival) is None:
                    section.pop(rival, None)
            section[key] = _lengths(value) if key == "boundaries" else value
    return PrepareConfig.parse(values, where=f"{file} and options" if file else "options")


def _lengths(text: str) -> list[int]:
    from mindspeed_ms.errors import ConfigError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--boundaries {text}: expected lengths with commas between, such as 128,256,512") from None
