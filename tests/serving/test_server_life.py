"""A server's life: its address, signals, and what it says of itself when its device fails."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serving_fakes import GREEDY, greedy

from mindspeed_ms.errors import RequestError, ServeError
from mindspeed_ms.serving.api import serve
from mindspeed_ms.serving.api.grpc_server import GrpcServer
from mindspeed_ms.serving.client import Client

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def test_a_used_port_is_one_clear_line_before_anything_is_loaded(start):
    server, *_ = start()
    with pytest.raises(ServeError, match=rf"^grpc: {server.address}: Address already in use: expected a free address"):
        serve("/there/is/no/model", server.address)


@pytest.mark.parametrize("address", ["5500", "127.0.0.1:x", "127.0.0.1:99999", ":5500"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ServeError, match=r"expected host:port"):
        GrpcServer(address)


def test_a_unix_socket_serves_too(make_llm, tmp_path):
    llm, _ = make_llm()
    server = GrpcServer(f"unix:{tmp_path}/s")
    server.start(llm, "tiny")
    assert Client(f"unix:{tmp_path}/s", timeout=30).generate("Hello", **GREEDY).output_ids == greedy("Hello")
    server.stop(0)


SERVER = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from serving_fakes import HashRunner, files
from mindspeed_ms.serving.api import serve
from mindspeed_ms.serving.engine.llm import LLM
class Slow(HashRunner):
    def step(self, batch):
        print("step", flush=True)
        sys.stdin.readline()
        return super().step(batch)
llm = LLM.over(Slow, files())
serve(llm, "127.0.0.1:0", name="tiny", on_ready=lambda address, name: print(address, name, flush=True))
llm.close()
print("closed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_after_the_calls_in_flight(number):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
    with subprocess.Popen([sys.executable, "-c", SERVER, str(HERE)], **pipes) as process, ThreadPoolExecutor(1) as pool:
        try:
            address, name = process.stdout.readline().split()
            call = pool.submit(Client(address, name, timeout=30).generate, "Hello", temperature=0.0, max_tokens=2)
            assert process.stdout.readline() == "step\n"
            process.send_signal(number)
            while True:  # new calls are refused once the signal has arrived
                try:
                    with grpc.insecure_channel(address) as channel:
                        health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
                except grpc.RpcError:
                    break
            process.stdin.write("\n\n")
            process.stdin.flush()
            assert call.result().output_ids == greedy("Hello", 2)
            assert process.stdout.readline() == "step\n" and process.stdout.readline() == "closed\n"
            assert process.wait(30) == 0
        finally:
            process.kill()


LOST_SERVER = SERVER.replace(
    """        print("step", flush=True)
        sys.stdin.readline()
        return super().step(batch)""",
    """        from mindspeed_ms.errors import DeviceLostError
        raise DeviceLostError("out of memory; restart the process")""",
)


def test_a_server_whose_device_failed_for_good_says_so_to_its_watchers():
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
    }
    with subprocess.Popen([sys.executable, "-c", LOST_SERVER, str(HERE)], **pipes) as process:
        try:
            address, name = process.stdout.readline().split()
            with grpc.insecure_channel(address) as channel:
                watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
                assert next(watched).status == 1
                with pytest.raises(RequestError, match="restart the process"):
                    Client(address, name, timeout=30).generate("Hello", max_tokens=2)
                assert next(watched).status == 2  # NOT_SERVING
        finally:
            process.kill()
