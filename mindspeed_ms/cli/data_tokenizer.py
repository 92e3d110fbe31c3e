"""mindspeed-ms data tokenizer: train a tokenizer."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mindspeed_ms.cli import data_options as d
from mindspeed_ms.cli import options as o


def tokenizer(
    inputs: d.Inputs,
    out: Annotated[Path, typer.Option(help="The tokenizer's folder, which must not exist yet.", show_default=False)],
    kind: Annotated[
        Literal["bpe", "wordpiece"], typer.Option(help="Byte-level BPE as GPT-2's, or WordPiece as BERT's.")
    ] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Most tokens, special ones included.")] = 32_000,
    special_token: Annotated[
        list[str] | None, typer.Option(help="A further special token, such as <|im_start|>; may be repeated.")
    ] = None,
    cache: d.Cache = None,
    as_json: o.AsJson = False,
    text_key: d.TextKey = None,
    messages_key: d.MessagesKey = None,
    txt_by: d.TxtBy = None,
    encoding: d.Encoding = None,
    skip_damaged: d.SkipDamaged = None,
    invalid_utf8: d.InvalidUtf8 = None,
    min_chars: d.MinChars = None,
    max_chars: d.MaxChars = None,
) -> None:
    """Train a BPE or WordPiece tokenizer on text, which is read and cleaned as by prepare."""
    import dataclasses

    from mindspeed_ms.cli.output import next_step, phases, report
    from mindspeed_ms.data.train_tokenizer import train_tokenizer

    config = d.prepare_config(
        None,
        text_key=text_key,
        messages_key=messages_key,
        txt_by=txt_by,
        encoding=encoding,
        skip_damaged=skip_damaged,
        invalid_utf8=invalid_utf8,
        min_chars=min_chars,
        max_chars=max_chars,
    )
    with phases() as advance:
        done = train_tokenizer(
            inputs,
            out,
            kind=kind,
            vocab_size=vocab_size,
            special_tokens=special_token or [],
            read=config.read,
            clean=config.clean,
            cache=cache,
            progress=advance,
        )
    report({**dataclasses.asdict(done), "folder": str(done.folder)}, as_json)
    if not as_json:
        next_step("mindspeed-ms", "data", "prepare", *inputs, "--out", f"{out}-set", "--tokenizer", str(out))
