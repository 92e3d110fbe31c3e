"""Shared by the training tests: their helper modules."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
