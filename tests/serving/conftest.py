"""Shared by the serving tests: their helper module, and an LLM over a runner that needs no model."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def make_llm():
    """A function that starts an LLM over a HashRunner (returned with it) and closes it after the test."""
    from serving_fakes import HashRunner, files

    from mindspeed_ms.serving.engine.llm import LLM

    opened = []

    def make(runner=None, tokenizer=None, **options):
        runner = runner or HashRunner()
        opened.append(LLM.over(lambda: runner, tokenizer or files(), **options))
        return opened[-1], runner

    yield make
    for llm in opened:
        llm.close()


@pytest.fixture
def start(make_llm):
    """A function that serves an LLM over a HashRunner on a free port: (server, llm, runner, client)."""
    from mindspeed_ms.serving.api.grpc_server import GrpcServer
    from mindspeed_ms.serving.client import Client

    servers = []

    def begin(runner=None, **options):
        llm, runner = make_llm(runner)
        servers.append(GrpcServer("127.0.0.1:0", **options))
        servers[-1].start(llm, "tiny")
        return servers[-1], llm, runner, Client(servers[-1].address, timeout=30)

    yield begin
    for server in servers:
        server.stop(0)
