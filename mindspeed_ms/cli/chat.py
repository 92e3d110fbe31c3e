"""mindspeed-ms chat: a conversation in the terminal."""

from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def chat(
    model: o.Model,
    system: Annotated[str | None, typer.Option(help="Instructions that come before the conversation.")] = None,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    seed: o.Seed = None,
    threads: o.Threads = None,
    kv_tokens: o.KvTokens = 8192,
) -> None:
    """Talk with a model. /reset forgets the conversation; /exit or Ctrl-D ends it, Ctrl-C stops an answer."""
    from mindspeed_ms.cli.conversation import converse
    from mindspeed_ms.cli.output import busy
    from mindspeed_ms.serving.engine.llm import LLM

    with busy("Loading the model"):
        llm = LLM(model, threads=threads, kv_tokens=kv_tokens)
    with llm:
        params = o.sampling(
            llm.default_params,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
        )
        converse(llm, params, system)
