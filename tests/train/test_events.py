"""Event files: what TensorBoard itself reads of them."""

import math
import struct

import pytest

from mindspeed_ms.errors import TrainError
from mindspeed_ms.train.events import EventWriter, crc32c


@pytest.mark.parametrize(
    ("data", "crc"),  # RFC 3720, appendix B.4
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_checksum_is_that_of_the_standard(data, crc):
    assert crc32c(data) == crc


def tensorboard(folder):
    """Tag: [(step, value, wall time)], as TensorBoard shows them."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value, event.wall_time) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


@pytest.mark.peer
def test_tensorboard_reads_every_value_step_and_time(tmp_path):
    values = [1.5, -2e-30, 3e38, 0.0, 1 / 3, 12345678.0]
    steps = [0, 1, 127, 128, 16384, 2**40]
    with EventWriter(tmp_path / "events") as writer:
        for step, value in zip(steps, values, strict=True):
            writer.scalars(step, {"train/loss": value, "Größe 大": -value}, wall_time=1e9 + step / 8)
    read = tensorboard(tmp_path / "events")
    rounded = [struct.unpack("<f", struct.pack("<f", value))[0] for value in values]
    times = [1e9 + step / 8 for step in steps]
    assert read == {
        "train/loss": list(zip(steps, rounded, times, strict=True)),
        "Größe 大": [(step, -value, time) for step, value, time in zip(steps, rounded, times, strict=True)],
    }


@pytest.mark.peer
def test_numbers_without_a_finite_float32_are_kept_as_what_they_are(tmp_path):
    with EventWriter(tmp_path) as writer:
        for step, value in enumerate([math.nan, math.inf, -math.inf, 1e300, -1e300]):
            writer.scalars(step, {"loss": value})
    read = [value for _, value, _ in tensorboard(tmp_path)["loss"]]
    assert math.isnan(read[0]) and read[1:] == [math.inf, -math.inf, math.inf, -math.inf]


@pytest.mark.peer
def test_a_resumed_run_does_not_show_steps_twice(tmp_path):
    """Three parts within one second: the second goes on after step 4, the third after step 2."""
    for part, (first, last) in enumerate([(1, 6), (5, 8), (3, 9)]):
        with EventWriter(tmp_path, first_step=first if part else None) as writer:
            for step in range(first, last + 1):
                writer.scalars(step, {"loss": 100.0 * part + step})
    read = [(step, value) for step, value, _ in tensorboard(tmp_path)["loss"]]
    assert read == [(1, 1.0), (2, 2.0), *((step, 200.0 + step) for step in range(3, 10))]


@pytest.mark.peer
def test_what_was_written_before_a_crash_is_read(tmp_path):
    with EventWriter(tmp_path) as writer:
        for step in range(5):
            writer.scalars(step, {"loss": float(step)})
    content = writer.path.read_bytes()
    writer.path.write_bytes(content[:-7])
    assert [step for step, _, _ in tensorboard(tmp_path)["loss"]] == [0, 1, 2, 3]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainError, match=r"file/events: no event file can be made there \(Not a directory\)"):
        EventWriter(tmp_path / "file" / "events")
