"""What planning does: seconds, how far memory is from measurements, published plans beside ours, rings of a 910A.

`python benchmarks/plan.py [--plans PUBLISHED.csv] [--most-devices N]`; the last line is one JSON object. It needs no
MindSpore and no device. `--plans` is a table of published plans; by default the facts that the tests carry. The
comparison leaves out jobs on more devices than `--most-devices`.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path

from mindspeed_ms.parallel.plan import compare, published, published_rows
from mindspeed_ms.parallel.plan.describe import describe
from mindspeed_ms.parallel.plan.model import read_model
from mindspeed_ms.parallel.plan.search import search
from mindspeed_ms.parallel.plan.settings import Job
from mindspeed_ms.parallel.topology import ring910a
from mindspeed_ms.parallel.topology.load import load_cluster

PLANS = Path(__file__).resolve().parent.parent / "tests" / "parallel" / "plan" / "data" / "published_plans.csv"


def plan1024() -> dict:
    """Seconds of wall time to choose a plan for 70B on 1,024 devices."""
    begin = time.perf_counter()
    cluster = load_cluster("910b", 128)
    ranking = search(read_model("llama2-70b"), cluster, Job(4096, 1024))
    seconds = time.perf_counter() - begin
    print(
        f"llama2-70b on {cluster.size} devices: {seconds:.2f} s; {ranking.groups:,} groups, {ranking.pruned:,} pruned,"
    )
    print(
        f"  {ranking.evaluated:,} timed; best: {describe(ranking.best.settings)}, {ranking.best.seconds:.3f} s a step"
    )
    return {"plan1024_s": round(seconds, 2)}


def memory(rows: list) -> dict:
    """The error of memory where it was measured, and how many published plans fit."""
    errors = {}
    for one in published.measured(rows):
        print(f"{one.name} {one.kind}: measured {one.measured} MB, predicted {one.fullest:.0f} MB: {one.error:+.1%}")
        errors[one.kind] = max(one.error, errors.get(one.kind, 0.0), key=abs)  # the worst of several rows
    judged = published.judge(rows)
    fit, total = published.counts(judged)
    print(f"{fit} of {total} published plans fit; {len(judged) - total} are not modelled:")
    for reason, count in Counter(one.reason for one in judged if one.verdict == "not modelled").most_common():
        print(f"  {count:4}  {reason}")
    for one in judged:
        if one.verdict == "too large":
            print(f"  too large: {one.name}: {one.reason}")
    return {
        "memory_error_dryrun": _rounded(errors.get("dryrun")),
        "memory_error_real": _rounded(errors.get("real")),
        "published_plans_fit": fit,
        "published_plans_total": total,
    }


def rings() -> dict:
    """One ring of eight on a 910A server against groups of four that exchange."""
    found = ring910a.compare(load_cluster("910a"))
    print(
        f"910A, all_reduce of {found.sizes[-1]:,} bytes: groups of four are {found.gain:.2f} times as fast; "
        f"{found.reason}"
    )
    crossover = None if found.turns is None else round(found.turns / 1e6, 4)
    return {"ring910a_gain": round(found.gain, 3), "crossover_mb": crossover}


def against(rows: list, most: int) -> dict:
    """Published settings beside ours."""
    clusters: dict = {}

    def cluster_of(devices: int, plan: published_rows.Plan):
        spec, size = ("a3", 16) if "A3" in plan.name else ("910b", 8)
        key = spec, -(-devices // size)
        if key not in clusters:
            clusters[key] = load_cluster(*key)
        return clusters[key]

    small = [row for row in rows if int(row["devices"] or 0) <= most]
    begin = time.perf_counter()
    found = compare.compare(small, cluster_of)
    gains = [one.published.seconds / one.ours.seconds for one in found if one.ours]
    slower = [one for one in found if not one.at_least_as_fast]
    print(
        f"{len(found)} different plans on at most {most} devices, {time.perf_counter() - begin:.0f} s; by the model "
        "ours"
    )
    print(
        f"  is at least as fast in {len(found) - len(slower)}; published / ours: median {statistics.median(gains):.2f},"
    )
    print(f"  from {min(gains):.2f} to {max(gains):.2f}; {sum(one.published_fits for one in found)} published ones fit")
    for one in found:
        ours = f"{one.ours.seconds:8.3f}" if one.ours else "       -"
        print(f"  {one.name[:44]:44} {one.devices:5} {one.published.seconds:8.3f} s {ours} s  {one.why}")
    return {"at_least_as_fast_share": round(compare.share(found), 4), "compared_plans": len(found)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=Path, default=PLANS)
    parser.add_argument("--most-devices", type=int, default=1 << 20)
    arguments = parser.parse_args()
    rows = published_rows.read(arguments.plans)
    figures = {**plan1024(), **memory(rows), **rings(), **against(rows, arguments.most_devices)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
