"""Build the kernels' own tests with the address and undefined-behaviour sanitizers, and run them.

`python -m mindspeed_ms.ops.native.selftest` exits with the status of the first that fails.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mindspeed_ms.errors import MindSpeedError
from mindspeed_ms.ops.native.build import FLAGS, compile_units, find_compiler, run

SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
TESTS = [Path(__file__).parent / "test" / name for name in ("kernel_test.cc", "train_test.cc", "checkpoint_test.cc")]


def main() -> int:
    """Build and run; returns the exit status. Raises BuildError when it does not compile."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_units(compiler, Path(folder), SANITIZE)
        for test in TESTS:
            program = Path(folder) / test.stem
            run([compiler, *FLAGS, *SANITIZE, str(test), *map(str, objects), "-o", str(program), "-lpthread"])
            environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
            if status := subprocess.run([str(program)], env=environment, check=False).returncode:
                return status
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MindSpeedError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
