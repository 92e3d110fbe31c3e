"""Rings against brute force and networkx, on shipped topologies and on random ones."""

import itertools

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindspeed_ms.parallel.topology.cluster import Server
from mindspeed_ms.parallel.topology.hamilton import narrowest, widest_cycle, widest_path
from mindspeed_ms.parallel.topology.links import FAST, HOST, link_table
from mindspeed_ms.parallel.topology.load import load_cluster
from mindspeed_ms.parallel.topology.plot import graph
from mindspeed_ms.parallel.topology.ring_size import ring_size, ring_times
from mindspeed_ms.parallel.topology.rings import find_rings


def symmetric(count, draw):
    rows = [[0.0] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            rows[a][b] = rows[b][a] = draw()
    return rows


@st.composite
def widths(draw, least=1, most=7):
    count = draw(st.integers(least, most))
    return symmetric(count, lambda: float(draw(st.sampled_from([1, 1, 1, 2, 3]))))


@st.composite
def servers(draw, most=8, words=("HCCS", "SYS", "PIX", "SIO")):
    count = draw(st.integers(1, most))
    kinds = [["X"] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            kinds[a][b] = kinds[b][a] = draw(st.sampled_from(words))
    return Server("drawn", tuple(range(count)), tuple(map(tuple, kinds)))


@settings(max_examples=40, deadline=None)
@given(widths(), st.booleans())
def test_no_order_has_a_wider_narrowest_link(rows, closed):
    order, exact = (widest_cycle if closed else widest_path)(rows)
    assert exact and sorted(order) == list(range(len(rows)))
    best = max(narrowest(rows, other, closed) for other in itertools.permutations(range(len(rows))))
    assert narrowest(rows, order, closed) == best


def test_a_ring_of_16_that_only_one_order_has_is_found():
    # Wide links along one hidden ring, narrow ones elsewhere; the hidden order is a step of 7 modulo 16.
    rows = [[2.0 if (a - b) % 16 in (7, 9) else 1.0 for b in range(16)] for a in range(16)]
    order, exact = widest_cycle(rows)
    assert exact and narrowest(rows, order, True) == 2.0


def test_a_petersen_graph_has_a_wide_path_but_no_wide_ring():
    found = networkx.petersen_graph()
    rows = [[2.0 if found.has_edge(a, b) else 1.0 for b in range(10)] for a in range(10)]
    assert narrowest(rows, widest_path(rows)[0], False) == 2.0
    cycle, exact = widest_cycle(rows)
    assert exact and narrowest(rows, cycle, True) == 1.0


def test_above_16_devices_a_ring_is_still_one_and_says_if_it_may_not_be_the_widest():
    hidden = networkx.random_regular_graph(5, 40, seed=3)
    rows = [[2.0 if hidden.has_edge(a, b) else 1.0 for b in range(40)] for a in range(40)]
    order, exact = widest_cycle(rows)
    assert sorted(order) == list(range(40))
    assert exact == (narrowest(rows, order, True) == 2.0)
    two = networkx.disjoint_union(networkx.complete_graph(20), networkx.complete_graph(20))
    rows = [[2.0 if two.has_edge(a, b) else 1.0 for b in range(40)] for a in range(40)]
    assert widest_cycle(rows) == (tuple(range(40)), True)


@settings(max_examples=40, deadline=None)
@given(servers())
def test_rings_are_the_components_of_fast_links(server):
    links = link_table()
    rings = find_rings(server, links)
    words = {word for row in server.kinds for word in row} - {"X"}
    fast = words & set(FAST) or set(sorted(words, key=lambda word: (-links[word].bandwidth, HOST.index(word)))[:1])
    found = networkx.Graph()
    found.add_nodes_from(range(len(server.devices)))
    found.add_edges_from(
        (a, b) for a, b in itertools.combinations(range(len(server.devices)), 2) if server.kinds[a][b] in fast
    )
    assert {frozenset(ring.slots) for ring in rings} == set(map(frozenset, networkx.connected_components(found)))
    for ring in rings:
        pairs = list(itertools.pairwise(ring.slots)) + ([(ring.slots[-1], ring.slots[0])] if ring.closed else [])
        speeds = [links[server.kinds[a][b]].bandwidth for a, b in pairs if a != b]
        assert ring.narrowest.bandwidth == min(speeds, default=float("inf"))
        assert ring.mesh == all(
            server.kinds[a][b] in fast and not links[server.kinds[a][b]].shared
            for a, b in itertools.combinations(ring.slots, 2)
        )


def test_a_chain_is_a_ring_that_does_not_close():
    kinds = (("X", "HCCS", "SYS"), ("HCCS", "X", "HCCS"), ("SYS", "HCCS", "X"))
    [ring] = find_rings(Server("chain", (4, 5, 6), kinds), link_table())
    assert ring.slots in ((0, 1, 2), (2, 1, 0))
    assert (ring.closed, ring.mesh, ring.narrowest.kind) == (False, False, "HCCS")


@pytest.mark.parametrize(
    ("preset", "sets", "mesh"),
    [
        ("910a", [range(4), range(4, 8)], True),
        ("910b", [range(8)], True),
        ("910b-box16", [range(8), range(8, 16)], True),
        ("a3", [range(16)], False),
    ],
)
def test_rings_of_the_presets(preset, sets, mesh):
    rings = find_rings(load_cluster(preset))
    assert [sorted(ring.slots) for ring in rings] == [list(part) for part in sets]
    assert all(ring.mesh == mesh and ring.closed and ring.exact for ring in rings)


def test_rings_of_a_cluster_are_those_of_each_server():
    rings = find_rings(load_cluster("910a", 3))
    assert [ring.slots for ring in rings] == [tuple(range(start, start + 4)) for start in range(0, 24, 4)]


@pytest.mark.parametrize(("preset", "size"), [("910a", 4), ("910b", 8), ("910b-box16", 8)])
def test_the_cost_model_says_how_long_a_ring_should_be(preset, size):
    assert ring_size(load_cluster(preset)) == size


def test_groups_of_one_switch_are_rings_though_the_next_switch_is_as_fast(tmp_path):
    rows = ["  ".join(["X" if a == b else "PIX" if a // 2 == b // 2 else "PHB" for b in range(4)]) for a in range(4)]
    text = "      NPU1 NPU3 NPU8 NPU9\n" + "\n".join(
        f"NPU{n}  {row}" for n, row in zip((1, 3, 8, 9), rows, strict=True)
    )
    (tmp_path / "pairs.txt").write_text(text)
    assert ring_size(load_cluster(str(tmp_path / "pairs.txt"))) == 2


def test_the_time_of_rings_is_that_of_the_published_formulas():
    """910A: a mesh of 4 scatters and gathers (α + n/4 · β each), pairs over PCIe exchange a quarter (2α + n/4 · β)."""
    cluster = load_cluster("910a")
    n = 64 << 20
    hccs, phb, sys = (cluster.links[kind] for kind in ("HCCS", "PHB", "SYS"))
    times = ring_times(cluster, nbytes=n)
    exchange = 2 * (phb.latency + n / 8 / phb.bandwidth)
    assert times[4] == pytest.approx(2 * (hccs.latency + n / 4 / hccs.bandwidth) + exchange)
    # One ring of 8 can go over PHB where it crosses: 0-1-2-3-7-6-5-4.
    assert times[8] == pytest.approx(2 * 7 * phb.latency + 2 * 7 / 8 * n / phb.bandwidth, rel=1e-6)
    assert sys.bandwidth < phb.bandwidth


def test_the_graph_for_networkx_has_every_link():
    cluster = load_cluster("910a", 2)
    found = graph(cluster)
    assert found.number_of_nodes() == 16 and found.number_of_edges() == 2 * 28
    fast = networkx.Graph((a, b) for a, b, kind in found.edges(data="kind") if kind == "HCCS")
    assert sorted(map(len, networkx.connected_components(fast))) == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("count", "cores", "rings"),
    [
        (8, ["144-191", "96-143", "48-95", "0-47"] * 2, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (
            16,
            [f"{28 * (n % 8 // 2)}-{28 * (n % 8 // 2) + 27}" for n in range(16)],
            [tuple(range(8)), tuple(range(8, 16))],
        ),
        (8, ["144-167", "0-23"] * 2 + ["96-119", "48-71"] * 2, [tuple(range(8))]),
    ],
    ids=["two rings of 4", "two meshes of 8", "a mesh with interleaved cores"],
)
def test_what_npu_smi_prints_of_a_whole_server_gives_its_rings(tmp_path, count, cores, rings):
    size = count // len(rings)
    rows = ["\t   " + " ".join(f"NPU{n:<8}" for n in range(count)) + "CPU Affinity"]
    for a in range(count):
        across = ["PHB" if a % size == b % size else "SYS" for b in range(count)]
        words = ["X" if a == b else "HCCS" if a // size == b // size else across[b] for b in range(count)]
        rows.append(f"NPU{a:<8}" + " ".join(f"{word:<11}" for word in words) + cores[a])
    path = tmp_path / "server.txt"
    path.write_text("\n".join(rows) + "\n\nLegend:\n\n  X    = Self\n  SYS  = Path traversing PCIe and NUMA nodes.\n")
    found = load_cluster(path)
    assert [ring.slots for ring in find_rings(found)] == rings
    assert all(ring.mesh and ring.narrowest.kind == "HCCS" for ring in find_rings(found))
    firsts = [int(text.split("-")[0]) for text in cores]
    assert [own[0] for own in found.servers[0].affinity] == firsts
    assert ring_size(found) == size
