"""What `train` is asked to do: which model learns from which data, by which steps, and what is kept of the run."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from mindspeed_ms.config.base import Config

_MOST_VALUES, _DEEPEST = 10_000, 16  # of a model's config; YAML's aliases make an endless one of a few lines
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")

Count = Annotated[int, Field(ge=1, le=1 << 40)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


def _path(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError("expected a path")
    return value


PathText = Annotated[str, AfterValidator(_path)]


class _Section(Config):
    """A part of the configuration. YAML takes `yes` and `on` for true, which Python takes for 1; here it is none."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and bool not in (annotation, *get_args(annotation)):
            raise ValueError("expected neither true nor false")
        return value


class ModelConfig(_Section):
    """Where the model comes from."""

    source: PathText | None = Field(None, alias="from")  # a Hugging Face directory or GGUF file to go on from
    config: dict[str, Any] | PathText | None = (
        None  # or, to begin with random weights: what config.json says, or its path
    )

    @field_validator("config")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        """YAML 1.1 takes 1e-5 for text; no setting of a model is text that looks like it."""
        return _plain(value, 0, [_MOST_VALUES]) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _one(self) -> ModelConfig:
        if (self.source is None) == (self.config is None):
            given = "neither is there" if self.source is None else "both are given"
            raise ValueError(f"expected one of 'from' (a trained model) and 'config' (a new one), {given}")
        return self


class DataConfig(_Section):
    """Which rows are learnt from, and which are held out."""

    train: PathText  # folder of a prepared set
    eval: PathText | None = None  # folder of another, made with the same tokenizer, that is only evaluated on
    batch_size: Count | None = None  # rows of a batch; or
    tokens_per_batch: Count | None = None  # its tokens, padding included
    eval_batches: Count | None = None  # most batches of an evaluation; None: all of the set

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        if (self.batch_size is None) == (self.tokens_per_batch is None):
            given = "neither is there" if self.batch_size is None else "both are given"
            raise ValueError(f"expected one of batch_size and tokens_per_batch, {given}")
        if self.eval_batches is not None and self.eval is None:
            raise ValueError("eval_batches has no effect without eval; leave it out")
        return self


class RunConfig(_Section):
    """How long the run is, and what it leaves behind."""

    out: PathText  # folder of the run
    steps: Count | None = None  # optimizer steps; or
    epochs: Annotated[float, Field(gt=0, le=1 << 20)] | None = None  # passes over the rows, which may be a part of one
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0  # of new weights, the order of rows, dropout and samples
    log_every: Count = 10  # steps between two lines of progress and two records of operator times
    eval_every: Count | None = None  # steps between two evaluations; None: at the end alone
    save_every: Count | None = None  # steps between two checkpoints; None: at the end, and when interrupted, alone
    keep: Annotated[int, Field(ge=0, le=1 << 20)] = 2  # newest checkpoints that are kept; 0: all
    keep_every: Count | None = None  # checkpoints of steps that this divides are kept too
    keep_best: Annotated[int, Field(ge=0, le=1 << 20)] = 0  # and so many of the lowest held-out loss
    sample_every: Count | None = None  # steps between two sample texts; None: at the end alone
    samples: list[str] = []  # beginnings that the model goes on with
    sample_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 64  # of each sample
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.8  # of samples; 0 takes the most likely token
    chat: bool = False  # samples are questions to a chat model, asked in its template

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        if (self.steps is None) == (self.epochs is None):
            given = "neither is there" if self.steps is None else "both are given"
            raise ValueError(f"expected one of steps and epochs, {given}")
        for name in ("keep_every", "keep_best"):
            if getattr(self, name) and not self.keep:
                raise ValueError(f"{name} has no effect with keep 0, which keeps all; leave it out")
        if self.keep_every is not None and (self.save_every is None or self.keep_every % self.save_every):
            raise ValueError(f"keep_every is {self.keep_every}, expected a multiple of save_every ({self.save_every})")
        if self.keep_best and (self.save_every is None or self.eval_every is None):
            raise ValueError("keep_best needs save_every and eval_every: it compares what was both saved and evaluated")
        for name in ("sample_every", "sample_tokens", "temperature", "chat"):
            if not self.samples and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect without samples; leave it out")
        return self


class StepConfig(_Section):
    """How one optimizer step is made."""

    micro_batches: Annotated[int, Field(ge=1, le=1 << 20)] = 1  # batches whose gradients one step adds up
    max_grad_norm: Positive | None = 1.0  # gradients of a larger norm, over all parameters, are scaled down to it
    amp: Literal["O0", "O1", "O2", "O3"] = "O0"  # float16 in more and more of the network, as MindSpore defines it
    loss_scale: float | str | None = None  # of the loss, so that float16 gradients do not vanish: a number or "dynamic"
    recompute: bool = False  # keep no activations of a layer: made again for the gradient, for less memory
    offload_optimizer: bool = False  # keep the optimizer's state in files of the run, for less memory

    @field_validator("loss_scale")
    @classmethod
    def _scale(cls, value: float | str | None) -> float | str | None:
        if value is not None and value != "dynamic" and not (isinstance(value, float) and 0 < value < float("inf")):
            raise ValueError("expected null, a number above 0, or dynamic")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> StepConfig:
        if self.loss_scale is not None and self.amp == "O0":
            raise ValueError("loss_scale has no effect with amp O0: float32 needs none; leave it out")
        return self


class OptimizerConfig(_Section):
    """Which optimizer, and its own settings; what is left out is as published."""

    name: Literal["adamw", "lion", "sgd", "adafactor"] = "adamw"
    learning_rate: Positive  # the highest; the schedule lowers it
    weight_decay: Annotated[float, Field(ge=0, le=100)] = 0.0  # decoupled, of matrices alone
    no_decay: list[str] = []  # patterns of the names of matrices that are not decayed either, such as *embed*
    betas: tuple[Share, Share] | None = None  # adamw: (0.9, 0.999); lion: (0.9, 0.99)
    eps: Positive | None = None  # adamw: 1e-8
    momentum: Share | None = None  # sgd: 0
    dampening: Share | None = None  # sgd: 0
    nesterov: bool | None = None  # sgd: false
    beta2_decay: Annotated[float, Field(lt=0, ge=-10)] | None = None  # adafactor: -0.8
    clip: Positive | None = None  # adafactor: the update's root mean square is at most this, 1.0

    # Which of the keys without a value of their own each optimizer has.
    KEYS: ClassVar[dict[str, tuple[str, ...]]] = {
        "adamw": ("betas", "eps"),
        "lion": ("betas",),
        "sgd": ("momentum", "dampening", "nesterov"),
        "adafactor": ("beta2_decay", "clip"),
    }

    @model_validator(mode="after")
    def _of_this_one(self) -> OptimizerConfig:
        mine = self.KEYS[self.name]
        for key in dict.fromkeys(key for keys in self.KEYS.values() for key in keys):
            if key not in mine and getattr(self, key) is not None:
                known = ", ".join(mine)
                raise ValueError(f"{key} has no effect with {self.name}, whose keys are {known}; leave it out")
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError("nesterov needs momentum above 0 and no dampening")
        if self.no_decay and not self.weight_decay:
            raise ValueError("no_decay has no effect without weight_decay; leave it out")
        return self

    def settings(self) -> dict[str, Any]:
        """The optimizer's settings that were given, by the names of its class, without the learning rate."""
        given = {key: getattr(self, key) for key in self.KEYS[self.name] if getattr(self, key) is not None}
        return {"weight_decay": self.weight_decay, "no_decay": tuple(self.no_decay), **given}


class ScheduleConfig(_Section):
    """How the learning rate goes from step to step."""

    name: Literal["constant", "linear", "cosine", "wsd"] = "constant"  # after the warmup
    warmup_steps: Annotated[int, Field(ge=0, le=1 << 40)] = 0  # from 0 up to the learning rate
    decay_steps: Count | None = None  # of the decay; None: all after the warmup; wsd: the last tenth of the run
    min_ratio: Annotated[float, Field(ge=0, le=1)] | None = None  # what is left of the learning rate after it; 0
    decay: Literal["linear", "cosine", "sqrt"] | None = None  # wsd: shape of the decay; linear

    @model_validator(mode="after")
    def _consistent(self) -> ScheduleConfig:
        for key in ("decay_steps", "min_ratio"):
            if self.name == "constant" and getattr(self, key) is not None:
                raise ValueError(f"{key} has no effect with constant; leave it out")
        if self.decay is not None and self.name != "wsd":
            raise ValueError(f"decay has no effect with {self.name}: it is the shape that wsd ends with; leave it out")
        return self


class LoraSettings(_Section):
    """Low-rank adapters that are trained instead of the weights (Hu et al., 2021)."""

    rank: Annotated[int, Field(ge=1, le=1 << 16)] = 8
    alpha: Positive = 16.0  # the adapter's output is scaled by alpha / rank
    dropout: Share = 0.0  # of the adapter's input
    targets: list[str] | Literal["all-linear"] = "all-linear"  # ends of the names of layers, such as q_proj
    merge: bool = False  # beside the adapter, also write the model with it merged in

    @field_validator("targets")
    @classmethod
    def _some(cls, value: list[str] | str) -> list[str] | str:
        if not value:
            raise ValueError('expected names of layers, such as [q_proj, v_proj], or "all-linear"')
        return value


class GuardConfig(_Section):
    """When a run that goes wrong ends by itself."""

    max_skipped: Count = 10  # steps in a row that are skipped, since the loss or a gradient was not finite
    max_loss_ratio: Annotated[float, Field(gt=1)] | None = 2.0  # as many steps in a row whose loss is above this many
    # times that of guessing, the logarithm of the vocabulary; None: whatever the loss


class TrainConfig(_Section):
    """All of `train`."""

    model: ModelConfig
    data: DataConfig
    run: RunConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    step: StepConfig = StepConfig()
    lora: LoraSettings | None = None
    guard: GuardConfig = GuardConfig()

    @model_validator(mode="after")
    def _consistent(self) -> TrainConfig:
        if self.lora is not None and self.model.source is None:
            raise ValueError("lora trains adapters of a trained model: give model.from, or leave lora out")
        if self.lora is not None and self.step.amp == "O1":
            raise ValueError("step.amp O1 wraps the layers that lora wraps: take O0, O2 or O3")
        if self.run.chat and self.model.source is None:
            raise ValueError("run.chat needs a chat template, which comes with model.from; leave it out")
        if self.run.eval_every is not None and self.data.eval is None:
            raise ValueError("run.eval_every has no effect without data.eval; leave it out")
        steps = self.run.steps
        if steps is not None and self.schedule.warmup_steps > steps:
            raise ValueError(
                f"schedule.warmup_steps {self.schedule.warmup_steps} is more than run.steps {steps}: "
                "the learning rate would never be reached"
            )
        return self

    def plain(self) -> dict[str, Any]:
        """As a YAML or JSON file has it."""
        return self.model_dump(mode="json", by_alias=True)


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    """What JSON can hold of a model's config; `left`: how many values there may still be."""
    left[0] -= 1
    if depth > _DEEPEST or left[0] < 0:
        raise ValueError(f"expected at most {_MOST_VALUES:,} values, not more than {_DEEPEST} inside one another")
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth + 1, left) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, depth + 1, left) for inner in value]
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected numbers that are finite")
    if value is not None and not isinstance(value, (str, bool, int, float)):
        raise ValueError(f"expected what JSON can hold, not a {type(value).__name__}")
    return value
