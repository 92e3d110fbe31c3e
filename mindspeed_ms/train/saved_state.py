"""What a run's checkpoint holds beside tensors: checked before anything of it is taken over."""

from __future__ import annotations

from typing import Any

from mindspeed_ms.checkpoint.store import Checkpoint
from mindspeed_ms.errors import CheckpointError
from mindspeed_ms.train.evaluate import Evaluation

_KINDS: dict[str, tuple[type, ...]] = {
    "step": (dict,),
    "loader": (dict,),
    "tokens": (int,),
    "loss": (int, float, type(None)),
    "bad": (dict,),
    "done": (dict,),
    "evaluation": (dict, type(None)),
    "frozen": (str, type(None)),
}
_COUNTS = {"bad": {"skipped", "diverged", "dead"}, "done": {"eval", "sample"}}


def checked_state(found: Checkpoint) -> dict[str, Any]:
    """The state of a checkpoint that `Loop` wrote. Raises CheckpointError when it is that of another version."""
    state = found.state
    wrong = next((key for key, kinds in _KINDS.items() if key not in state or not isinstance(state[key], kinds)), None)
    for key, names in _COUNTS.items() if wrong is None else ():
        if not state[key].keys() <= names or not all(
            type(count) is int and count >= 0 for count in state[key].values()
        ):
            wrong = key
    if wrong is None and state["evaluation"] is not None and state["evaluation"].keys() != _EVALUATION:
        wrong = "evaluation"
    if wrong is None and state["step"].get("step") != found.step:
        wrong = "step"
    if wrong is not None:
        raise CheckpointError(
            f"the checkpoint of step {found.step}: its {wrong!r} is not what this program writes; use the version of "
            "mindspeed-ms that wrote it, or remove the checkpoint to go on from the one before"
        )
    return state


_EVALUATION = Evaluation.__dataclass_fields__.keys()
