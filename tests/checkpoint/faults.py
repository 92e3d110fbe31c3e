"""File systems that fail: one with an error at the nth operation, one that remembers all it did and can lose power."""

import errno
import os
import random
from collections import defaultdict

from mindspeed_ms.checkpoint.files import Files

CHANGES = ("open_new", "pwrite", "fsync", "fsync_folder", "rename", "unlink")


class Failing(Files):
    """Raises `number` at the `at`th of the operations named (from 0), and `always` from then on."""

    def __init__(self, number, at=0, operations=CHANGES, always=False):
        self.number, self.at, self.always = number, at, always
        self.count, self.operations = 0, operations

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in CHANGES + ("make_folder", "open_lock", "pread") or name not in self.operations:
            return found

        def call(*values, **options):
            count, self.count = self.count, self.count + 1
            if count == self.at or (self.always and count > self.at):
                raise OSError(self.number, os.strerror(self.number))
            return found(*values, **options)

        return call


class Recording(Files):
    """A real file system, and the list of what changed it, as (operation, values)."""

    def __init__(self):
        self.log, self._names = [], {}

    def open_new(self, path, *, direct=False):
        handle = super().open_new(path, direct=direct)
        self._names[handle] = path.name
        self.log.append(("create", path.name))
        return handle

    def pwrite(self, handle, data, offset):
        super().pwrite(handle, data, offset)
        self.log.append(("write", self._names[handle], offset, bytes(data)))

    def fsync(self, handle):
        super().fsync(handle)
        self.log.append(("fsync", self._names[handle]))

    def fsync_folder(self, path):
        super().fsync_folder(path)
        self.log.append(("fsync_folder",))

    def rename(self, old, new):
        super().rename(old, new)
        for handle, name in self._names.items():
            if name == old.name:
                self._names[handle] = new.name
        self.log.append(("rename", old.name, new.name))

    def unlink(self, path):
        super().unlink(path)
        self.log.append(("unlink", path.name))


class _File:
    def __init__(self):
        self.synced, self.pending = bytearray(), []

    def content(self, data):
        """What of the writes that were not synced is there: all, none (zeros), or torn halves."""
        found = bytearray(self.synced)
        for offset, piece in self.pending:
            found.extend(bytes(max(0, offset + len(piece) - len(found))))
            keep = {"all": len(piece), "none": 0, "torn": len(piece) // 2}[data]
            found[offset : offset + keep] = piece[:keep]
        return bytes(found)


def after_power_cut(log, data, names, seed=0):
    """{name: content} of a folder after these operations and a power cut.

    data: of what was not synced, "all", "none" or "torn". names: of the changes to the folder since it was last synced,
    "all", "none" or "some", in any case each name as some order of the file system may leave it.
    """
    durable, present, pending = {}, {}, []
    for operation, *values in log:
        if operation == "create":
            present[values[0]] = _File()
            pending.append((values[0], present[values[0]]))
        elif operation == "write":
            present[values[0]].pending.append((values[1], values[2]))
        elif operation == "fsync":
            file = present[values[0]]
            file.synced, file.pending = bytearray(file.content("all")), []
        elif operation == "rename":
            file = present.pop(values[0])
            present[values[1]] = file
            pending += [(values[0], None), (values[1], file)]
        elif operation == "unlink":
            del present[values[0]]
            pending.append((values[0], None))
        elif operation == "fsync_folder":
            durable, pending = dict(present), []
    if names == "all":
        durable = dict(present)
    elif names == "some":  # of each name any of its states since
        states = defaultdict(list)
        for name, file in pending:
            states[name].append(file)
        for name, files in states.items():
            durable[name] = random.Random(f"{seed} {name}").choice([durable.get(name), *files])
    return {name: file.content(data) for name, file in durable.items() if file is not None}


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
