"""The gRPC server: MindSpore Serving's Predict, health and reflection, over one LLM."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from mindspeed_ms.errors import MindSpeedError, RequestError, ServeError
from mindspeed_ms.serving.api import protocol
from mindspeed_ms.serving.api.requests import METHODS, fill, submit
from mindspeed_ms.serving.engine.llm import LLM, Handle, RequestOutput

# MindSpore Serving's status codes.
FAILED, INVALID_INPUTS, UNAVAILABLE = 1, 2, 4
VERSION = 1
MAX_MESSAGE = 512 << 20
MAX_INSTANCES = 1024
_SPARE_THREADS = 8  # for health, reflection and "busy", when every other thread waits for an answer

log = logging.getLogger("mindspeed_ms.serving")


class GrpcServer:
    """Takes an address at once, so that a used port is known before a model is loaded; answers after `start`."""

    def __init__(self, address: str = "127.0.0.1:5500", *, max_calls: int = 256) -> None:
        _check_free(address)
        options = [
            ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.so_reuseport", 0),  # else a second server on the port would silently share its calls
        ]
        self._server = grpc.server(ThreadPoolExecutor(max_calls + _SPARE_THREADS), options=options)
        try:
            self.port: int = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ServeError(f"grpc: {address}: cannot listen there: expected a free host:port or unix:path") from error
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{self.port}"
        self._calls = BoundedSemaphore(max_calls)
        self._health = health.HealthServicer()

    def start(self, llm: LLM, name: str) -> None:
        """Serve `llm` as servable `name`, version 1."""
        self._llm, self._name = llm, name
        # Bytes in, so that a malformed message gets an answer in the protocol and not a bare status.
        handler = grpc.unary_unary_rpc_method_handler(self._predict, response_serializer=_serialize)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(protocol.SERVICE, {"Predict": handler}),)
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (protocol.SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        for service in ("", protocol.SERVICE):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        self._server.start()

    def unhealthy(self) -> None:
        """Tell the watchers of the health service that this process should be replaced; calls still get errors."""
        for service in ("", protocol.SERVICE):
            self._health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)

    def stop(self, grace: float) -> None:
        """Take no new calls, give those in flight `grace` seconds, then cancel them."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace).wait()

    def _predict(self, data: bytes, context: grpc.ServicerContext) -> Any:
        reply = protocol.PredictReply()
        if not self._calls.acquire(blocking=False):
            return _failed(reply, UNAVAILABLE, "server: too many calls at once: expected a later try")
        try:
            request = protocol.PredictRequest.FromString(data)
            reply.servable_spec.CopyFrom(request.servable_spec)
            self._check(request)
            self._answer(request, reply, context)
        except DecodeError:
            return _failed(reply, INVALID_INPUTS, "request: malformed: expected a PredictRequest of ms_service.proto")
        except RequestError as error:
            return _failed(reply, INVALID_INPUTS, str(error))
        except Exception as error:  # callers of this protocol look for errors in the reply only
            log.exception("Predict failed")
            return _failed(reply, FAILED, f"server: {type(error).__name__}: {error}")
        finally:
            self._calls.release()
        return reply

    def _check(self, request: Any) -> None:
        spec = request.servable_spec
        if spec.name not in ("", self._name):
            raise RequestError(f"servable {spec.name!r}: unknown: expected {self._name!r}")
        if spec.method_name not in METHODS:
            raise RequestError(f"method {spec.method_name!r}: unknown: expected {' or '.join(METHODS)}")
        if spec.version_number not in (0, VERSION):
            raise RequestError(f"version {spec.version_number}: unknown: expected {VERSION}, or 0 for the newest")
        if not 1 <= len(request.instances) <= MAX_INSTANCES:
            raise RequestError(f"instances: {len(request.instances)}: expected 1 to {MAX_INSTANCES}")

    def _answer(self, request: Any, reply: Any, context: grpc.ServicerContext) -> None:
        started: list[Handle | MindSpeedError] = []
        for instance in request.instances:
            try:
                started.append(submit(self._llm, request.servable_spec.method_name, instance.items))
            except MindSpeedError as error:
                started.append(error)
        handles = [one for one in started if isinstance(one, Handle)]

        def cancel() -> None:  # a caller who has left or waited too long; after an answer it does nothing
            for handle in handles:
                handle.cancel()

        if not context.add_callback(cancel):
            cancel()
        errors: list[tuple[int, str]] = []
        for one in started:
            result = one.result() if isinstance(one, Handle) else one
            instance = reply.instances.add()
            if isinstance(result, RequestOutput) and result.finish_reason in ("stop", "length"):
                fill(instance, result)
                errors.append((0, ""))
            elif isinstance(result, RequestOutput):
                errors.append((FAILED, result.error or result.finish_reason))
            else:
                errors.append((INVALID_INPUTS, str(result)))
        if any(code for code, _ in errors):
            for code, text in errors:
                reply.error_msg.add(error_code=code, error_msg=text.encode())


def _failed(reply: Any, code: int, text: str) -> Any:
    """The whole call failed: one error and no instances."""
    del reply.instances[:]
    del reply.error_msg[:]
    reply.error_msg.add(error_code=code, error_msg=text.encode())
    return reply


def _serialize(reply: Any) -> bytes:
    data: bytes = reply.SerializeToString()
    return data


def _check_free(address: str) -> None:
    """Try the address with a plain socket first: gRPC prints pages about a used port, and names no reason."""
    if address.startswith("unix:"):
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ServeError(f"grpc: {address}: expected host:port (as 127.0.0.1:5500) or unix:path")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise ServeError(f"grpc: {address}: {error.strerror}: expected a free address; choose another port") from error
