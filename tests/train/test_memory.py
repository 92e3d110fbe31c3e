"""What a run will take is added up before it takes it, and compared with what is left."""

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
    assert (found.parameters, found.gradients, found.optimizer) == (4 * SIZE, 4 * SIZE, 8 * SIZE)
    parts = (found.parameters, found.gradients, found.optimizer, found.activations, found.graphs)
    # The gradients of all but the output layer take the place of activations that are done with.
    assert found.overlap == 4 * (SIZE - 1000 * 64)
    assert found.total == sum(parts) - found.overlap
    assert of(micro_batches=2).gradients == 8 * SIZE
    lora = of(trained=500, state_floats=1000, extra=500)
    assert (lora.parameters, lora.gradients, lora.optimizer) == (4 * SIZE + 2000, 2000, 4000)


def test_activations_grow_with_the_largest_batch_and_not_with_others():
    one = of().activations
    assert of(shapes=[(16, 128)]).activations == of(shapes=[(4, 32), (16, 128), (64, 16)]).activations == 2 * one
    assert of(shapes=[(4, 32), (16, 128)]).shape == (16, 128)
    assert of(recompute=True).activations < one / 1.8


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
