"""Models of both kinds of cache (float32 beside float weights, float16 beside quantized ones) share a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# In processes of their own: MindSpore keeps what it learns of an operator for as long as a process lives.
SCRIPT = """
import json, sys
from mindspeed_ms import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
answers = {}
for path in sys.argv[1:]:
    with LLM(path) as llm:
        answers[path] = llm.generate([[3, 4, 5]], params)[0].output_ids
print(json.dumps(answers))
"""


def answers(folder, *paths, before=""):
    # Exported in that process as well: a cache of its own.
    cache = folder / "-".join(["cache", *paths])
    (cache / "native").parent.mkdir()
    from mindspeed_ms.ops.native.build import library_path

    (cache / "native").symlink_to(library_path().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", before + SCRIPT, *paths],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MINDSPEED_MS_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_answers_the_same_whatever_ran_before_it_in_the_process(tmp_path):
    sys.path.insert(0, str(ROOT / "tests" / "weights"))
    from weights_files import write_hf

    from mindspeed_ms.compress.quantize import quantize_model

    quantize_model(write_hf(tmp_path / "floats"), tmp_path / "small", "w4a8")
    one_way = answers(tmp_path, "floats", "small")
    assert one_way == answers(tmp_path, "small", "floats")
    assert one_way["small"] == answers(tmp_path, "small")["small"]


def test_a_model_starts_after_other_work_in_the_process(tmp_path):
    sys.path.insert(0, str(ROOT / "tests" / "weights"))
    from weights_files import write_hf

    write_hf(tmp_path / "floats")
    work = "import mindspore as ms\nassert (ms.Tensor([1.0]) + 1).asnumpy() == 2\n"
    assert answers(tmp_path, "floats", before=work)["floats"]
