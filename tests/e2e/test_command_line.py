"""A model's life by the commands alone: quantize, export, judge, generate, chat, serve."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}</s>{% endif %}"


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """A folder with a tiny model, quantized and exported; and the library built, in the usual cache."""
    sys.path.insert(0, str(ROOT / "tests" / "weights"))
    from weights_files import write_hf

    from mindspeed_ms.compress.quantize import quantize_model
    from mindspeed_ms.export.bundle import export_bundle
    from mindspeed_ms.ops.native.build import library_path

    library_path()
    folder = tmp_path_factory.mktemp("life")
    model = write_hf(folder / "model", max_position_embeddings=64)
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.5, "top_k": 7}))
    (folder / "text.txt").write_text("%&'()*+,-./0123456789" * 5)
    quantize_model(model, folder / "small", "w4a8", 32, True)
    export_bundle(folder / "small", folder / "bundle")
    return folder


@pytest.fixture
def ms(capsys, life, monkeypatch):
    """Runs a command in this process and returns what it printed."""
    from mindspeed_ms.cli.main import app

    monkeypatch.chdir(life)

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        app(args=list(arguments), prog_name="mindspeed-ms", standalone_mode=False)
        return capsys.readouterr().out

    return call


def command(life, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "mindspeed_ms.cli.main", *arguments],
        cwd=life,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_quantize_reports_size_and_error_of_each_layer(ms, life):
    shown = ms("quantize", "model", "small4", "--scheme", "w4a8", "--group", "32", "--asymmetric")
    assert "model.layers.1.mlp.down_proj.weight" in shown and "lossless      no" in shown
    report = json.loads(ms("quantize", "model", "small8", "--scheme", "w8a8", "--json"))
    assert report["scheme"] == "w8a8" and report["bytes_after"] < report["bytes_before"]
    assert len(report["layers"]) == 2 + 2 * 7
    assert 0 < max(layer["relative_rms"] for layer in report["layers"]) < 0.02
    assert (life / "small4" / "config.json").is_file()


def test_export_writes_a_bundle_and_refreshes_it(ms, life):
    report = json.loads(ms("export", "small", "exported", "--json"))
    assert report["scheme"] == "w4a8"
    assert report["bytes"] == sum(file.stat().st_size for file in (life / "exported").iterdir())
    (life / "exported" / "graph.mindir").write_bytes(b"damaged")
    ms("export", "exported", "--refresh")
    assert ms("generate", "exported", "%&", "--max-tokens", "1").endswith("\n")


def test_eval_reports_perplexity(ms):
    report = json.loads(ms("eval", "bundle", "--text", "text.txt", "--context", "32", "--stride", "16", "--json"))
    assert report["predicted"] == 104 and report["perplexity"] > 1


def test_generate_answers_each_prompt_and_repeats_itself_by_seed(ms):
    arguments = ("generate", "bundle", "%&'(", "))", "--max-tokens", "8", "--seed", "3", "--json")
    rows = [json.loads(line) for line in ms(*arguments).splitlines()]
    assert [row["prompt"] for row in rows] == ["%&'(", "))"]
    assert rows == [json.loads(line) for line in ms(*arguments).splitlines()]
    assert all(row["finish_reason"] in ("stop", "length") for row in rows)
    text = ms("generate", "bundle", "%&'(", "--max-tokens", "8", "--seed", "3")
    assert text == rows[0]["text"] + "\n"


def test_generate_reports_the_likeliest_tokens_and_ends_at_a_token(ms):
    asked = ("generate", "bundle", "%&'(", "--max-tokens", "8", "--temperature", "0", "--json")
    row = json.loads(ms(*asked, "--logprobs", "2"))
    assert all(list(token["top"])[0] == str(token["token_id"]) and len(token["top"]) == 2 for token in row["logprobs"])
    third = row["output_ids"][2]
    ended = json.loads(ms(*asked, "--stop-token-id", str(third)))
    assert ended["output_ids"] == row["output_ids"][: row["output_ids"].index(third) + 1]
    assert (ended["finish_reason"], ended["stop_reason"]) == ("stop", third)
    with pytest.raises(typer.BadParameter, match="--logprobs are printed with --json only"):
        ms("generate", "bundle", "%&'(", "--logprobs", "2")


def test_generate_reads_a_prompt_from_its_input_and_can_ask_it_as_a_question(ms):
    greedy = ("--max-tokens", "8", "--temperature", "0")
    assert ms("generate", "bundle", *greedy, stdin="%&'(") == ms("generate", "bundle", "%&'(", *greedy)
    assert ms("generate", "bundle", "--chat", "%&'(", *greedy) != ""


def test_a_prompt_that_cannot_run_fails_alone(ms):
    from mindspeed_ms.errors import RequestError

    with pytest.raises(RequestError, match="1 of 2 prompts failed"):
        ms("generate", "bundle", "%&'(", "%" * 100, "--max-tokens", "4")


def test_chat_remembers_forgets_and_ends(ms, monkeypatch):
    from mindspeed_ms.serving.engine.llm import LLM

    seen = []
    ask = LLM.chat_stream
    monkeypatch.setattr(
        LLM,
        "chat_stream",
        lambda self, messages, params=None: (
            seen.append([(m["role"], m["content"]) for m in messages]),
            ask(self, messages, params),
        )[1],
    )
    said = "%&\n\n/what\n()\n/reset\n++\n/exit\nnever\n"
    ms("chat", "bundle", "--system", "--", "--max-tokens", "3", "--temperature", "0", stdin=said)
    roles = [[role for role, _ in messages] for messages in seen]
    assert roles == [["system", "user"], ["system", "user", "assistant", "user"], ["system", "user"]]
    assert [messages[-1][1] for messages in seen] == ["%&", "()", "++"]
    assert seen[1][:2] == seen[0]


def test_a_conversation_longer_than_the_context_is_told_and_goes_on(ms, capsys):
    said = "%" * 100 + "\n/reset\n%&\n"
    assert ms("chat", "bundle", "--max-tokens", "3", stdin=said).count("\n") == 1


def test_generate_prints_the_answer_and_nothing_of_mindspore(life):
    process = command(life, "generate", "bundle", "%&'(", "--max-tokens", "4")
    out, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert out.endswith("\n")
    assert not {"rank_0", "kernel_meta"} & set(os.listdir(life))


def test_serve_answers_until_it_is_told_to_stop(life):
    client = pytest.importorskip("mindspeed_ms.serving.client")
    process = command(life, "serve", "bundle", "--grpc", "127.0.0.1:0", "--json")
    try:
        ready = json.loads(process.stdout.readline())
        assert ready["name"] == "bundle"
        with client.Client(ready["grpc"]) as caller:
            assert caller.generate("%&'(", max_tokens=4, temperature=0).completion_tokens <= 4
        busy = command(life, "serve", "bundle", "--grpc", ready["grpc"])
        _, error = busy.communicate(timeout=120)
        assert busy.returncode == 2 and error.count("\n") == 1 and ready["grpc"] in error
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "")
    finally:
        process.kill()


def test_ops_says_what_runs(ms):
    found = json.loads(ms("ops", "info", "--json"))
    assert Path(found["library"]).is_file()
    assert ms("ops", "build").strip() == found["library"]
