"""PEFT reads our adapters and we read PEFT's: equal logits on the same base model."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.peer

TINY = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": False,
}
IDS = np.random.default_rng(0).integers(0, 96, (2, 11))
PEFT_SETTINGS = {
    "some names": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.1},
    "all linear": {"r": 8, "lora_alpha": 4, "target_modules": "all-linear"},
    "rank-stabilised": {"r": 9, "lora_alpha": 6, "target_modules": ["v_proj"], "use_rslora": True},
    "some layers": {"r": 2, "lora_alpha": 2, "target_modules": ["o_proj"], "layers_to_transform": [1]},
}
OUR_SETTINGS = {
    "some names": {"rank": 4, "alpha": 8, "targets": ["q_proj", "down_proj"], "dropout": 0.25},
    "all linear": {"rank": 8, "alpha": 4.5},
    "rank-stabilised": {"rank": 9, "alpha": 6, "use_rslora": True},
    "one layer": {"rank": 2, "alpha": 2, "targets": ["model.layers.1.self_attn.o_proj"]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random Llama in Hugging Face's layout."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY))
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.2)
    model.save_pretrained(folder)
    return folder


def theirs(base):
    return transformers.LlamaForCausalLM.from_pretrained(base, dtype=torch.float32).eval()


def ours(base):
    import mindspore as ms

    from mindspeed_ms.weights.load import load_model

    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    return load_model(base)


def their_logits(model):
    with torch.no_grad():
        return model(torch.from_numpy(IDS)).logits.numpy()


def our_logits(model):
    from mindspore import Tensor

    return model(Tensor(IDS.astype(np.int32))).asnumpy()


def assert_equal(one, other, plain):
    assert np.abs(other - plain).max() > 0.05 * np.abs(plain).max(), "the adapter does nothing"
    assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


@pytest.mark.parametrize("name", PEFT_SETTINGS)
def test_we_load_what_peft_trained(name, base, tmp_path):
    from mindspeed_ms.train.adapter import load_adapter
    from mindspeed_ms.train.lora import merge_lora

    model = theirs(base)
    plain = their_logits(model)
    peer = peft.get_peft_model(model, peft.LoraConfig(**PEFT_SETTINGS[name]))
    for parameter in (p for n, p in peer.named_parameters() if "lora_" in n):
        parameter.data.normal_(0, 0.3)
    peer.eval().save_pretrained(tmp_path)
    network = ours(base)
    report = load_adapter(network, tmp_path)
    trainable, total = peer.get_nb_trainable_parameters()
    assert (report.trained_parameters, report.all_parameters) == (trainable, total)
    expected = their_logits(peer)
    assert_equal(our_logits(network), expected, plain)
    merge_lora(network)
    assert_equal(our_logits(network), expected, plain)


@pytest.mark.parametrize("name", OUR_SETTINGS)
def test_peft_loads_what_we_trained(name, base, tmp_path):
    from mindspore import Tensor

    from mindspeed_ms.train.adapter import save_adapter
    from mindspeed_ms.train.lora import LoraConfig, apply_lora

    network = ours(base)
    report = apply_lora(network, LoraConfig(**OUR_SETTINGS[name]))
    network.set_train(False)
    generator = np.random.default_rng(1)
    for parameter in network.trainable_params():
        parameter.set_data(Tensor(generator.normal(0, 0.3, parameter.shape).astype(np.float32)))
    save_adapter(network, tmp_path, base=str(base))
    plain = their_logits(theirs(base))
    peer = peft.PeftModel.from_pretrained(theirs(base), tmp_path).eval()
    wrapped = {
        n.partition(".lora_A")[0].removeprefix("base_model.model.") for n, _ in peer.named_parameters() if "lora_A" in n
    }
    assert wrapped == set(report.wrapped)
    assert_equal(our_logits(network), their_logits(peer), plain)
