"""One process of the peer: PyTorch on the CPU, eager with SDPA and the fused AdamW, or torch.compile.

`python benchmarks/train_torch.py CASE [--compile] [--floor]`; the last line is one JSON object.
"""

import time

import torch
import torch.nn.functional as F
from torch import nn
from train_common import BETAS, CASES, CLIP, DECAY, EPS, arguments, batches, finish, load, resident_mb, time_steps


class Attention(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.heads, self.kv_heads, self.dim = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
        self.q_proj = nn.Linear(spec.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(spec.hidden_size, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(spec.hidden_size, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, spec.hidden_size, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.q_proj(x).view(b, t, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


def turned(x):
    low, high = x.chunk(2, -1)
    return torch.cat((-high, low), -1)


class MLP(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = nn.Linear(spec.intermediate_size, spec.hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = nn.RMSNorm(spec.hidden_size, spec.rms_norm_eps)
        self.mlp = MLP(spec)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.layers = nn.ModuleList(Block(spec) for _ in range(spec.num_hidden_layers))
        self.norm = nn.RMSNorm(spec.hidden_size, spec.rms_norm_eps)

    def forward(self, ids, cos, sin):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """A Llama with its loss, parameters named as in Hugging Face."""

    def __init__(self, spec):
        super().__init__()
        self.model = Decoder(spec)
        self.lm_head = nn.Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        angles = torch.outer(torch.arange(4096.0), torch.from_numpy(spec.inv_freq().copy()))
        angles = torch.cat((angles, angles), -1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, ids, labels):
        t = ids.shape[1]
        x = self.model(ids, self.cos[:t], self.sin[:t])
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), labels.flatten())


def floor(spec, rows):
    """Milliseconds of all matrix products of a step, each timed alone at its best."""
    h, inner, dim = spec.hidden_size, spec.intermediate_size, spec.head_dim
    q, kv = spec.num_attention_heads * dim, spec.num_key_value_heads * dim
    layer = [(q, h), (kv, h), (kv, h), (h, q), (inner, h), (inner, h), (h, inner)]
    products = [(n, k, spec.num_hidden_layers) for n, k in layer] + [(spec.vocab_size, h, 1)]
    best, total = {}, 0.0
    for n, k, count in products:
        if (n, k) not in best:
            x, w, dy = torch.randn(rows, k), torch.randn(n, k), torch.randn(rows, n)
            y, dx, dw = torch.empty(rows, n), torch.empty(rows, k), torch.empty(n, k)
            calls = ((x, w.T, y), (dy, w, dx), (dy.T, x, dw))
            best[n, k] = sum(min(timed(a, b, out) for _ in range(7)) for a, b, out in calls)
        total += best[n, k] * count
    return 1e3 * total


def timed(a, b, out):
    start = time.perf_counter()
    torch.matmul(a, b, out=out)
    return time.perf_counter() - start


def main():
    args = arguments(__doc__)
    torch.set_num_threads(args.threads)
    base = resident_mb()
    spec, weights, rate = load(args.case, args.model)
    if args.floor:
        case = CASES[args.case]
        return finish({"floor_ms": floor(spec, case.batch * case.length)}, base)
    network = Llama(spec)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(weights(name)))
    groups = [
        {"params": [p for p in network.parameters() if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in network.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPS, fused=True)
    forward = torch.compile(network) if args.compile else network
    data = [
        (torch.from_numpy(ids).long(), torch.from_numpy(labels).long())
        for ids, labels in batches(args.case, spec, args.model, args.steps + 2)
    ]

    def step(number):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*data[number])
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    finish(time_steps(step, args.steps), base)


if __name__ == "__main__":
    main()
