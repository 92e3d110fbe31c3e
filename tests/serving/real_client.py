"""Run by Python 3.9: calls the server at argv[1] with MindSpore Serving's client and prints the results as JSON."""

import json
import sys

import numpy as np
from mindspore_serving.client import Client

address, servable = sys.argv[1:]


def plain(value):
    if isinstance(value, (np.ndarray, np.generic)):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "value": value.tolist()}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value


client = Client(address, servable, "generate")
greedy = {"temperature": 0, "max_tokens": 6}
calls = {
    "text": client.infer({"prompt": "Hello", **greedy}),
    "bytes": client.infer([{"prompt": b"Hello", **greedy}]),
    "int32": client.infer([{"input_ids": np.array([5, 6, 7], np.int32), **greedy}]),
    "int64": client.infer([{"input_ids": np.array([5, 6, 7], np.int64), **greedy}]),
    "numpy scalars": client.infer([{"prompt": "Hello", "temperature": np.float32(0), "max_tokens": np.uint8(6)}]),
    "bool and seed": client.infer([{"prompt": "Hello", "ignore_eos": True, "seed": 5, "max_tokens": 6, "top_p": 0.5}]),
    "stop": client.infer([{"prompt": "Hello", "stop": "never", "stop_token_ids": np.array([1, 2]), **greedy}]),
    "logprobs": client.infer([{"prompt": "Hello", "logprobs": 2, **greedy}]),
    "several": client.infer(tuple({"prompt": text, **greedy} for text in ("Hello", "a", "你好", "b c"))),
    "some bad": client.infer(
        [{"prompt": "Hello", **greedy}, {"prompt": ""}, {"promt": "x"}, {"prompt": "a", **greedy}]
    ),
    "one bad": client.infer([{"prompt": "Hello", "temperature": -1.0}]),
    "all bad": client.infer([{"prompt": ""}, {"input_ids": np.array([-1])}]),
    "none": client.infer([]),
    "async": client.infer_async([{"prompt": "Hello", **greedy}]).result(),
    "servable": Client(address, "other", "generate").infer([{"prompt": "Hello"}]),
    "method": Client(address, servable, "generat").infer([{"prompt": "Hello"}]),
    "version 1": Client(address, servable, "generate", 1).infer([{"prompt": "Hello", **greedy}]),
    "version 2": Client(address, servable, "generate", 2).infer([{"prompt": "Hello"}]),
}
print(json.dumps({name: plain(result) for name, result in calls.items()}))
