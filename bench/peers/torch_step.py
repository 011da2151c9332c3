#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One case of `./run bench engine` in PyTorch, as its users would write it: the model of a spec in
bench/engine/cases, trained on made-up data; prints one JSON object with the median step. Run it
through bench/peers/torch_env.sh (bench/engine/bench.py does).

usage: torch_step.py SPEC.json THREADS STEPS"""

import json
import math
import resource
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

PRESETS = {
    "gpt2-124m": {
        "family": "gpt2",
        "n_layer": 12,
        "n_head": 12,
        "n_embd": 768,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
}


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width = c["n_embd"]
        self.heads = c["n_head"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, hidden):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        mixed = F.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, c, length):
        super().__init__()
        # The vocabulary is padded to a multiple of 64, as is usual: it is faster.
        vocab = (c["vocab_size"] + 63) // 64 * 64
        self.tokens, self.places = nn.Embedding(vocab, c["n_embd"]), nn.Embedding(
            c["n_positions"], c["n_embd"]
        )
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["n_layer"]))
        self.norm = nn.LayerNorm(c["n_embd"])
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, self.hidden)
        return F.linear(self.norm(x), self.tokens.weight)


class Residual(nn.Module):
    def __init__(self, into, out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = (
            nn.Identity()
            if stride == 1 and into == out
            else nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def resnet(c):
    layers, into = [
        nn.Conv2d(c["in_channels"], 64, 3, 1, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ], 64
    for stage, (width, count) in enumerate(zip(c["channels"], c["blocks"])):
        for block in range(count):
            layers.append(Residual(into, width, 2 if stage and not block else 1))
            into = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, c["n_classes"])
    )


def dense(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return layers


class Dlrm(nn.Module):
    def __init__(self, c):
        super().__init__()
        tables, width = len(c["table_rows"]), c["embedding_dim"]
        self.bottom = nn.Sequential(*dense(c["dense_features"], *c["bottom"]))
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(r, width, mode="sum", sparse=True) for r in c["table_rows"]
        )
        pairs = tables * (tables + 1) // 2
        self.top = nn.Sequential(*dense(width + pairs, *c["top"]), nn.Linear(c["top"][-1], 1))
        self.pairs = torch.triu_indices(tables + 1, tables + 1, 1)

    def forward(self, x, bags):
        x = self.bottom(x)
        z = torch.stack([x] + [table(bags[i]) for i, table in enumerate(self.tables)], 1)
        dots = torch.bmm(z, z.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, dots], 1)).squeeze(1)


def setup(spec):
    """The model, its loss of a fresh batch, and how many tokens or samples that is."""
    c = spec["model"].get("config") or PRESETS[spec["model"]["preset"]]
    batch = spec["hyperparameters"]["batch_size"]
    if c["family"] == "gpt2":
        length = spec["data"]["sequence_length"]
        model = Gpt2(c, length)

        def loss():
            x, y = (torch.randint(0, c["vocab_size"], (batch, length)) for _ in range(2))
            return lambda: F.cross_entropy(model(x).float().flatten(0, 1), y.flatten())

        return model, loss, batch * length
    if c["family"] == "dlrm":
        model = Dlrm(c)

        def loss():
            x, y = torch.randn(batch, c["dense_features"]), torch.randint(0, 2, (batch,)).float()
            bags = torch.stack(
                [torch.randint(0, r, (batch, c["lookups"])) for r in c["table_rows"]]
            )
            return lambda: F.binary_cross_entropy_with_logits(model(x, bags), y)

        return model, loss, batch
    # Channels last is faster in fp32, channels first in bf16 (both were measured).
    last = torch.channels_last if spec["precision"] == "fp32" else torch.contiguous_format
    model = resnet(c).to(memory_format=last)
    x = torch.randn(batch, c["in_channels"], c["in_height"], c["in_width"]).to(memory_format=last)
    y = torch.randint(0, c["n_classes"], (batch,))
    return model, lambda: lambda: F.cross_entropy(model(x).float(), y), batch


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(int(sys.argv[2]))
    torch.manual_seed(1)
    h = spec["hyperparameters"]
    model, fresh, count = setup(spec)
    if h["optimizer"] == "sgd":
        momentum = h.get("momentum", 0.9)
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=h["learning_rate"],
            momentum=momentum,
            weight_decay=h["weight_decay"],
        )
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=h["learning_rate"], weight_decay=h["weight_decay"], foreach=True
        )
    # The first steps touch fresh memory, which costs more than the arithmetic: they do not count.
    times, steps = [], int(sys.argv[3])
    warm = max(2, steps // 3)
    for step in range(warm + steps):
        compute = fresh()
        begin = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=spec["precision"] == "bf16"):
            loss = compute()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= warm:
            times.append(time.perf_counter() - begin)
    median = sorted(times)[len(times) // 2]
    print(
        json.dumps(
            {
                "step_ms": median * 1e3,
                "per_second": count / median,
                "version": torch.__version__,
                "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
