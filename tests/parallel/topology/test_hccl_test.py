"""Tables of hccl_test, and the α and β fitted to them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.hccl_test import fit, read_results, with_measured
from mindspeed_ms.parallel.topology.links import link_table
from mindspeed_ms.parallel.topology.load import load_cluster

HEADER = "the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5\n"
COLUMNS = "data_size(Bytes): |   aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"


def table(times, command="mpirun -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp32 -o sum -p 8", check="success"):
    rows = "".join(f"{n:<17} | {us:<14.2f} | {n / us / 1e3:<20.5f} | {check}\n" for n, us in times)
    return f"# {command}\n{HEADER}{COLUMNS}{rows}"


def refused(text, **options):
    with pytest.raises(ConfigError) as error:
        read_results(text, "t.txt", **options)
    return str(error.value)


def test_rows_operation_and_ranks_are_read():
    found = read_results(table([(8192, 20.0), (1 << 20, 50.5)]), "t.txt")
    assert (found.operation, found.ranks, found.failed) == ("all_reduce", 8, 0)
    assert found.rows == ((8192, pytest.approx(20e-6)), (1 << 20, pytest.approx(50.5e-6)))


def test_avg_time_is_aveg_time_and_null_is_not_failed():
    text = table([(8192, 20.0)], check="NULL").replace("aveg", "avg")
    assert len(read_results(text, "t.txt").rows) == 1


def test_blanks_may_stand_for_bars():
    text = table([(8192, 20.0), (16384, 21.0)]).replace("|", " ")
    assert len(read_results(text, "t.txt").rows) == 2


@pytest.mark.parametrize(
    "dress",
    [
        lambda text: "".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines()),
        lambda text: "".join(f"| {line} |\n" for line in text.splitlines()),
        lambda text: text.replace("success", "\x1b[32msuccess\x1b[0m"),
        lambda text: text.replace("21.00", "2.1e+01"),
    ],
    ids=["mpirun tags", "frames", "colours", "exponent"],
)
def test_no_row_is_lost_whatever_its_dress(dress):
    text = table([(8192, 20.0), (16384, 21.0)])
    assert read_results(dress(text), "t.txt") == read_results(text, "t.txt")


@pytest.mark.parametrize("time", ["nan", "inf", "0.0", "-3"])
def test_a_time_that_cannot_be_is_refused(time):
    assert "t.txt:4: 8192 bytes in " in refused(table([(8192, 20.0), (16384, 21.0)]).replace("20.00", time))


def test_tables_of_different_measurements_are_not_mixed():
    text = table([(8192, 20.0), (16384, 21.0)])
    assert "several operations, all_gather and all_reduce" in refused(text + text.replace("all_reduce", "all_gather"))
    assert "several numbers of ranks, 4 and 8" in refused(text + text.replace("-n 8", "-n 4"))
    assert len(read_results(text + text, "t.txt").rows) == 4


def test_one_small_message_says_nothing_of_a_bandwidth():
    with pytest.raises(ConfigError, match="one small size does not tell latency from bandwidth"):
        fit(read_results(table([(8192, 20.0)]), "t.txt"), link_table()["HCCS"], "t.txt")


def test_rows_whose_check_failed_are_left_out():
    text = table([(8192, 20.0)]) + "local rank_id 3, check result failed, 9 | 1.0 | 1.0 | failed\n"
    text += "16384             | 21.00          | 0.78                 | failed\n"
    found = read_results(text, "t.txt")
    assert (len(found.rows), found.failed) == (1, 1)
    assert "no row of the table passed its check (2 failed)" in refused(table([(8192, 20.0), (9, 1.0)], check="failed"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mpirun: command not found", "found no header"),
        (table([(8192, 20.0)], command="ls"), "which operation was measured?"),
        (table([(8192, 20.0)], command="./bin/all_gather_test"), "how many ranks took part?"),
        (table([(8192, 20.0)], check="maybe"), "t.txt:4: check_result is 'maybe'"),
        (table([(8192, 0.001)]), "expected numbers above 0"),
    ],
)
def test_what_is_missing_or_wrong_is_named(text, message):
    assert message in refused(text)


# Times by the formulas of HCCL's user guide, written out here.
FORMULAS = {
    ("all_reduce", "mesh"): lambda p, n, a, b: 2 * a + 2 / p * n * b,
    ("all_reduce", "ring"): lambda p, n, a, b: 2 * (p - 1) * a + 2 * (p - 1) / p * n * b,
    ("all_gather", "ring"): lambda p, n, a, b: (p - 1) * a + (p - 1) / p * n * b,
    ("reduce_scatter", "mesh"): lambda p, n, a, b: a + n / p * b,
}


@pytest.mark.parametrize(("operation", "algorithm"), FORMULAS)
@pytest.mark.parametrize("ranks", [2, 6, 8])
def test_the_fit_gives_back_the_link_that_made_the_times(operation, algorithm, ranks):
    alpha, bandwidth = 7e-6, 21e9
    sizes = [8192 << step for step in range(14)]
    times = [(n, FORMULAS[operation, algorithm](ranks, n, alpha, 1 / bandwidth) * 1e6) for n in sizes]
    text = (
        f"mpirun -n {ranks} {operation}_test\n"
        + COLUMNS
        + "".join(f"{n} | {us:.6f} | 1.0 | success\n" for n, us in times)
    )
    found = fit(read_results(text, "t"), link_table("910B3")["HCCS"], "t", algorithm)
    assert found.latency == pytest.approx(alpha, rel=1e-3)
    assert found.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert found.worst < 1e-3


def test_what_was_measured_takes_the_place_of_the_default():
    cluster = load_cluster("910b")
    times = [(n, FORMULAS["all_reduce", "mesh"](8, n, 10e-6, 1 / 20e9) * 1e6) for n in (1 << 14, 1 << 20, 1 << 26)]
    found = with_measured(cluster, read_results(table(times), "t.txt"), "HCCS", "t.txt")
    assert found.links["HCCS"].bandwidth == pytest.approx(20e9, rel=1e-2)
    assert found.links["HCCS"].source == "measured: all_reduce of 8, 3 rows of t.txt"
    assert found.links["ROCE"] == cluster.links["ROCE"] and cluster.links["HCCS"].bandwidth == 28e9


def test_alg_bandwidth_may_be_in_gib_or_gb():
    """Two published tables: 8192 B in 764.55 us as 0.00998 (GiB/s), 524288 B in 1000 us as 0.52429 (GB/s)."""
    for row in ("8192 | 764.55 | 0.00998 | success", "524288 | 1000.00 | 0.52429 | success"):
        assert len(read_results(f"mpirun -n 8 all_reduce_test\n{COLUMNS}{row}\n", "t").rows) == 1


def test_times_that_do_not_grow_say_nothing_of_a_bandwidth():
    results = read_results(table([(8192, 900.0), (1 << 20, 850.0), (1 << 22, 800.0)]), "t.txt")
    with pytest.raises(ConfigError, match=r"t.txt: the times do not grow with the size; measure messages up to 1 GB"):
        fit(results, link_table()["HCCS"], "t.txt")


def test_an_algorithm_that_does_not_do_it_is_refused():
    results = read_results(table([(8192, 9.0)]), "t.txt")
    with pytest.raises(ConfigError, match="'pairwise' cannot do all_reduce of 8"):
        fit(results, link_table()["HCCS"], "t.txt", "pairwise")
    with pytest.raises(ConfigError, match="'FOO' is no kind of link"):
        with_measured(load_cluster("910b"), results, "FOO")


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(
        st.text(max_size=150),
        st.lists(
            st.sampled_from(
                [*table([(8192, 20.0), (0, 3.0)]).splitlines(), "1 | 2 | 3 | success", "9" * 20 + " | 1 | 1 | NULL"]
            ),
            max_size=8,
        ).map("\n".join),
    )
)
def test_any_text_is_a_table_or_refused(text):
    try:
        results = read_results(text, "t")
        assert fit(results, link_table()["HCCS"], "t").bandwidth > 0
    except ConfigError:
        pass
