"""Run apart: front_end.py LIBRARY STRATEGY_FILE RANK DEVICES - has MindSpore's parallel pass read a strategy file.

It saves saved.ckpt (its own strategy file) and operators.json (every operator's strategy) in the working folder.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

os.environ["MINDSPEED_MS_KERNELS"] = "reference"

import mindspore as ms
import numpy as np
from mindspore.graph.api import _cell_graph_executor
from mindspore.parallel import set_op_strategy_config

from mindspeed_ms.models import build_model, spec_from_hf


def main(library: str, strategy: str, rank: int, devices: int) -> None:
    config = json.loads(sys.stdin.read())
    ms.set_context(mode=ms.GRAPH_MODE)
    model = build_model(spec_from_hf(config["model"]))
    ids, positions = (ms.Tensor(np.zeros(config["ids"], np.int32)) for _ in range(2))
    ctypes.CDLL(library).pretend(rank, devices)
    here = Path.cwd()
    ms.set_auto_parallel_context(
        parallel_mode="auto_parallel",
        search_mode="sharding_propagation",
        device_num=devices,
        global_rank=rank,
        dataset_strategy="full_batch",
        strategy_ckpt_config={"load_file": strategy, "save_file": str(here / "saved.ckpt")},
    )
    set_op_strategy_config("SAVE", str(here / "operators.json"))
    try:
        _cell_graph_executor.compile(model, ids, positions, phase="predict")
    except RuntimeError as error:
        print("ended:", str(error).splitlines()[0])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
