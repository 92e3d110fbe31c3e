"""Build the kernels' own test with the address and undefined-behaviour sanitizers, and run it.

`python -m mindspeed_ms.ops.native.selftest` exits with the test's status.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mindspeed_ms.errors import MindSpeedError
from mindspeed_ms.ops.native.build import FLAGS, compile_units, find_compiler, run

SANITIZE = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
TEST = Path(__file__).parent / "test" / "kernel_test.cc"


def main() -> int:
    """Build and run; returns the test's exit status. Raises BuildError when it does not compile."""
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        objects = compile_units(compiler, Path(folder), SANITIZE)
        program = Path(folder) / "kernel_test"
        run([compiler, *FLAGS, *SANITIZE, str(TEST), *map(str, objects), "-o", str(program), "-lpthread"])
        return subprocess.run(
            [str(program)], env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}, check=False
        ).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MindSpeedError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
