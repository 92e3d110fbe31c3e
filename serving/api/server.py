"""`serve`: load a model and answer until told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindspeed_ms.serving.api.grpc_server import GrpcServer
from mindspeed_ms.serving.engine.llm import LLM


def serve(
    bundle: str | Path | LLM,
    grpc: str = "127.0.0.1:5500",
    *,
    name: str | None = None,
    grace: float = 10.0,
    on_ready: Callable[[str, str], None] | None = None,
    **options: Any,
) -> None:
    """Serve a bundle (or model directory, GGUF file, LLM) over gRPC; returns after SIGTERM or SIGINT.

    grpc: host:port or unix:path, loopback by default. name: the servable's, by default the path's last part without a
    file's ending. grace: seconds that calls in flight get to finish; a second signal ends the process at once.
    on_ready(address, name) is called when calls are answered. options: LLM's. Raises ServeError if the address cannot
    be had, and LLM's errors.
    """
    server = GrpcServer(grpc)
    llm: LLM | None = None
    try:
        llm = bundle if isinstance(bundle, LLM) else LLM(bundle, **options)
        name = name or ("llm" if isinstance(bundle, LLM) else _name(Path(bundle).resolve()))
        stop = threading.Event()
        previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def asked(number: int, frame: object) -> None:
            stop.set()
            for each in previous:  # whoever signals again does not want to wait
                signal.signal(each, signal.SIG_DFL)

        for number in previous:
            signal.signal(number, asked)
        try:
            server.start(llm, name)
            if on_ready is not None:
                on_ready(server.address, name)
            # Not one wait without end: a signal just before it begins, or taken by another thread, would not end it.
            while not stop.wait(0.2):
                if llm.lost:
                    server.unhealthy()
        finally:
            server.stop(grace)
            for number, handler in previous.items():
                signal.signal(number, handler)
    finally:
        server.stop(0)
        if llm is not None and llm is not bundle:
            llm.close()


def _name(path: Path) -> str:
    # A folder may have dots in its name; a file has an ending.
    return path.stem if path.is_file() else path.name
