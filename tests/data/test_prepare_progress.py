"""What `prepare` reports while it works: phases in their order, each from what is done already to its end."""

import gzip

import pytest
from data_corpus import sentences, write_tokenizer

from mindspeed_ms.config.data import PrepareConfig
from mindspeed_ms.data.prepare import prepare
from mindspeed_ms.errors import DataError

CONFIG = PrepareConfig.parse({"arrange": {"max_length": 64}, "shard_tokens": 4096})


@pytest.fixture
def place(tmp_path):
    write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("\n".join(sentences(20_000)))
    (tmp_path / "corpus" / "b.txt").write_text("\n".join(sentences(300, seed=1)))
    return tmp_path


def reports(place):
    """The manifest, and what was reported, by phase and unit."""
    calls, phases = [], {}
    tokenizer = place / "tokenizer.json"
    progress = lambda *call: calls.append(call)  # noqa: E731
    manifest = prepare([place / "corpus"], place / "set", tokenizer, CONFIG, workers=1, progress=progress)
    for phase, done, total, unit in calls:
        phases.setdefault((phase, unit), []).append((done, total))
    assert [phase for phase, *_ in calls] == [phase for (phase, _), steps in phases.items() for _ in steps]
    return manifest, phases


def test_each_phase_goes_from_nothing_to_all_of_it(place):
    manifest, phases = reports(place)
    assert list(phases) == [("tokenize", "bytes"), ("arrange", "segments"), ("write", "rows")]
    size = sum(path.stat().st_size for path in (place / "corpus").iterdir())
    segments = max(len(bucket.shards) for bucket in manifest.buckets)
    assert segments > 2
    for steps, whole in zip(phases.values(), (size, segments, manifest.rows), strict=True):
        assert {total for _, total in steps} == {whole}
        assert steps[0][0] == 0 and steps[-1][0] == whole
        done = [done for done, _ in steps]
        assert done == sorted(done) and len(set(done)) > 2


def test_what_goes_on_begins_where_the_earlier_run_was(place):
    broken = place / "corpus" / "c.txt.gz"
    packed = gzip.compress("\n".join(sentences(50, seed=2)).encode())
    broken.write_bytes(bytes(100))
    with pytest.raises(DataError, match="c.txt.gz"):
        reports(place)
    broken.write_bytes(packed)
    _, phases = reports(place)
    done, total = phases["tokenize", "bytes"][0]
    assert 0.5 * total < done < total


def test_of_a_complete_set_nothing_is_reported(place):
    reports(place)
    assert reports(place)[1] == {}
