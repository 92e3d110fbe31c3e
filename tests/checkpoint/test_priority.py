"""The background takes time that nobody wants, until somebody waits or it has lasted too long."""

import os
import threading

import numpy as np
import pytest

from mindspeed_ms.checkpoint import store as store_module
from mindspeed_ms.checkpoint.files import Files
from mindspeed_ms.checkpoint.store import CheckpointStore

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="a system without idle threads")


class Held(Files):
    """The first write waits until it is let go."""

    def __init__(self):
        self.writing, self.go = threading.Event(), threading.Event()

    def pwrite(self, handle, data, offset):
        self.writing.set()
        assert self.go.wait(60)
        super().pwrite(handle, data, offset)


def policies():
    found = (thread for thread in threading.enumerate() if thread.name.startswith("checkpoint"))
    return [os.sched_getscheduler(thread.native_id) for thread in found]


def test_it_steps_aside_and_hurries_after_a_while(tmp_path, monkeypatch):
    files = Held()
    before = os.sched_getscheduler(0), os.sched_getaffinity(0)
    with CheckpointStore(tmp_path, files=files) as store:
        store.save(1, {"a": np.zeros(100, np.float32)}, {})
        assert files.writing.wait(60)
        store.poll()
        assert len(policies()) == 2 and set(policies()) == {os.SCHED_IDLE}
        monkeypatch.setattr(store_module, "_PATIENCE", 0.0)
        store.poll()
        assert len(policies()) == 2 and set(policies()) == {os.SCHED_OTHER}
        files.go.set()
        assert [saved.step for saved in store.wait()] == [1]
    assert (os.sched_getscheduler(0), os.sched_getaffinity(0)) == before and policies() == []


def test_it_hurries_when_somebody_waits(tmp_path):
    files = Held()
    with CheckpointStore(tmp_path, files=files) as store:
        store.save(1, {"a": np.zeros(100, np.float32)}, {})
        assert files.writing.wait(60)
        seen = []

        def let_go():
            while not seen or set(seen[-1]) != {os.SCHED_OTHER}:
                seen.append(policies())
            files.go.set()

        helper = threading.Thread(target=let_go)
        helper.start()
        store.wait()
        helper.join()
        assert set(seen[-1]) == {os.SCHED_OTHER}
