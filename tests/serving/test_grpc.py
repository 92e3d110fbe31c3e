"""The gRPC service, called by our client, by bare protobuf messages and by MindSpore Serving's own client."""

import json
import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from serving_fakes import GREEDY, HashRunner, greedy, library_tokenizer

from mindspeed_ms.errors import RequestError, ServeError
from mindspeed_ms.serving.api import protocol
from mindspeed_ms.serving.client import Client
from mindspeed_ms.serving.engine.loop import Handle

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


class Gate(HashRunner):
    """Waits in each step until it is opened."""

    def __init__(self, **options):
        super().__init__(**options)
        self.open, self.entered = threading.Event(), threading.Event()

    def step(self, batch):
        self.entered.set()
        assert self.open.wait(30)
        return super().step(batch)


# Our client


def test_a_prompt_is_answered(start):
    *_, client = start()
    answer = client.generate("Hello", **GREEDY)
    assert answer.output_ids == greedy("Hello") and answer.finish_reason == "length"
    assert answer.text == library_tokenizer().decode(answer.output_ids)
    assert (answer.prompt_tokens, answer.completion_tokens) == (len(library_tokenizer().encode("Hello").ids), 6)
    assert client.generate([5, 6], **GREEDY).output_ids == greedy([5, 6])
    assert len(client.generate("Hello", logprobs=0, **GREEDY).logprobs) == 6


def test_several_prompts_are_answered_in_order_and_a_bad_one_alone_fails(start):
    *_, client = start()
    answers = client.generate(["Hello", "", [5, 6], "x" * 100], **GREEDY)
    assert [a.output_ids for a in answers] == [greedy("Hello"), [], greedy([5, 6]), []]
    assert answers[1].error == "prompt: empty: expected some text"
    assert answers[3].error == "prompt: 100 tokens: expected fewer than 64 (the model's context)"


def test_stop_strings_and_chat(start):
    *_, client = start()
    text = client.generate("Hello", **GREEDY).text
    assert client.generate("Hello", stop=["zzz", text[2:4]], **GREEDY).text == text[: text.index(text[2:4])]
    asked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for messages in ("hi", [{"role": "user", "content": "hi"}]):
        assert client.chat(messages, **GREEDY).output_ids == greedy(asked)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda c: c.generate(""), RequestError, "prompt: empty"),
        (
            lambda c: c.generate("a", temprature=1.0),
            RequestError,
            r"temprature: unknown field; did you mean temperature\?",
        ),
        (lambda c: c.generate("a", top_p=2.0), RequestError, "top_p: 2.0: expected a number above 0 to 1"),
        (lambda c: c.generate("a", stop=np.array([1])), RequestError, "stop: int64: expected strings"),
        (
            lambda c: c.generate("a", max_tokens=np.array([1, 2])),
            RequestError,
            r"max_tokens: shape \[2\]: expected one",
        ),
        (lambda c: c.generate([1.5]), RequestError, "input_ids: "),
        (lambda c: c.infer([]), ServeError, "instances: 0: expected 1 to"),
        (lambda c: c.infer([{}], "x"), ServeError, "method 'x': unknown: expected generate or chat"),
    ],
)
def test_bad_requests_are_told_in_one_line(start, call, error, text):
    server, *_ = start()
    client = Client(server.address, timeout=30)
    if text == "input_ids: ":
        assert "expected integers [n]" in client.infer([{"input_ids": np.array([1.5])}])[0]["error"]
        return
    with pytest.raises(error, match=text) as raised:
        call(client)
    assert "\n" not in str(raised.value)


def test_unknown_names_and_versions_are_errors_in_the_reply(start):
    server, *_ = start()
    with pytest.raises(ServeError, match="servable 'other': unknown: expected 'tiny'"):
        Client(server.address, "other", timeout=30).generate("a")
    with pytest.raises(ServeError, match="version 7: unknown: expected 1, or 0 for the newest"):
        Client(server.address, "tiny", version=7, timeout=30).generate("a")
    assert Client(server.address, "tiny", version=1, timeout=30).generate("a", **GREEDY).output_ids == greedy("a")


def test_a_client_without_a_server_says_so():
    with pytest.raises(ServeError, match="127.0.0.1:1: .*expected a running mindspeed-ms serve"):
        Client("127.0.0.1:1").generate("a")


# The protocol, message by message


def predict(server, request, data=None):
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            f"/{protocol.SERVICE}/Predict", response_deserializer=protocol.PredictReply.FromString
        )
        return call(request.SerializeToString() if data is None else data, timeout=30)


def request(**tensor):
    message = protocol.PredictRequest()
    message.servable_spec.name, message.servable_spec.method_name = "tiny", "generate"
    item = message.instances.add().items["input_ids"]
    shape = tensor.pop("shape", [2])
    item.shape.dims.extend(shape)
    for name, value in {"dtype": 7, "data": np.array([5, 6], np.uint32).tobytes(), **tensor}.items():
        if name == "shm":
            item.shm_data.memory_key = value
        elif name == "bytes_val":
            item.bytes_val.extend(value)
        else:
            setattr(item, name, value)
    return message


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        ({"shm": "key"}, "shared memory"),
        ({"shape": [3]}, "8 bytes for uint32 [3]: expected 12"),
        ({"shape": [2**40, 2**40]}, "bytes for uint32"),
        ({"shape": [-1]}, "none negative"),
        ({"shape": [2**40, 2**40, 0], "data": b""}, "expected sizes that an array can have"),
        ({"shape": [1] * 9}, "at most 8 dimensions"),
        ({"shape": [1, 2]}, "expected integers [n]"),
        ({"dtype": 0}, "data type 0"),
        ({"dtype": 99}, "data type 99"),
        ({"dtype": 13}, "0 strings"),
        ({"dtype": 13, "bytes_val": [b"a", b"b"]}, "expected integers"),
        ({"dtype": 14, "bytes_val": [b"a", b"\xff"]}, "not UTF-8"),
    ],
)
def test_a_tensor_that_lies_is_an_error_of_its_instance(start, tensor, why):
    server, *_ = start()
    message = request(**tensor)
    message.instances.append(request().instances[0])
    reply = predict(server, message)
    assert [bool(e.error_code) for e in reply.error_msg] == [True, False]
    assert why in reply.error_msg[0].error_msg.decode()
    assert not reply.instances[0].items and reply.instances[1].items["text"].dtype == 13
    assert reply.servable_spec == message.servable_spec


def test_a_malformed_message_is_an_error_in_the_reply(start):
    server, *_ = start()
    reply = predict(server, None, b"\xff\xff\xff")
    assert len(reply.error_msg) == 1 and reply.error_msg[0].error_code and not reply.instances


def test_the_messages_are_those_of_the_proto_file(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = tmp_path / "set"
    folder = ROOT / "serving" / "api"
    assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={out}", "ms_service.proto"]) == 0
    (want,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    have = protocol.file_descriptor()
    for file in (want, have):  # protoc keeps the order of the text
        for message in file.message_type:
            message.field.sort(key=lambda field: field.number)
    assert have == want


def test_health_and_reflection(start):
    server, *_ = start()
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", protocol.SERVICE):
            assert stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30).status == 1
        database = ProtoReflectionDescriptorDatabase(channel)
        assert protocol.SERVICE in database.get_services()
        assert database.FindFileContainingSymbol(protocol.SERVICE) == protocol.file_descriptor()


# Many callers


def test_callers_share_batches(start):
    _, llm, runner, client = start(Gate())
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.generate, f"caller {i}", **GREEDY) for i in range(4)]
        waiting = threading.Event()
        while llm.pending < 4:
            waiting.wait(0.005)
        runner.open.set()
        assert [c.result().output_ids for c in calls] == [greedy(f"caller {i}") for i in range(4)]
    assert max(len(batch.logit_rows) for batch in runner.batches) >= 3


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_a_caller_who_leaves_frees_its_sequences(start, monkeypatch, how):
    cancelled = threading.Event()
    cancel = Handle.cancel
    monkeypatch.setattr(Handle, "cancel", lambda self: (cancel(self), cancelled.set()))
    server, llm, runner, client = start(Gate())
    if how == "deadline":
        with pytest.raises(ServeError, match="no answer in 2 s"):
            client.generate("Hello", timeout=2, max_tokens=50)
    else:
        with grpc.insecure_channel(server.address) as channel:
            call = channel.unary_unary(f"/{protocol.SERVICE}/Predict").future(request().SerializeToString())
            assert runner.entered.wait(30)
            call.cancel()
    assert cancelled.wait(30)
    runner.open.set()
    assert llm.on_engine(lambda engine: engine.blocks.free) == runner.num_blocks
    assert llm.pending == 0 and len(runner.batches) <= 1
    assert client.generate("Hello", **GREEDY).output_ids == greedy("Hello")


def test_a_step_that_fails_ends_its_request_and_not_the_server(start):
    _, _, runner, client = start()
    runner.fail_on = 300
    bad, good = client.generate([[300, 1], [5, 6]], **GREEDY)
    assert "token 300 is not liked" in bad.error and good.output_ids == greedy([5, 6])


def test_too_many_calls_at_once_are_told_so_and_health_still_answers(start):
    server, llm, runner, client = start(Gate(), max_calls=1)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.generate, "Hello", **GREEDY)
        assert runner.entered.wait(30)
        with pytest.raises(ServeError, match="too many calls at once"):
            client.generate("a")
        with grpc.insecure_channel(server.address) as channel:
            assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30).status == 1
        runner.open.set()
        assert first.result().output_ids == greedy("Hello")


# MindSpore Serving's own client


def old_python():
    """The Python 3.9 of make_client_env.sh: MINDSPEED_MS_CLIENT39 (its folder) or .venv39 in the checkout."""
    given = os.environ.get("MINDSPEED_MS_PYTHON39")
    python = (
        Path(given) if given else Path(os.environ.get("MINDSPEED_MS_CLIENT39", ROOT / ".venv39")) / "bin" / "python"
    )
    if not python.exists():
        pytest.skip("no Python 3.9 with mindspore-serving 2.0.2: tests/serving/make_client_env.sh .venv39")
    return str(python)


def test_the_real_client_gets_right_answers_and_right_errors(start):
    python = old_python()
    server, *_ = start()
    script = [python, str(HERE / "real_client.py"), server.address, "tiny"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout.splitlines()[-1])
    hello, ids = greedy("Hello"), greedy([5, 6, 7])
    for name in ("text", "bytes", "numpy scalars", "stop", "async", "version 1"):
        (items,) = got[name]
        assert items["output_ids"] == {"dtype": "int32", "shape": [6], "value": hello}, name
        assert items["text"] == library_tokenizer().decode(hello) and items["finish_reason"] == "length"
        assert items["completion_tokens"]["value"] == 6
    assert got["int32"][0]["output_ids"]["value"] == got["int64"][0]["output_ids"]["value"] == ids
    assert got["bool and seed"][0]["completion_tokens"]["value"] == 6
    assert got["logprobs"][0]["top_logprobs"]["shape"] == [6, 2]
    assert [i["output_ids"]["value"] for i in got["several"]] == [greedy(t) for t in ("Hello", "a", "你好", "b c")]
    good, empty, unknown, also = got["some bad"]
    assert good["output_ids"]["value"] == hello and also["output_ids"]["value"] == greedy("a")
    assert empty == {"error": "prompt: empty: expected some text"}
    assert unknown == {"error": "promt: unknown field; did you mean prompt?"}
    # A single error for a single instance is to this client a failed call: it returns no list.
    assert got["one bad"] == {"error": "temperature: -1.0: expected a number from 0 to 100"}
    assert [list(item) for item in got["all bad"]] == [["error"], ["error"]]
    assert got["none"] == {"error": "instances: 0: expected 1 to 1024"}
    assert got["servable"] == {"error": "servable 'other': unknown: expected 'tiny'"}
    assert got["method"] == {"error": "method 'generat': unknown: expected generate or chat"}
    assert got["version 2"] == {"error": "version 2: unknown: expected 1, or 0 for the newest"}
