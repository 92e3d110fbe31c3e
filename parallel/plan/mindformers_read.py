"""Reads the parallel sections of a MindFormers YAML; see `mindformers`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, cast

import yaml

from mindspeed_ms.config.base import UNPARSED
from mindspeed_ms.errors import ConfigError
from mindspeed_ms.parallel.plan.settings import Recompute, Schedule, Settings

_DEGREES = {
    "data_parallel": "data",
    "model_parallel": "tensor",
    "context_parallel": "context",
    "expert_parallel": "expert",
    "pipeline_stage": "pipeline",
}
_MOST = 1 << 20  # of any number here
_DEEPEST = 64  # of sections within sections
_MOST_CHUNKS = 1 << 12  # of a model's layers
_SHORT = reprlib.Repr()  # aliases make a small file a huge value
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
_SCHEDULES = {"gpipe": "gpipe", "1f1b": "1f1b"}
_LEVELS = {"level1": 1, "level2": 2, "level3": 3}
_SECTIONS = ("parallel_config", "parallel", "recompute_config", "runner_config", "model")
# Key of parallel_config → what it does, where Settings has no place for it.
_ELSEWHERE = {
    "gradient_aggregation_group": "how many groups of gradients are communicated together",
    "optimizer_shard": "has had no effect since r0.7; parallel.enable_parallel_optimizer decides",
    "context_parallel_algo": "which algorithm splits attention along the sequence",
    "ulysses_degree_in_cp": "how many of the context ranks exchange heads",
    "vocab_emb_dp": "the embedding is split by the data dimension alone",
    "mem_coeff": "a weight of the automatic search for strategies",
    "seq_split_num": "pieces of a sequence that follow each other in the pipeline",
}


class _Loader(yaml.SafeLoader):
    """Remembers the keys that are given twice: as for MindFormers, the last counts."""

    def __init__(self, text: str):
        super().__init__(text)
        self.doubled: list[str] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the safe loader does it."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    self.doubled.append(f"{key.value}: given a second time in line {key.start_mark.line + 1}")
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _check_depth(text: str, where: str) -> None:
    """Python's own limit will not do: MindSpore raises it for the whole process."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ConfigError(f"{where}: no YAML: nested too deep; give a MindFormers configuration")


def _parse(text: str, where: str) -> tuple[list[str], Any]:
    try:
        _check_depth(text, where)
        loader = _Loader(text)
        return loader.doubled, loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise ConfigError(f"{where}{line}: no YAML: {problem}; give a MindFormers configuration") from None
    except RecursionError:
        raise ConfigError(f"{where}: no YAML: nested too deep; give a MindFormers configuration") from None
    except UNPARSED as error:
        problem = " ".join(str(error).split())[:120]
        raise ConfigError(f"{where}: no YAML: a value is not of its kind ({problem}); mend it") from None


class Reader:
    """One YAML and the places of its values."""

    def __init__(self, text: str, where: str):
        self._where = where
        self._doubled, root = _parse(text, where)
        if not isinstance(root, dict):
            raise ConfigError(f"{where}: expected a MindFormers YAML with a parallel_config section")
        if "parallel_config" not in root:
            if _DEGREES.keys().isdisjoint(root):
                raise ConfigError(f"{where}: no parallel_config; expected one with data_parallel, model_parallel, …")
            root = {"parallel_config": root}
        self._root = root
        self._sections = {name: self._section(root, name) for name in _SECTIONS}
        self._model = self._section(self._sections["model"], "model_config", "model.model_config")

    def settings(self) -> Settings:
        """What the file says. Raises ConfigError."""
        degrees = {ours: self._whole("parallel_config", theirs, 1) for theirs, ours in _DEGREES.items()}
        if degrees["data"] % degrees["expert"]:
            raise self._error(
                "parallel_config.expert_parallel", degrees["expert"], f"a divisor of data_parallel, {degrees['data']}"
            )
        virtual = self._virtual()
        if degrees["pipeline"] * virtual > _MOST_CHUNKS:
            raise self._error("parallel_config.pipeline_stage", degrees["pipeline"], f"at most {_MOST_CHUNKS} chunks")
        recompute, layers = self._recompute(degrees["pipeline"], virtual)
        return Settings(
            **degrees,
            micro_batch=self._whole("runner_config", "batch_size", 1),
            micro_batches=self._micro_batches(degrees["pipeline"]),
            zero=self._zero(),
            sequence_parallel=self._flag("parallel_config", "use_seq_parallel"),
            recompute=recompute,
            recompute_layers=layers,
            schedule=self._schedule(virtual),
            virtual=virtual,
            layers=self._layers(degrees["pipeline"], virtual),
        )

    def not_carried(self) -> list[str]:
        """What the file says and Settings has no place for."""
        config = self._sections["parallel_config"]
        found = [f"{one}: the last counts" for one in self._doubled[:8]]
        found += [
            f"parallel_config.{key}: {_SHORT.repr(config[key])}: {text}"
            for key, text in _ELSEWHERE.items()
            if key in config
        ]
        known = {*_DEGREES, *_ELSEWHERE, "micro_batch_num", "use_seq_parallel", "recompute"}
        found += [
            f"parallel_config.{key}: {_SHORT.repr(value)}: not known here"
            for key, value in config.items()
            if key not in known
        ]
        interleave = self._root.get("micro_batch_interleave_num", 1)
        if interleave not in (1, None):
            shown = _SHORT.repr(interleave)
            found.append(f"micro_batch_interleave_num: {shown}: so many halves of a batch overlap each other's wait")
        if self._model.get("mtp_depth"):
            found.append(
                f"model.model_config.mtp_depth: {_SHORT.repr(self._model['mtp_depth'])}: more layers in the last stage"
            )
        recompute = self._sections["recompute_config"]
        for key in ("select_comm_recompute", "parallel_optimizer_comm_recompute"):
            if recompute.get(key):
                found.append(
                    f"recompute_config.{key}: {_SHORT.repr(recompute[key])}: communication is done again, not kept"
                )
        if recompute.get("recompute") and recompute.get("select_recompute"):
            found.append(
                f"recompute_config.select_recompute: {_SHORT.repr(recompute['select_recompute'])}: beside whole layers"
            )
        return found

    def _zero(self) -> int:
        parallel = self._sections["parallel"]
        if not self._flag("parallel", "enable_parallel_optimizer"):
            return 0
        options = self._section(parallel, "parallel_optimizer_config", "parallel.parallel_optimizer_config")
        level = options.get("optimizer_level", "level2" if options.get("gradient_accumulation_shard") else "level1")
        if not isinstance(level, str) or level not in _LEVELS:
            raise self._error("parallel.parallel_optimizer_config.optimizer_level", level, "level1, level2 or level3")
        return _LEVELS[level]

    def _micro_batches(self, pipeline: int) -> int:
        interleave = self._positive("micro_batch_interleave_num", self._root.get("micro_batch_interleave_num", 1))
        if pipeline == 1:
            # Without a pipeline MindFormers does not use micro_batch_num.
            return self._whole("runner_config", "gradient_accumulation_steps", 1) * interleave
        count = self._whole("parallel_config", "micro_batch_num", 1)
        if count < pipeline:
            raise self._error("parallel_config.micro_batch_num", count, f"at least pipeline_stage, which is {pipeline}")
        return count * interleave

    def _pipeline_config(self) -> Mapping[str, Any]:
        return self._section(self._sections["parallel"], "pipeline_config", "parallel.pipeline_config")

    def _virtual(self) -> int:
        count = self._positive("model.model_config.pp_interleave_num", self._model.get("pp_interleave_num", 1))
        # LayerSetting takes pp_interleave_num only where parallel.pipeline_config turns interleaving on.
        return count if self._pipeline_config().get("pipeline_interleave") is True else 1

    def _schedule(self, virtual: int) -> Schedule:
        name = self._pipeline_config().get("pipeline_scheduler", "1f1b")
        if not isinstance(name, str) or name not in _SCHEDULES:
            raise self._error("parallel.pipeline_config.pipeline_scheduler", name, ", ".join(_SCHEDULES))
        found = _SCHEDULES[name]
        return cast(Schedule, "interleaved" if virtual > 1 and found == "1f1b" else found)

    def _recompute(self, pipeline: int, virtual: int) -> tuple[Recompute, tuple[int, ...] | None]:
        config = self._sections["recompute_config"]
        inner = self._sections["parallel_config"].get("recompute")
        config = config or (inner if isinstance(inner, dict) else {})
        for key, kind in (("recompute", "full"), ("select_recompute", "selective")):
            value = config.get(key, False)
            if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], str)):
                value = True  # patterns of operators
            if value is False or value is None:
                continue
            layers = None if value is True else self._stages(f"recompute_config.{key}", value, pipeline, virtual)
            if layers is None or any(layers):
                return cast(Recompute, kind), layers
        return "none", None

    def _stages(self, place: str, value: Any, pipeline: int, virtual: int) -> tuple[int, ...]:
        if isinstance(value, int):
            value = [value] * pipeline
        rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
        numbers = [self._row(place, row, pipeline) for row in rows]
        if len(rows) not in (1, virtual):
            raise self._error(place, value, f"one list for each of the {virtual} chunks of a stage")
        # One list stands for every chunk (numpy broadcasts it).
        numbers = numbers * (virtual if len(rows) == 1 else 1)
        return tuple(sum(column) for column in zip(*numbers, strict=True))

    def _layers(self, pipeline: int, virtual: int) -> tuple[int, ...]:
        place, offset = "model.model_config.offset", self._model.get("offset", 0)
        count = self._model.get("num_layers", self._model.get("num_hidden_layers"))
        if count is None or offset in (0, None):
            return ()
        # Layers that predict further tokens are counted as layers, and are the last.
        depth = self._model.get("mtp_depth")
        extra = self._positive("model.model_config.mtp_depth", depth) if depth else 0
        total = self._positive("model.model_config.num_layers", count) + extra
        rows = offset if isinstance(offset, list) and offset and isinstance(offset[0], list) else [offset]
        rows = [[row] * pipeline if isinstance(row, int) else row for row in rows]
        rows = rows * (virtual if len(rows) == 1 else 1)
        if len(rows) != virtual:
            raise self._error(place, offset, f"one list for each of the {virtual} chunks of a stage")
        parts = [number for row in rows for number in self._row(place, row, pipeline)]
        share, rest = divmod(total, pipeline * virtual)
        if sum(parts) != rest:
            raise self._error(place, offset, f"a sum of {rest}, what {total} layers leave over")
        if any(share + part < 1 for part in parts):
            raise self._error(place, offset, "at least one layer in each stage")
        sizes = [share + part for part in parts]
        sizes[-1] -= extra
        return tuple(sizes) if any(parts) else ()

    def _row(self, place: str, row: Any, pipeline: int) -> list[int]:
        whole = isinstance(row, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in row)
        if not whole or len(row) != pipeline:
            raise self._error(place, row, f"{pipeline} whole numbers, one for each stage")
        return cast(list[int], row)

    def _section(self, parent: Mapping[str, Any], name: str, place: str = "") -> dict[str, Any]:
        value = parent.get(name)
        if value is not None and not isinstance(value, dict):
            raise self._error(place or name, value, "a section with keys")
        return value or {}

    def _whole(self, section: str, key: str, default: int) -> int:
        value = self._sections[section].get(key)
        return default if value is None else self._positive(f"{section}.{key}", value)

    def _positive(self, place: str, value: Any) -> int:
        value = 1 if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise self._error(place, value, f"a whole number from 1 to {_MOST}")
        return value

    def _flag(self, section: str, key: str) -> bool:
        value = self._sections[section].get(key, False)
        if not isinstance(value, bool):
            raise self._error(f"{section}.{key}", value, "True or False")
        return value

    def _error(self, place: str, value: Any, expected: str) -> ConfigError:
        return ConfigError(f"{self._where}: {place}: {_SHORT.repr(value)}; expected {expected}")
