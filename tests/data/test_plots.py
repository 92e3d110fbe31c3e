"""The picture of a set: what is drawn, in which formats, and what stands in the way."""

import re
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindspeed_ms.data.inspect import BucketSummary, Inspection, SourceSummary
from mindspeed_ms.data.plots import histogram, plot_set, text_histogram
from mindspeed_ms.errors import ConfigError, DataError

SVG = "{http://www.w3.org/2000/svg}"


def inspection(
    lengths=((5, 10, 50), (40, 20, 700), (100, 2, 200)), sources=("a.txt",), boundaries=(64, 128), cleaning=()
):
    buckets = [BucketSummary(length, 10, 20, 8 * length, 0.2, 1 / len(boundaries)) for length in boundaries]
    share = 1 / max(1, len(sources))
    return Inspection(
        path="/sets/my-set",
        made_by="a test",
        mode="bucket",
        documents=32,
        rows=20,
        tokens=950,
        padding_share=0.2,
        padding_to_longest=0.75,
        verified=False,
        buckets=buckets,
        sources=[SourceSummary(name, 1, 100 * at + 1, 10, share) for at, name in enumerate(sources)],
        lengths=list(lengths),
        cleaning=dict(cleaning),
    )


def texts(path) -> list[str]:
    return ["".join(node.itertext()) for node in ElementTree.parse(path).iter(f"{SVG}text")]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 8))
def test_each_document_is_in_the_one_bar_that_holds_its_length(lengths, per_octave):
    values, counts = np.unique(lengths, return_counts=True)
    bars = histogram([(int(v), int(c), int(v * c)) for v, c in zip(values, counts, strict=True)], per_octave)
    for first, last, documents, tokens in bars:
        inside = [length for length in lengths if first <= length <= last]
        assert (documents, tokens) == (len(inside), sum(inside))
    assert all(a[1] + 1 == b[0] for a, b in zip(bars, bars[1:], strict=False))
    assert bars[0][2] and bars[-1][2]


def test_bars_end_at_powers_of_two_and_even_steps_between():
    ends = [bar[1] for bar in histogram([(1, 1, 1), (500, 1, 500)], per_octave=2)]
    assert ends == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]


def test_at_eight_steps_an_octave_no_bin_of_a_manifest_lies_across_a_bar():
    bars = histogram([(1, 1, 1), (1 << 20, 1, 1)], per_octave=8)
    assert [bar[1] for bar in bars] == [*range(1, 17), *(n << k for k in range(1, 17) for n in range(9, 17))]


def test_a_histogram_in_text_says_lengths_counts_and_where_rows_end():
    lines = text_histogram(inspection(), columns=10, mark="#")
    assert lines[0].split() == ["5-6", "#####", "10"]
    assert next(line for line in lines if line.split()[-1:] == ["20"]).split() == ["33-48", "##########", "20"]
    assert [line.split("  < ")[1] for line in lines if "<" in line] == ["row of 64", "row of 128"]
    assert len({line.index("<") for line in lines if "<" in line}) == 1


def test_the_rarest_length_still_has_a_mark_and_an_absent_one_has_none():
    lines = text_histogram(inspection(lengths=[(4, 1, 4), (16, 1, 16), (1000, 100000, 10**8)]), mark="#")
    assert [line.count("#") for line in lines][:2] == [1, 0]


def test_no_documents_no_lines():
    assert text_histogram(inspection(lengths=())) == []


def test_a_png_is_a_png_of_a_useful_size_with_something_on_it(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    plot_set(inspection(), tmp_path / "a.png")
    pixels = image.imread(tmp_path / "a.png")
    assert pixels.shape[0] >= 900 and pixels.shape[1] >= 1200
    assert 0.02 < (pixels[..., :3].min(axis=-1) < 0.9).mean() < 0.9


def test_the_picture_names_boundaries_shares_of_padding_and_sources(tmp_path):
    plot_set(inspection(sources=["web/中文.jsonl", "a$b$_{c.txt"]), tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert found.count("64") >= 2 and found.count("128") >= 2  # at a line and below a bar
    assert found.count("20.0%") >= 2
    assert {"web/中文.jsonl", "a$b$_{c.txt"} <= set(found)
    assert any(
        "my-set" in text and "20.0% padding" in text and "75.0% if padded to the longest" in text for text in found
    )


def test_of_many_sources_the_rest_is_one_bar(tmp_path):
    plot_set(inspection(sources=[f"part-{number}" for number in range(40)]), tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    assert "part-39" in found and "part-0" not in found and "28 more" in found


def test_the_picture_says_what_was_kept_which_copies_there_were_and_what_else_was_found(tmp_path):
    cleaning = {"documents_read": 7654, "exact_duplicates": 1234, "bad_json": 17, "too_long": 0, "no_text": 5}
    plot_set(inspection(cleaning=cleaning), tmp_path / "a.svg")
    found = texts(tmp_path / "a.svg")
    at = found.index("kept")
    assert found[at : at + 5] == ["kept", "exact duplicates", "near duplicates", "bad json", "no text"]
    assert {"32", "1,234", "17", "5"} <= set(found) and not {"too long", "7,654"} & set(found)


def test_bars_of_what_cleaning_found_are_as_long_as_its_counts(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, barh = [], Axes.barh
    monkeypatch.setattr(
        Axes, "barh", lambda self, y, width, **k: drawn.append(list(width)) or barh(self, y, width, **k)
    )
    plot_set(inspection(cleaning={"near_duplicates": 3, "too_short": 1, "empty": 9}), tmp_path / "a.svg")
    assert drawn == [
        [1],
        [32, 0, 3, 9, 1],
    ]  # tokens of the one source; kept, exact and near copies, the others by count


def test_of_many_buckets_none_is_named_over_another(tmp_path):
    plot_set(inspection(boundaries=range(64, 4160, 64)), tmp_path / "a.svg")
    assert texts(tmp_path / "a.svg").count("20.0%") == 0


@pytest.mark.parametrize("lengths", [(), ((1, 3, 3),), ((1 << 24, 1, 1 << 24),)], ids=["none", "one", "longest"])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_sets_at_the_limits_are_drawn_without_a_warning(tmp_path, lengths, suffix):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_set(inspection(lengths=lengths, sources=["中.txt"] if lengths else []), tmp_path / f"a{suffix}")
    assert (tmp_path / f"a{suffix}").stat().st_size > 1000


def test_the_same_set_gives_the_same_file_and_the_last_one_stays(tmp_path):
    for name in ("a.svg", "b.svg", "a.svg"):
        plot_set(inspection(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg"]


@pytest.mark.parametrize("name", ["plot.pdf", "plot", "plot.png.txt"])
def test_another_kind_of_file_is_an_error_that_names_the_kinds(tmp_path, name):
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / name}: a plot is written as .png or .svg")):
        plot_set(inspection(), tmp_path / name)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(DataError, match="absent/a.png: the plot cannot be written"):
        plot_set(inspection(), tmp_path / "absent" / "a.png")


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'mindspeed-ms\[data\]'"):
        plot_set(inspection(), tmp_path / "a.png")
