#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A case of bench/gpu in PyTorch on the same GPU, as its users would write it to be fast: fp32
weights under bf16 autocast, torch.compile over model and loss, flash attention (SDPA), fused AdamW,
channels last. The batch lies on the device already. Prints one JSON object.

usage: torch_gpu.py [--device cuda|cpu] version
       torch_gpu.py [--device cuda|cpu] ceilings MxNxK...
       torch_gpu.py [--device cuda|cpu] step SPEC.json [--steps N] [--seconds N]"""

import argparse
import json
import sys
import time
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as e:
    sys.exit(f"this python3 has no PyTorch: {e}")

WARM = 3  # the first compiles
VOCABULARY_MULTIPLE = 64


# ------------------------------------------------------------------------------------------ models


def attend(q, k, v):
    """[batch, heads, tokens, size] each; fewer heads of k and v serve several of q."""
    more = {"enable_gqa": True} if k.shape[1] != q.shape[1] else {}
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, **more)
    return y.transpose(1, 2).flatten(2)


class Gpt2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.heads = c["n_embd"], c["n_head"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, _):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        x = x + self.out(attend(*qkv.permute(2, 0, 3, 1, 4)))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, inner = c["hidden_size"], c["intermediate_size"]
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.size = width // self.heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def rotate(self, x, angles):
        cos, sin = angles
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).type_as(x)

    def forward(self, x, angles):
        heads, kv_heads = self.heads, self.kv_heads
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (heads + 2 * kv_heads, self.size))
        q, k, v = qkv.transpose(1, 2).split([heads, kv_heads, kv_heads], 1)
        x = x + self.out(attend(self.rotate(q, angles), self.rotate(k, angles), v))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Language(nn.Module):
    def __init__(self, c, length):
        super().__init__()
        self.gpt2 = c["family"] == "gpt2"
        width = c["n_embd" if self.gpt2 else "hidden_size"]
        layers = c["n_layer" if self.gpt2 else "num_hidden_layers"]
        vocabulary = -(-c["vocab_size"] // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE
        block = Gpt2Block if self.gpt2 else LlamaBlock
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(block(c) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if self.gpt2 else RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        if self.gpt2 or c["tie_word_embeddings"]:
            self.head.weight = self.tokens.weight
        if self.gpt2:
            self.places = nn.Embedding(length, width)
            return
        size = width // c["num_attention_heads"]
        steps = torch.arange(0, size, 2) / size
        angle = torch.outer(torch.arange(length), c["rope_theta"] ** -steps)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, labels):
        x = self.tokens(tokens)
        if self.gpt2:
            x = x + self.places.weight[: tokens.shape[1]]
        angles = None if self.gpt2 else (self.cos, self.sin)
        for block in self.blocks:
            x = block(x, angles)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class Bottleneck(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        out = 4 * width

        def conv(a, b, kernel, step=1):
            return nn.Sequential(nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False),
                                 nn.BatchNorm2d(b))

        self.first, self.middle = conv(into, width, 1), conv(width, width, 3, stride)
        self.last = conv(width, out, 1)
        plain = stride == 1 and into == out
        self.short = nn.Identity() if plain else conv(into, out, 1, stride)

    def forward(self, x):
        y = self.last(F.relu(self.middle(F.relu(self.first(x)))))
        return F.relu(y + self.short(x))


class ResNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        deep = c["stem"] == "7x7"
        kernel, step = (7, 2) if deep else (3, 1)
        into = c["channels"][0]
        layers = [nn.Conv2d(c["in_channels"], into, kernel, step, kernel // 2, bias=False),
                  nn.BatchNorm2d(into), nn.ReLU()]
        layers += [nn.MaxPool2d(3, 2, 1)] if deep else []
        for stage, (width, count) in enumerate(zip(c["channels"], c["blocks"])):
            for block in range(count):
                layers.append(Bottleneck(into, width, 2 if stage and not block else 1))
                into = 4 * width
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                    nn.Linear(into, c["n_classes"]))

    def forward(self, x, labels):
        return F.cross_entropy(self.layers(x).float(), labels)


def dense(*widths):
    return [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]


class Dlrm(nn.Module):
    def __init__(self, c):
        super().__init__()
        tables, width = len(c["table_rows"]), c["embedding_dim"]
        self.bottom = nn.Sequential(*dense(c["dense_features"], *c["bottom"]))
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True)
                                    for rows in c["table_rows"])
        self.top = nn.Sequential(*dense(width + tables * (tables + 1) // 2, *c["top"]),
                                 nn.Linear(c["top"][-1], 1))
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1))

    def forward(self, x, bags, labels):
        x = self.bottom(x)
        sums = [table(bags[i]).type_as(x) for i, table in enumerate(self.tables)]
        z = torch.stack([x, *sums], 1)
        dots = torch.bmm(z, z.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        y = self.top(torch.cat([x, dots], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(y.float(), labels)


# ----------------------------------------------------------------------------------------- setting


def setup(spec, device):
    """The model, a batch, and how many tokens or samples that is."""
    c, batch = spec["model"]["config"], spec["hyperparameters"]["batch_size"]

    def ids(limit, *shape):
        return torch.randint(0, limit, shape, device=device)

    if c["family"] in ("gpt2", "llama"):
        length = spec["data"]["sequence_length"]
        batch_of = [ids(c["vocab_size"], batch, length) for _ in range(2)]
        return Language(c, length).to(device), batch_of, batch * length
    if c["family"] == "dlrm":
        bags = torch.stack([ids(rows, batch, c["lookups"]) for rows in c["table_rows"]])
        batch_of = [torch.randn(batch, c["dense_features"], device=device), bags,
                    ids(2, batch).float()]
        return Dlrm(c).to(device), batch_of, batch
    x = torch.randn(batch, c["in_channels"], c["in_height"], c["in_width"], device=device)
    batch_of = [x.to(memory_format=torch.channels_last), ids(c["n_classes"], batch)]
    return ResNet(c).to(device, memory_format=torch.channels_last), batch_of, batch


def optimizer_of(model, h, device):
    if h["optimizer"] == "sgd":
        return torch.optim.SGD(model.parameters(), lr=h["learning_rate"], momentum=h["momentum"],
                               weight_decay=h["weight_decay"])
    return torch.optim.AdamW(model.parameters(), lr=h["learning_rate"], betas=(0.9, 0.95),
                             weight_decay=h["weight_decay"], fused=device == "cuda")


def settle(device):
    if device == "cuda":
        torch.cuda.synchronize()


def step(args):
    spec = json.loads(Path(args.words[0]).read_text(encoding="utf-8"))
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    h, times = spec["hyperparameters"], []
    model, batch, count = setup(spec, args.device)
    optimizer, compiled = optimizer_of(model, h, args.device), torch.compile(model)
    begin = time.perf_counter()
    for i in range(WARM + args.steps):
        settle(args.device)
        start = time.perf_counter()
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = compiled(*batch)
        loss.backward()
        if h["grad_clip"]:
            nn.utils.clip_grad_norm_(model.parameters(), h["grad_clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settle(args.device)
        if i >= WARM:
            times.append(time.perf_counter() - start)
        if times and time.perf_counter() - begin > args.seconds:
            break
    median = sorted(times)[len(times) // 2]
    return {"step_ms": median * 1e3, "per_second": count / median, "steps": len(times),
            "loss": loss.item(), "how": "torch.compile, flash attention, bf16 autocast",
            "peak_bytes": torch.cuda.max_memory_reserved() if args.device == "cuda" else None}


def ceilings(args):
    """TFLOP/s of x w', by the names of bench-ceilings; GB/s of a copy."""
    values = {}

    def seconds_of(work):
        work()
        settle(args.device)
        begin, calls = time.perf_counter(), 0
        while calls < 10 or time.perf_counter() - begin < 0.2:
            work()
            calls += 1
            if calls % 10 == 0:
                settle(args.device)
        settle(args.device)
        return (time.perf_counter() - begin) / calls

    for shape in args.words:
        m, n, k = (int(side) for side in shape.split("x"))
        x = torch.rand(m, k, device=args.device, dtype=torch.float32).sub_(0.5).bfloat16()
        w = torch.rand(n, k, device=args.device, dtype=torch.float32).sub_(0.5).bfloat16()
        values[f"gemm {shape} bf16"] = 2e-12 * m * n * k / seconds_of(lambda: F.linear(x, w))
    x = torch.empty(1 << (30 if args.device == "cuda" else 20), dtype=torch.int16,
                    device=args.device)
    y = torch.empty_like(x)
    seconds = seconds_of(lambda: y.copy_(x))
    values["memory, copied (read and written)"] = 2e-9 * x.numel() * 2 / seconds
    return {"values": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20, help="after which no step begins")
    parser.add_argument("what", choices=["version", "ceilings", "step"])
    parser.add_argument("words", nargs="*")
    args = parser.parse_args()
    if not hasattr(torch, "compile") or not hasattr(F, "scaled_dot_product_attention"):
        sys.exit(f"PyTorch {torch.__version__} has no torch.compile or no SDPA: 2.0 or newer")
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit(f"PyTorch {torch.__version__} sees no CUDA device")
    answers = {"version": lambda _: {"version": torch.__version__}, "ceilings": ceilings,
               "step": step}
    print(json.dumps(answers[args.what](args)))


if __name__ == "__main__":
    main()
