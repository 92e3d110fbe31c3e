"""The ordered map of pool.py over the actors of a Ray cluster, for corpora that one machine is too small for."""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from mindspeed_ms.data.pool import AHEAD, Result, Work, ordered
from mindspeed_ms.errors import ConfigError, DataError


class RayPool:
    """`with RayPool(factory, workers, address) as pool: for result in pool.map(items)`.

    factory: picklable; called once in each actor, returns the function that is mapped. workers: number of actors, each
    of which takes a processor. address: of a running cluster ("auto", "ray://host:10001"); None starts one on this
    machine, which ends with the pool. Every machine of a cluster needs this package. Results are those of Pool, in
    the same order. Raises ConfigError when Ray is not installed, DataError when the cluster cannot be reached.
    """

    def __init__(self, factory: Callable[[], Work], workers: int, address: str | None = None) -> None:
        self._ray = _import_ray()
        self._connected = False
        self._limit = workers + AHEAD
        self._sequence = 0
        self._on_their_way: dict[Any, tuple[int, int]] = {}  # reference: number of the item, index of the actor
        self._actors: list[Any] = []
        self._connect(workers, address)
        actor = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        try:
            self._actors += [actor.remote(factory) for _ in range(workers)]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RayPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the actors, and the cluster if it was started for this pool."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        self._on_their_way = {}
        if self._connected:
            self._ray.shutdown()
            self._connected = False

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """The function's result for each item, in order; errors as from `Pool.map`.

        Raises DataError when an actor or its machine is lost.
        """
        return ordered(items, self._limit, self._send, self._receive)

    def _connect(self, workers: int, address: str | None) -> None:
        if self._ray.is_initialized():
            return  # by the program that called us: its cluster is used, and stays
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        env = {"TOKENIZERS_PARALLELISM": "false"}
        if address is None:
            # The package may be on this program's path only.
            env["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
            options |= {"num_cpus": workers, "include_dashboard": False}
        else:
            _reach(address)
            options["address"] = address
        try:
            self._ray.init(**options, runtime_env={"env_vars": env})
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _no_cluster(address, error) from None
        self._connected = True

    def _send(self, item: Any) -> int:
        self._sequence += 1
        loads = [0] * len(self._actors)
        for _, actor in self._on_their_way.values():
            loads[actor] += 1
        least = loads.index(min(loads))
        reference = self._actors[least].work.remote(item)
        self._on_their_way[reference] = self._sequence, least
        return self._sequence

    def _receive(self) -> list[tuple[int, Result]]:
        """What has arrived, after waiting for the first."""
        ready, _ = self._ray.wait(list(self._on_their_way), num_returns=1)
        return [(self._on_their_way.pop(reference)[0], self._get(reference)) for reference in ready]

    def _get(self, reference: Any) -> Result:
        try:
            result: Result = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            return Result(
                error=("DataError", f"a Ray actor was lost ({line[:200]}); run the same command again to go on")
            )
        return result


def _reach(address: str) -> None:
    """Ray itself tries for minutes where nobody answers. Raises DataError."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and the like, which Ray looks up
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> DataError:
    line = (str(error).splitlines() or [""])[0][:200]
    return DataError(f"ray: no cluster at {address or 'this machine'} ({line}); start one, or take the engine local")


class _Actor:
    """One worker; the error of the factory is the answer to every item."""

    def __init__(self, factory: Callable[[], Work]) -> None:
        try:
            self._work: Work = factory()
        except Exception as error:  # noqa: BLE001 - told to the caller as one line
            self._work = functools.partial(_again, error)

    def work(self, item: Any) -> Result:
        try:
            return Result(self._work(item))
        except Exception as error:  # noqa: BLE001 - told to the caller as one line
            return Result.of(error)


def _again(error: Exception, item: Any) -> Any:
    raise error


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("engine ray needs Ray, which is not installed; run pip install 'mindspeed-ms[ray]'") from None
    return ray
