"""The ordered map of pool.py over the actors of a Ray cluster, for corpora that one machine is too small for."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any

from mindspeed_ms.data.pool import AHEAD, Result, Work, ordered
from mindspeed_ms.errors import ConfigError, DataError

_START_SECONDS = 60


class RayPool:
    """`with RayPool(factory, workers, address) as pool: for result in pool.map(items)`.

    factory: picklable; called once in each actor, returns the function that is mapped. workers: number of actors, each
    of which takes a CPU; None: one for each CPU of the cluster. address: of a running cluster ("auto",
    "ray://host:10001"); None starts one on this machine, which ends with the pool. Every machine of a cluster needs
    this package. Results are those of Pool, in the same order. Raises ConfigError when Ray is not installed, DataError
    when the cluster cannot be reached, or has not started all of the actors within a minute.
    """

    def __init__(self, factory: Callable[[], Work], workers: int | None, address: str | None = None) -> None:
        self._ray = _import_ray()
        self._connected = False
        self._sequence = 0
        self._on_their_way: dict[Any, tuple[int, int]] = {}  # reference: number of the item, index of the actor
        self._actors: list[Any] = []
        self._connect(workers, address)
        actor = self._ray.remote(num_cpus=1, max_restarts=0)(_Actor)
        try:
            count = workers or max(1, int(self._ray.cluster_resources().get("CPU", 0)))
            self._limit = count + AHEAD
            self._actors += [actor.remote(factory) for _ in range(count)]
            self._await_start()
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

    def _await_start(self) -> None:
        """An actor that no machine has a CPU for waits without a word, and so would whoever asks it."""
        started = [actor.started.remote() for actor in self._actors]
        ready, waiting = self._ray.wait(started, num_returns=len(started), timeout=_START_SECONDS)
        if waiting:
            there = self._ray.cluster_resources().get("CPU", 0)
            raise DataError(
                f"ray: {len(ready)} of {len(started)} workers began within {_START_SECONDS} s; each takes a CPU, "
                f"and the cluster has {there:g}; give fewer workers, or wait until other jobs leave it"
            )

    def _connect(self, workers: int | None, address: str | None) -> None:
        if self._ray.is_initialized():
            return  # by the program that called us: its cluster is used, and stays
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        env = {"TOKENIZERS_PARALLELISM": "false"}
        if address is None:
            # The package may be on this program's path only.
            env["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
            options |= {"num_cpus": workers, "include_dashboard": False}  # None: as many as this machine has
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
        self._factory = factory
        self._work: Work | None = None

    def started(self) -> None:
        """Answers as soon as the actor has its CPU, however long the factory may take."""

    def work(self, item: Any) -> Result:
        try:
            if self._work is None:
                self._work = self._factory()
            return Result(self._work(item))
        except Exception as error:  # noqa: BLE001 - told to the caller as one line
            return Result.of(error)


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("engine ray needs Ray, which is not installed; run pip install 'mindspeed-ms[ray]'") from None
    return ray
