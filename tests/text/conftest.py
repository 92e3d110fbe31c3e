"""The fake tokenizer of the serving tests serves here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
