"""mindspeed-ms data prepare: from text to rows of fixed length."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mindspeed_ms.cli import data_options as d
from mindspeed_ms.cli import options as o


def prepare(
    inputs: d.Inputs,
    out: Annotated[
        Path, typer.Option(help="Folder of the set; an interrupted run in it is continued.", show_default=False)
    ],
    tokenizer: d.Tokenizer,
    config: d.ConfigFile = None,
    workers: d.Workers = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(help="Processes here, or of a Ray cluster.")] = "local",
    ray_address: Annotated[str | None, typer.Option(help="The cluster's address; default: start one here.")] = None,
    cache: d.Cache = None,
    restart: Annotated[bool, typer.Option("--restart", help="Remove what is in --out and begin anew.")] = False,
    as_json: o.AsJson = False,
    text_key: d.TextKey = None,
    messages_key: d.MessagesKey = None,
    ids_key: d.IdsKey = None,
    txt_by: d.TxtBy = None,
    encoding: d.Encoding = None,
    skip_damaged: d.SkipDamaged = None,
    bad_conversations: d.BadConversations = None,
    invalid_utf8: d.InvalidUtf8 = None,
    min_chars: d.MinChars = None,
    max_chars: d.MaxChars = None,
    dedup: d.Dedup = None,
    near_duplicates: d.NearDuplicates = None,
    bos: d.Bos = None,
    eos: d.Eos = None,
    special_tokens: d.SpecialTokens = None,
    date: d.Date = None,
    mode: d.Mode = None,
    boundaries: d.Boundaries = None,
    buckets: d.Buckets = None,
    max_length: d.MaxLength = None,
    multiple_of: d.MultipleOf = None,
    join: d.Join = None,
    overlong: d.Overlong = None,
    max_documents: d.MaxDocuments = None,
    shard_tokens: d.ShardTokens = None,
) -> None:
    """Clean and tokenize text and lay it out in rows of a few fixed lengths; the same command goes on after a stop."""
    from mindspeed_ms.cli.data_output import show_summary
    from mindspeed_ms.cli.interrupt import can_go_on
    from mindspeed_ms.cli.output import next_step, phases
    from mindspeed_ms.data.inspect import summarise
    from mindspeed_ms.data.manifest import NAME
    from mindspeed_ms.data.prepare import prepare as prepare_set

    if ray_address is not None and engine != "ray":
        raise typer.BadParameter("--ray-address goes with --engine ray")
    settings = d.prepare_config(
        config,
        text_key=text_key,
        messages_key=messages_key,
        ids_key=ids_key,
        txt_by=txt_by,
        encoding=encoding,
        skip_damaged=skip_damaged,
        bad_conversations=bad_conversations,
        invalid_utf8=invalid_utf8,
        min_chars=min_chars,
        max_chars=max_chars,
        dedup=dedup,
        near_duplicates=near_duplicates,
        bos=bos,
        eos=eos,
        special_tokens=special_tokens,
        date=date,
        mode=mode,
        boundaries=boundaries,
        buckets=buckets,
        max_length=max_length,
        multiple_of=multiple_of,
        join=join,
        overlong=overlong,
        max_documents=max_documents,
        shard_tokens=shard_tokens,
    )
    complete = not restart and (out / NAME).exists()
    again = "the same command without --restart goes on" if restart else "the same command goes on"
    with can_go_on(again), phases() as advance:
        manifest = prepare_set(
            inputs,
            out,
            tokenizer,
            settings,
            workers=workers,
            engine=engine,
            ray_address=ray_address,
            cache=cache,
            restart=restart,
            progress=advance,
        )
    if complete and not as_json:
        print("already complete: nothing was done\n")
    show_summary(summarise(out, manifest), as_json)
    if not as_json:
        next_step("mindspeed-ms", "data", "inspect", str(out))
