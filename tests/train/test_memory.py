"""What a run will take is added up before it takes it, and compared with what is left."""

import math
import re
from pathlib import Path

import pytest

from mindspeed_ms.config.decoder import DecoderSpec
from mindspeed_ms.errors import TrainError
from mindspeed_ms.train import memory

SPEC = DecoderSpec(
    model_type="llama", vocab_size=1000, hidden_size=64, intermediate_size=160, num_hidden_layers=4,
    num_attention_heads=2, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
)  # fmt: skip
SIZE = 1000 * 64 + 64 + 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64)


def of(**changes):
    settings = {"trained": SIZE, "state_floats": 2 * SIZE, **changes}
    return memory.estimate(SPEC, settings.pop("shapes", [(8, 128)]), **settings)


def test_parameters_gradients_and_state_are_counted_exactly():
    found = of()
    # of the tied table two gradients, and their sum
    table = 1000 * 64
    assert (found.parameters, found.gradients, found.optimizer) == (4 * SIZE, 4 * (SIZE + 2 * table), 8 * SIZE)
    parts = (found.parameters, found.gradients, found.optimizer, found.activations, found.loss, found.graphs)
    # The gradients of all but the output layer take the place of activations that are done with.
    assert found.overlap == 4 * (SIZE - table)
    assert found.total == sum(parts) - found.overlap
    assert of(accumulates=True).gradients == found.gradients + 4 * SIZE
    untied = memory.estimate(
        SPEC.model_copy(update={"tie_word_embeddings": False}), [(8, 128)], trained=9, state_floats=0
    )
    assert (untied.parameters, untied.gradients) == (4 * (SIZE + table), 36)
    lora = of(trained=500, state_floats=1000, extra=500)
    assert (lora.parameters, lora.gradients, lora.optimizer) == (4 * SIZE + 2000, 2000, 4000)


def test_activations_grow_with_the_largest_batch_and_not_with_others():
    one = of().activations
    assert of(shapes=[(16, 128)]).activations == of(shapes=[(4, 32), (16, 128), (64, 16)]).activations == 2 * one
    assert of(shapes=[(4, 32), (16, 128)]).shape == (16, 128)
    assert of(recompute=True).activations < one / 1.8


def test_the_loss_keeps_a_block_of_logits_of_the_rows_that_its_kernel_takes():
    def block(vocabulary, tokens):
        spec = SPEC.model_copy(update={"vocab_size": vocabulary})
        found = memory.estimate(spec, [(1, tokens)], trained=1, state_floats=0)
        return (found.loss - memory._PACKED) // (4 * vocabulary)

    # at most 128 rows, or 2 Mi logits where that is more; blocks of like size
    assert [block(151_936, tokens) for tokens in (100, 128, 129, 512, 4096)] == [100, 128, 65, 128, 128]
    assert [block(1024, tokens) for tokens in (2048, 3000, 8192)] == [2048, 1500, 2048]


def test_the_kernel_of_the_loss_has_the_same_block():
    source = (Path(__file__).resolve().parents[2] / "ops/native/src/train_loss.cc").read_text(encoding="utf-8")
    assert re.search(r"kLogits = 2 << 20;", source) and memory._LOGITS == 2 << 20
    assert re.search(rf"kFewestRows = {memory._FEWEST_ROWS};", source)


# Peaks in MiB of processes that made two steps with AdamW (VmHWM): model, batch, what else, peak.
WIDE = {"vocab_size": 151_936, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2}
BROAD = {"vocab_size": 32_768, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4}
BROAD |= {"num_attention_heads": 8, "num_key_value_heads": 4}
SMOLLM2 = {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
SMOLLM2 |= {"num_attention_heads": 9, "num_key_value_heads": 3}
PEAKS = {
    "tied, many tokens": (WIDE, True, (2, 256), None, 1497),
    "untied, many tokens": (WIDE, False, (2, 256), None, 1793),
    "tied": (BROAD, True, (4, 256), None, 1193),
    "untied": (BROAD, False, (4, 256), None, 1320),
    "micro-batches, tied": ({**WIDE, "vocab_size": 65_536, "num_hidden_layers": 4}, True, (4, 256), "micro", 1133),
    "micro-batches, untied": (BROAD, False, (4, 256), "micro", 1498),
    "SmolLM2": (SMOLLM2, True, (4, 128), None, 3229),
    "SmolLM2 with adapters of rank 8": (SMOLLM2, True, (4, 256), "lora", 2810),
}


@pytest.mark.parametrize("case", PEAKS)
def test_estimates_are_near_the_peaks_of_real_steps(case):
    sizes, tied, shape, choice, peak = PEAKS[case]
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, **sizes}
    spec = DecoderSpec(model_type="llama", head_dim=64, tie_word_embeddings=tied, **heads)
    shapes = spec.parameter_shapes()
    trained, options = sum(math.prod(shape) for shape in shapes.values()), {"accumulates": choice == "micro"}
    if choice == "lora":
        layers = [shape for name, shape in shapes.items() if len(shape) == 2 and name.startswith("model.layers.")]
        trained = 8 * sum(sum(shape) for shape in layers)
        options |= {"extra": trained, "adapters": len(layers)}
    found = memory.estimate(spec, [shape], trained=trained, state_floats=2 * trained, **options)
    assert 0.9 < found.total / (peak << 20) < 1.2


def test_a_checkpoint_is_a_copy_of_what_it_holds_unless_the_run_waits_for_it():
    numbers = 3 * SIZE
    saved = memory.estimate(SPEC, [(8, 128)], trained=SIZE, state_floats=2 * SIZE, saved_floats=numbers)
    plain = memory.estimate(SPEC, [(8, 128)], trained=SIZE, state_floats=2 * SIZE)
    assert plain.snapshot == 0
    assert saved.snapshot == saved.total - plain.total == 4 * numbers + memory._ENCODING
    assert memory.without_snapshot(saved).snapshot == memory._ENCODING
    assert memory.without_snapshot(plain) == plain


def test_too_little_memory_is_one_line_with_the_numbers_and_what_to_change():
    needed = of()
    memory.require(needed, needed.total, [])
    memory.require(needed, None, [])
    with pytest.raises(TrainError) as error:
        memory.require(needed, needed.total - 1, ["lower data.batch_size", "set step.recompute: true"])
    text = str(error.value)
    assert "\n" not in text and "[8, 128]" in text
    assert f"{needed.total / 1e9:.2f} GB" in text and text.endswith("lower data.batch_size, set step.recompute: true")


def test_what_is_left_is_no_more_than_the_machine_has():
    with open("/proc/meminfo") as file:
        total = int(next(line for line in file if line.startswith("MemTotal")).split()[1]) * 1024
    assert 0 < memory.available_bytes() <= total


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_the_tightest_control_group_of_version_2_counts_without_its_droppable_files(tmp_path):
    write(tmp_path / "a", memory__max="1000\n", memory__current="300\n", memory__stat="anon 1\ninactive_file 50\n")
    write(tmp_path / "a" / "b", memory__max="max\n", memory__current="100\n")
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    assert list(memory._groups(tmp_path, own)) == [750]


def test_a_control_group_of_version_1_counts_too(tmp_path):
    write(tmp_path / "memory", memory__limit_in_bytes="500", memory__usage_in_bytes="600")
    own = tmp_path / "own"
    own.write_text("5:cpu:/x\n4:memory:/not/here\n")
    assert list(memory._groups(tmp_path, own)) == [0]
