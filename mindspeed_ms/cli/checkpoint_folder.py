"""The folder of checkpoints that a user means, and its store opened to read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mindspeed_ms.errors import CheckpointError

if TYPE_CHECKING:
    from mindspeed_ms.checkpoint.store import CheckpointStore

Folder = Annotated[str, typer.Argument(help="The folder of a run, or of its checkpoints.", metavar="FOLDER")]
Step = Annotated[int | None, typer.Option(min=0, help="Of this step; default: the newest whole one.")]


def checkpoints(folder: str) -> Path:
    """Raises CheckpointError where there are none."""
    path = Path(folder)
    if not folder.strip():
        raise CheckpointError("FOLDER is empty; give the folder of a run, or of its checkpoints")
    if not path.is_dir():
        raise CheckpointError(f"{folder}: no such folder; give the folder of a run, or of its checkpoints")
    if (path / "checkpoints").is_dir():
        return path / "checkpoints"
    if any(path.glob("step-*.json")):
        return path
    if (path / "run.json").exists():
        raise CheckpointError(f"{folder}: the run has no checkpoint yet")
    raise CheckpointError(f"{folder}: holds no checkpoints; give the folder of a run, or of its checkpoints")


def open_store(folder: str, *, write: bool = False, **rules: Any) -> "CheckpointStore":
    """The store; it takes no lock to read, so a run may be writing. Raises CheckpointError where it holds none."""
    from mindspeed_ms.checkpoint.store import CheckpointStore

    path = checkpoints(folder)
    store = CheckpointStore(path, write=write, **rules)
    if not store.steps():
        raise CheckpointError(f"{path}: there is no checkpoint in it yet")
    return store


def rules_of(path: Path) -> dict[str, Any]:
    """What the run that the checkpoints belong to keeps; nothing where there is no run."""
    from mindspeed_ms.config.base import load_yaml
    from mindspeed_ms.config.train import TrainConfig
    from mindspeed_ms.errors import MindSpeedError

    try:
        run = load_yaml(path.parent / "config.yaml", TrainConfig).run
    except (MindSpeedError, OSError):
        return {}
    return {name: getattr(run, name) for name in ("keep", "keep_every", "keep_best") if hasattr(run, name)}
