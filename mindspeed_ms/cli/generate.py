"""mindspeed-ms generate: complete prompts."""

from typing import Annotated

import typer

from mindspeed_ms.cli import options as o

app = typer.Typer(add_completion=False)


@app.command()
def generate(
    model: o.Model,
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to complete; default: stdin, as one.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask each prompt as a question, in the model's template.")
    ] = False,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    seed: o.Seed = None,
    stop: o.Stop = None,
    stop_token_id: o.StopTokenIds = None,
    logprobs: Annotated[int | None, typer.Option(help="With --json: this many alternatives a token.")] = None,
    threads: o.Threads = None,
    kv_tokens: o.KvTokens = 8192,
    as_json: o.AsJson = False,
) -> None:
    """Complete prompts; several run as one batch."""
    import sys

    from mindspeed_ms.cli.output import answers, busy, stream
    from mindspeed_ms.serving.engine.llm import LLM

    if logprobs is not None and not as_json:
        raise typer.BadParameter("--logprobs are printed with --json only")
    texts = prompts or [sys.stdin.read()]
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
            stop=stop,
            stop_token_ids=stop_token_id,
            logprobs=logprobs,
        )
        inputs = [llm.chat_ids([{"role": "user", "content": text}]) if chat else text for text in texts]
        if len(inputs) == 1 and not as_json:
            stream(llm.stream(inputs[0], params))
        else:
            answers(texts, llm.generate(inputs, params), as_json)
