"""How fast each kind of link is and what each accelerator can do: one table, every figure with its source.

No figure here is a promise of the vendor. Measure with hccl_test and put your own in their place: `links:` of a
topology's YAML, or `--link HCCS=19.4GB/s,2us` on the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.topology.cluster import Accelerator, Link

# The words of `npu-smi info -t topo`, and beside them what joins servers and the cores of a CPU.
FAST = ("SIO", "UB", "HCCS_SW", "XLink_SW", "HCCS", "XLink")  # wires between devices, not those to the host
HOST = ("PIX", "PXB", "PHB", "SYS", "NA")  # from near to far
KINDS = (*FAST, *HOST)
NETWORK = ("ROCE", "SHM")

_HIXL = "hixl benchmarks/A{}_benchmark_performance.md, {}"
_MSPROF = "reference bandwidth that msprof's advice is built on, of the time of the 910A (HCCS 18, RDMA 12.5, PCIe 20)"
_GUESS = "assumed: no figure was found; measure it"
_PCIE = f"PCIe: {_MSPROF}; latency {_GUESS}"
_FAR = "assumed: half of PCIe's 20 GB/s, since a message passes two roots and the link between processors; measure it"

Change = tuple[str, float, float | None]  # kind, bytes a second, seconds; None keeps the latency
_LANES = "4 lanes of 56 Gbit/s (source of npu-smi); 19.4 GB/s was measured of one copy: " + _HIXL.format(
    2, "8 MB; latency " + _GUESS
)
# Bytes a second, seconds, whether all such links of a device share one port, source.
_Row = tuple[float, float, bool, str]
_ANY: dict[str, _Row] = {
    "SIO": (224e9, 1e-6, False, "gitcode Ascend/msmodeling configuration of A3; latency " + _GUESS),
    "UB": (
        196e9,
        2e-6,
        True,
        "gitcode Ascend/msmodeling configuration of A3: 196 GB/s within a pod; latency " + _GUESS,
    ),
    "HCCS_SW": (150e9, 2e-6, True, _HIXL.format(3, "read, blocks of 1 to 8 MB fitted; npu-smi calls it a switch")),
    "XLink_SW": (150e9, 2e-6, True, "taken as HCCS_SW, whose name in other builds of npu-smi it is; measure it"),
    "HCCS": (28e9, 2e-6, False, _LANES),
    "XLink": (28e9, 2e-6, False, "taken as HCCS of the 910B, for want of a figure; measure it"),
    "PIX": (20e9, 5e-6, True, _PCIE),
    "PXB": (20e9, 5e-6, True, _PCIE),
    "PHB": (20e9, 5e-6, True, _PCIE),
    "SYS": (10e9, 1e-5, True, _FAR),
    "NA": (10e9, 1e-5, True, "npu-smi does not know the relation; taken as SYS, the farthest it has a word for"),
    "ROCE": (22.6e9, 1e-5, True, _HIXL.format(2, "RDMA over a 200 GbE port; latency " + _GUESS)),
    "SHM": (10e9, 1e-6, True, "memory of one host, between its processes; " + _GUESS),
}
# Where a word means something else on one family.
_FAMILY: dict[str, dict[str, _Row]] = {
    "910A": {
        "HCCS": (
            30e9,
            2e-6,
            False,
            "three HCCS ports of 240 Gbit/s (Huawei at Hot Chips 31); msprof reckons with 18; latency " + _GUESS,
        ),
        "ROCE": (12.5e9, 1e-5, True, "one 100 GbE port a device; msprof's reference for RDMA"),
    },
    "CPU": {},
}

_GB = 1 << 30
_NOTES = "public notes, not official"
ACCELERATORS: dict[str, Accelerator] = {
    item.name: item
    for item in (
        Accelerator("910A", 32 * _GB, 256e12, 1.2e12, "Ascend 910: 256 TFLOPS float16 (Hot Chips 31), 32 GB HBM2"),
        Accelerator("910B1", 64 * _GB, 414e12, 1.6e12, f"{_NOTES}: 414 TFLOPS float16, 64 GB"),
        Accelerator("910B2", 64 * _GB, 376e12, 1.6e12, f"{_NOTES}: Atlas 800T A2 with 3 PFLOPS float16 of 8"),
        Accelerator("910B3", 64 * _GB, 313e12, 1.6e12, f"{_NOTES}: Atlas 800T A2 with 2.5 PFLOPS float16 of 8"),
        Accelerator("910B4", 32 * _GB, 280e12, 0.8e12, f"{_NOTES}: Atlas 800I A2, 2.24 PFLOPS of 8, 32 GB, 800 GB/s"),
        Accelerator("910C", 64 * _GB, 376e12, 1.6e12, f"{_NOTES}: a die of two; the NPU 752 TFLOPS, 128 GB, 3.2 TB/s"),
        Accelerator(
            "950PR", 128 * _GB, 500e12, 1.6e12, f"{_NOTES}: 128 GB, 1.6 TB/s, 1 PFLOPS float8; half is assumed"
        ),
        Accelerator("CPU", 4 * _GB, 1e11, 2e10, "a share of a desktop's processor, for tests; assumed"),
    )
}

_NUMBER = r"(?P<number>\d{1,30}(?:\.\d{0,30})?(?:e[+-]?\d{1,3})?)"
_SPEED = re.compile(_NUMBER + r"\s*(?P<prefix>[KMGT]?)(?P<binary>i?)(?P<unit>B/s|Bps|bit/s|bps|b/s|B)", re.ASCII)
_TIME = re.compile(_NUMBER + r"\s*(?P<unit>ns|us|µs|ms|s)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def link_table(accelerator: str = "") -> dict[str, Link]:
    """Every kind of link, as the named accelerator has it: kind → Link (bytes/s, seconds)."""
    rows = {**_ANY, **_FAMILY.get(family(accelerator), {})}
    return {kind: Link(kind, *row) for kind, row in rows.items()}


def family(accelerator: str) -> str:
    """910A, 910B, 910C or CPU for an accelerator's name; the name itself for one that is not in the table."""
    return "910B" if accelerator.startswith("910B") else accelerator


def accelerator(name: str) -> Accelerator:
    """The accelerator of that name, with or without "Ascend" before it. Raises ConfigError for an unknown one."""
    short = re.sub(r"(?i)^ascend[ _-]*", "", name.strip()).upper()
    short = "910A" if re.fullmatch(r"910(PRO|PREMIUM)?[AB]?", short) and short != "910B" else short
    short = "910C" if re.fullmatch(r"910_9[0-9A-Z]+|A3", short) else short
    short = "950PR" if re.fullmatch(r"950[0-9A-Z_]*", short) else short
    short = {"910B": "910B3", "910B2C": "910B2", "910B4-1": "910B4"}.get(short, short)
    if short not in ACCELERATORS:
        known = ", ".join(ACCELERATORS)
        raise ConfigError(f"accelerator {name[:80]!r}: expected one of {known}, or give its figures in a YAML")
    return ACCELERATORS[short]


def parse_speed(text: str, where: str) -> float:
    """Bytes a second of a text such as 56GB/s or 200Gbit/s. Raises ConfigError."""
    found = _SPEED.fullmatch(text.strip())
    value = 0.0
    if found:
        power = " KMGT".index(found["prefix"] or " ")
        scale = (1024.0 if found["binary"] else 1000.0) ** power
        value = float(found["number"]) * scale / (8 if found["unit"].startswith("b") else 1)
    if not 1e3 <= value <= 1e16:
        raise ConfigError(f"{where}: {text[:80]!r} is no speed of a link; expected such as 56GB/s or 200Gbit/s")
    return value


def parse_time(text: str, where: str) -> float:
    """Seconds of a text such as 5us. Raises ConfigError."""
    found = _TIME.fullmatch(text.strip())
    value = float(found["number"]) * _SECONDS[found["unit"]] if found else -1.0
    if not 0 <= value <= 10:
        raise ConfigError(f"{where}: {text[:80]!r} is no latency; expected such as 5us, from 0 to 10 s")
    return value


def parse_link(text: str, where: str = "--link") -> Change:
    """Kind, bytes/s and seconds (None: as it was) of a text such as HCCS=56GB/s,5us. Raises ConfigError."""
    kind, equals, rest = text.partition("=")
    speed, comma, latency = rest.partition(",")
    if not equals or not kind.strip():
        raise ConfigError(f"{where}: {text[:80]!r} is not KIND=SPEED[,LATENCY]; expected such as HCCS=56GB/s,5us")
    name = known_kind(kind.strip(), where)
    return name, parse_speed(speed, where), parse_time(latency, where) if comma else None


def known_kind(word: str, where: str) -> str:
    """The kind that a word means, whatever its capitals. Raises ConfigError with the known ones."""
    for kind in (*KINDS, *NETWORK):
        if kind.lower() == word.lower():
            return kind
    raise ConfigError(f"{where}: {word[:80]!r} is no kind of link; known are {', '.join((*KINDS, *NETWORK))}")


def override(table: Mapping[str, Link], given: Iterable[Change], source: str) -> dict[str, Link]:
    """The table with other speeds, which `source` is to say the origin of."""
    changed = dict(table)
    for kind, bandwidth, latency in given:
        old = changed[kind]
        seconds = old.latency if latency is None else latency
        changed[kind] = replace(old, bandwidth=bandwidth, latency=seconds, source=source)
    return changed
