#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/engine/: for each case a job spec, a data file, initial weights, and what
PyTorch says of them: logits, loss and every gradient of the first step, then losses and gradient
norms of ten optimizer steps and the weights after them. Everything is computed in float64 and
stored in fp32, so that a difference is the engine's own rounding. The same first step is run once
more under PyTorch's bf16 (weights rounded to bf16, autocast): its distance from float64 is stored
as `bf16_error.*`, which is what the engine's bf16 is measured against.

usage: make_golden.py [CASE...]   (needs python3-torch; the tests need only the files)"""

import json
import math
import struct
import sys
from pathlib import Path

import numpy
import torch

import models

HERE = Path(__file__).resolve().parent / "engine"
STEPS = 10
torch.set_num_threads(1)


def write_safetensors(path, tensors):
    header, at, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name, value in tensors.items():
        data = numpy.ascontiguousarray(value, dtype="<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(value.shape),
            "data_offsets": [at, at + len(data)],
        }
        at += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def learning_rate(h, total, step):
    """docs: plan_learning_rate."""
    peak, warm = h["learning_rate"], h["warmup_steps"]
    if step < warm:
        return peak * (step + 1) / (warm + 1)
    span = total - 1 - warm
    t = min(1.0, (step - warm) / span) if span > 0 else 1.0
    low = peak * h["min_lr_ratio"]
    if h["schedule"] == "cosine":
        return low + (peak - low) * 0.5 * (1 + math.cos(math.pi * t))
    if h["schedule"] == "linear":
        return low + (peak - low) * (1 - t)
    return peak


class Optimizer:
    """AdamW with decoupled decay, SGD with decay in the gradient; decay on tensors of rank >= 2
    that are not embedding tables of a click-through model; clipping by the global norm."""

    def __init__(self, spec, weights, trained):
        self.h, self.w, self.trained = spec["hyperparameters"], weights, trained
        self.m = {n: torch.zeros_like(weights[n]) for n in trained}
        self.v = {n: torch.zeros_like(weights[n]) for n in trained}

    def step(self, grads, step):
        h = self.h
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads.values()))
        scale = h["grad_clip"] / norm if h["grad_clip"] > 0 and norm > h["grad_clip"] else 1.0
        rate, t = learning_rate(h, STEPS, step), step + 1
        for name in self.trained:
            w, g = self.w[name], grads[name] * scale
            table = name.startswith("embedding.")
            decay = h["weight_decay"] if w.dim() > 1 and not table else 0.0
            if h["optimizer"] == "sgd":
                self.m[name] = h["momentum"] * self.m[name] + g + decay * w
                self.w[name] = w - rate * self.m[name]
                continue
            self.m[name] = h["beta1"] * self.m[name] + (1 - h["beta1"]) * g
            self.v[name] = h["beta2"] * self.v[name] + (1 - h["beta2"]) * g * g
            m, v = self.m[name] / (1 - h["beta1"] ** t), self.v[name] / (1 - h["beta2"] ** t)
            self.w[name] = w - rate * (m / (v.sqrt() + h["eps"]) + decay * w)
        return norm


HYPER = {
    "max_steps": STEPS,
    "batch_size": 4,
    "micro_batch_size": 4,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "warmup_steps": 2,
    "min_lr_ratio": 0.1,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-5,
    "momentum": 0.9,
    "grad_clip": 1.0,
    "dropout": 0.0,
    "label_smoothing": 0.0,
}
# eps is large because some gradients are 0 but for rounding (those of the keys' biases): with a
# tiny eps Adam would turn that noise into whole steps.
SGD = {"optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 5e-4}


def spec_of(task, config, data, hyper, **more):
    return {
        "task": task,
        "model": {"config": config},
        "training_file": more.pop("files", "file_golden"),
        "data": dict(data, shuffle=False),
        "hyperparameters": dict(HYPER, **hyper),
        "precision": "fp32",
        "resources": {"instance_type": "cpu-small", "count": 1},
        "seed": 1,
        **more,
    }


class Draw:
    """Initial weights by rule: name and shape -> values."""

    def __init__(self, seed):
        self.random = numpy.random.default_rng(seed)
        self.out = {}

    def add(self, name, *shape, scale=None, base=0.0):
        scale = 0.5 / math.sqrt(shape[-1]) if scale is None else scale
        self.out[name] = (base + scale * self.random.standard_normal(shape)).astype("f4")

    def norm(self, name, width, bias=True):
        self.add(f"{name}.weight", width, scale=0.1, base=1.0)
        if bias:
            self.add(f"{name}.bias", width, scale=0.1)

    def batch_norm(self, name, width):
        self.norm(name, width)
        self.add(f"{name}.running_mean", width, scale=0.1)
        self.out[f"{name}.running_var"] = numpy.ones(width, "f4")


def draw_gpt2(c, seed, adapters=None):
    d, width = Draw(seed), c["n_embd"]
    d.add("transformer.wte.weight", c["vocab_size"], width)
    d.add("transformer.wpe.weight", c["n_positions"], width)
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}"
        d.norm(f"{h}.ln_1", width)
        d.norm(f"{h}.ln_2", width)
        shapes = {
            "attn.c_attn": (width, 3 * width),
            "attn.c_proj": (width, width),
            "mlp.c_fc": (width, 4 * width),
            "mlp.c_proj": (4 * width, width),
        }
        for name, (rows, columns) in shapes.items():
            d.add(f"{h}.{name}.weight", rows, columns, scale=0.7 / math.sqrt(rows))
            d.add(f"{h}.{name}.bias", columns, scale=0.1)
            if adapters and name.split(".")[1] in adapters["target_modules"]:
                d.add(f"base_model.model.{h}.{name}.lora_A.weight", adapters["rank"], rows)
                d.add(f"base_model.model.{h}.{name}.lora_B.weight", columns, adapters["rank"])
    d.norm("transformer.ln_f", width)
    return d.out


def draw_llama(c, seed, adapters=None):
    d, width = Draw(seed), c["hidden_size"]
    size = width // c["num_attention_heads"]
    kv = size * c["num_key_value_heads"]
    inner = c["intermediate_size"]
    d.add("model.embed_tokens.weight", c["vocab_size"], width)
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}"
        d.norm(f"{h}.input_layernorm", width, bias=False)
        d.norm(f"{h}.post_attention_layernorm", width, bias=False)
        shapes = {
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (kv, width),
            "self_attn.v_proj": (kv, width),
            "self_attn.o_proj": (width, width),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        for name, (rows, columns) in shapes.items():
            d.add(f"{h}.{name}.weight", rows, columns, scale=0.7 / math.sqrt(columns))
            if adapters and name.split(".")[1] in adapters["target_modules"]:
                d.add(f"base_model.model.{h}.{name}.lora_A.weight", adapters["rank"], columns)
                d.add(f"base_model.model.{h}.{name}.lora_B.weight", rows, adapters["rank"])
    d.norm("model.norm", width, bias=False)
    if not c.get("tie_word_embeddings", False):
        d.add("lm_head.weight", c["vocab_size"], width)
    return d.out


def draw_dense(d, prefix, widths):
    for i, (k, n) in enumerate(zip(widths, widths[1:])):
        d.add(f"{prefix}.{i}.weight", n, k, scale=1.0 / math.sqrt(k))
        d.add(f"{prefix}.{i}.bias", n, scale=0.1)


def draw_mlp(c, seed):
    d = Draw(seed)
    features = c["in_channels"] * c["in_height"] * c["in_width"]
    draw_dense(d, "layers", [features, *c["hidden"], c["n_classes"]])
    return d.out


def draw_cnn(c, seed):
    d, channels = Draw(seed), c["in_channels"]
    for s, width in enumerate(c["channels"]):
        for b in range(c["blocks_per_stage"]):
            d.add(
                f"features.{s}.{b}.weight",
                width,
                channels,
                3,
                3,
                scale=math.sqrt(2 / (9 * channels)),
            )
            d.add(f"features.{s}.{b}.bias", width, scale=0.1)
            channels = width
    side = 2 ** len(c["channels"])
    draw_dense(
        d,
        "classifier",
        [c["in_height"] // side * (c["in_width"] // side) * channels, *c["hidden"], c["n_classes"]],
    )
    return d.out


def draw_resnet(c, seed):
    d = Draw(seed)

    def conv(name, out, into, kernel):
        d.add(
            f"{name}.convolution.weight",
            out,
            into,
            kernel,
            kernel,
            scale=math.sqrt(2 / (into * kernel * kernel)),
        )
        d.batch_norm(f"{name}.normalization", out)

    stem = 7 if c["stem"] == "7x7" else 3
    width = c["channels"][0]
    conv("resnet.embedder.embedder", width, c["in_channels"], stem)
    into, bottleneck = width, c["block"] == "bottleneck"
    for s, count in enumerate(c["blocks"]):
        width = c["channels"][s]
        out = width * 4 if bottleneck else width
        for b in range(count):
            at = f"resnet.encoder.stages.{s}.layers.{b}"
            if (s > 0 and b == 0) or into != out:
                conv(f"{at}.shortcut", out, into, 1)
            shapes = (
                [(width, into, 1), (width, width, 3), (out, width, 1)]
                if bottleneck
                else [(width, into, 3), (width, width, 3)]
            )
            for j, (rows, columns, kernel) in enumerate(shapes):
                conv(f"{at}.layer.{j}", rows, columns, kernel)
            into = out
    d.add("classifier.1.weight", c["n_classes"], into)
    d.add("classifier.1.bias", c["n_classes"], scale=0.1)
    return d.out


def draw_dlrm(c, seed):
    d = Draw(seed)
    draw_dense(d, "bottom", [c["dense_features"], *c["bottom"]])
    for t, rows in enumerate(c["table_rows"]):
        d.add(f"embedding.{t}.weight", rows, c["embedding_dim"], scale=0.3)
    features = len(c["table_rows"]) + 1
    draw_dense(d, "top", [c["embedding_dim"] + features * (features - 1) // 2, *c["top"], 1])
    return d.out


class Text:
    """Windows of T bytes; the label is the next byte."""

    files = {"data.txt": "training_file"}

    def __init__(self, spec, seed):
        self.length = spec["data"]["sequence_length"]
        words = numpy.random.default_rng(seed).integers(97, 123, (400, 5))
        self.bytes = b" ".join(bytes(w.tolist()) for w in words)

    def write(self, folder):
        (folder / "data.txt").write_bytes(self.bytes)

    def samples(self):
        return (len(self.bytes) - 1) // self.length

    def batch(self, first, count):
        at = [(first + i) % self.samples() * self.length for i in range(count)]
        take = lambda shift: torch.tensor(
            [list(self.bytes[a + shift : a + shift + self.length]) for a in at]
        )
        return take(0), take(1)


class Images:
    """IDX: u8 images and labels; pixels / 255, channels last."""

    files = {"images.idx": "training_file", "labels.idx": "training_file"}

    def __init__(self, spec, seed):
        c, random = spec["model"]["config"], numpy.random.default_rng(seed)
        self.count = 24
        shape = (self.count, c["in_height"], c["in_width"], c["in_channels"])
        self.images = random.integers(0, 256, shape).astype("u1")
        self.labels = random.integers(0, c["n_classes"], self.count).astype("u1")
        self.labels[0] = c["n_classes"] - 1

    def write(self, folder):
        n, h, w, c = self.images.shape
        shape = (n, h, w) if c == 1 else (n, h, w, c)
        header = bytes([0, 0, 8, len(shape)]) + b"".join(struct.pack(">I", s) for s in shape)
        (folder / "images.idx").write_bytes(header + self.images.tobytes())
        (folder / "labels.idx").write_bytes(
            bytes([0, 0, 8, 1]) + struct.pack(">I", n) + self.labels.tobytes()
        )

    def batch(self, first, count):
        at = [(first + i) % self.count for i in range(count)]
        return torch.tensor(self.images[at].astype("f8") / 255), torch.tensor(
            self.labels[at].astype("i8")
        )


class Targets(Images):
    """IDX: fp32 samples and fp32 targets, for regression."""

    def __init__(self, spec, seed):
        c, random = spec["model"]["config"], numpy.random.default_rng(seed)
        self.count = 24
        self.images = random.standard_normal((self.count, c["in_width"])).astype("f4")
        self.labels = random.standard_normal((self.count, c["n_classes"])).astype("f4")

    def write(self, folder):
        for name, value in (("images.idx", self.images), ("labels.idx", self.labels)):
            header = bytes([0, 0, 13, 2]) + b"".join(struct.pack(">I", s) for s in value.shape)
            (folder / name).write_bytes(header + value.astype(">f4").tobytes())

    def batch(self, first, count):
        at = [(first + i) % self.count for i in range(count)]
        return torch.tensor(self.images[at].astype("f8")), torch.tensor(
            self.labels[at].astype("f8")
        )


class Clicks:
    """CSV: label, dense features, then multi-hot columns of row numbers parted by |."""

    files = {"data.csv": "training_file"}

    def __init__(self, spec, seed):
        c, random = spec["model"]["config"], numpy.random.default_rng(seed)
        self.count, self.rows = 32, c["table_rows"]
        self.dense = numpy.round(random.standard_normal((self.count, c["dense_features"])), 3)
        self.labels = random.integers(0, 2, self.count)
        self.bags = numpy.full((len(self.rows), self.count, c["lookups"]), -1)
        for t, rows in enumerate(self.rows):
            for s in range(self.count):
                k = random.integers(1, c["lookups"] + 1)
                self.bags[t, s, :k] = random.integers(0, rows, k)

    def write(self, folder):
        names = [
            "label",
            *(f"d{i}" for i in range(self.dense.shape[1])),
            *(f"c{t}" for t in range(len(self.rows))),
        ]
        lines = [",".join(names)]
        for s in range(self.count):
            bags = [
                "|".join(str(v) for v in self.bags[t, s] if v >= 0) for t in range(len(self.rows))
            ]
            lines.append(
                ",".join([str(self.labels[s]), *(f"{v:.3f}" for v in self.dense[s]), *bags])
            )
        (folder / "data.csv").write_text("\n".join(lines) + "\n")

    def batch(self, first, count):
        at = [(first + i) % self.count for i in range(count)]
        dense = torch.tensor(self.dense[at].astype("f4").astype("f8"))
        return (dense, torch.tensor(self.bags[:, at])), torch.tensor(self.labels[at].astype("f8"))


GPT2 = {
    "family": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "n_positions": 24,
    "vocab_size": 257,
}
LLAMA = {
    "family": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 24,
    "vocab_size": 257,
    "tie_word_embeddings": False,
}
IMAGE = {"in_channels": 3, "in_height": 12, "in_width": 12, "n_classes": 5}
TEXT = {"format": "text", "tokenizer": "bytes", "sequence_length": 20}
IDX = {"format": "idx"}
LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
GPT2_LORA = dict(LORA, target_modules=["c_attn", "c_proj"])
LLAMA_LORA = dict(LORA, target_modules=["q_proj", "v_proj", "down_proj"])
RESNET = dict(IMAGE, family="cnn", channels=[8, 16], blocks=[1, 2], stem="3x3")
TWO = ["file_samples", "file_labels"]

CASES = {
    "gpt2": (
        spec_of("language_model", GPT2, TEXT, {"micro_batch_size": 2}),
        draw_gpt2,
        models.gpt2,
        Text,
    ),
    "gpt2-lora": (
        spec_of("language_model", GPT2, TEXT, {}, lora=GPT2_LORA),
        lambda c, s: draw_gpt2(c, s, GPT2_LORA),
        models.gpt2,
        Text,
    ),
    "llama": (
        spec_of("language_model", LLAMA, TEXT, {"schedule": "linear"}),
        draw_llama,
        models.llama,
        Text,
    ),
    "llama-lora": (
        spec_of("language_model", dict(LLAMA, tie_word_embeddings=True), TEXT, {}, lora=LLAMA_LORA),
        lambda c, s: draw_llama(c, s, LLAMA_LORA),
        models.llama,
        Text,
    ),
    "mlp": (
        spec_of(
            "regression",
            {
                "family": "mlp",
                "hidden": [24, 16],
                "in_channels": 1,
                "in_height": 1,
                "in_width": 10,
                "n_classes": 3,
            },
            IDX,
            {"schedule": "constant"},
            files=TWO,
        ),
        draw_mlp,
        models.mlp,
        Targets,
    ),
    "cnn": (
        spec_of(
            "image_classification",
            dict(IMAGE, family="cnn", channels=[8, 12], blocks_per_stage=2, hidden=[20]),
            IDX,
            {"label_smoothing": 0.1},
            files=TWO,
        ),
        draw_cnn,
        models.cnn,
        Images,
    ),
    "resnet-basic": (
        spec_of(
            "image_classification",
            dict(RESNET, block="basic"),
            IDX,
            dict(SGD, batch_size=8, micro_batch_size=8),
            files=TWO,
        ),
        draw_resnet,
        models.resnet,
        Images,
    ),
    "resnet-bottleneck": (
        spec_of(
            "image_classification",
            dict(
                RESNET, block="bottleneck", channels=[4, 8], stem="7x7", in_height=20, in_width=20
            ),
            IDX,
            dict(SGD, batch_size=8, micro_batch_size=8),
            files=TWO,
        ),
        draw_resnet,
        models.resnet,
        Images,
    ),
    "dlrm": (
        spec_of(
            "click_through",
            {
                "family": "dlrm",
                "dense_features": 3,
                "embedding_dim": 8,
                "lookups": 3,
                "table_rows": [11, 7, 40],
                "bottom": [12, 8],
                "top": [16],
            },
            {"format": "csv", "label_column": "label", "categorical": ["c0", "c1", "c2"]},
            dict(SGD, momentum=0.0, batch_size=8, micro_batch_size=4),
        ),
        draw_dlrm,
        models.dlrm,
        Clicks,
    ),
}


def trained_names(spec, weights):
    names = [n for n in weights if "running_" not in n]
    return [n for n in names if ".lora_" in n] if "lora" in spec else names


def gradients(model, spec, weights, trained, data, step, cast=None):
    """Loss and gradients of the batch of a step, accumulated over micro-batches, and the logits of
    the first of them."""
    h = spec["hyperparameters"]
    micro, total = h["micro_batch_size"], h["batch_size"]
    loss, grads, first = 0.0, {n: torch.zeros_like(weights[n]) for n in trained}, None
    for at in range(0, total, micro):
        inputs, labels = data.batch(step * total + at, micro)
        leaves = {
            n: w.detach().clone().requires_grad_(n in trained) if "running_" not in n else w
            for n, w in weights.items()
        }
        logits, part = (
            cast(model, leaves, inputs, labels, spec)
            if cast
            else model(leaves, inputs, labels, spec)
        )
        share = micro / total
        for name, g in zip(
            trained, torch.autograd.grad(part * share, [leaves[n] for n in trained])
        ):
            grads[name] += g.to(grads[name].dtype)
        loss += float(part) * share
        first = logits.detach() if first is None else first
    return loss, grads, first


def autocast_bf16(model, leaves, inputs, labels, spec):
    """bf16 weights of rank >= 2, bf16 products, fp32 sums; tables stay fp32."""
    weights = {
        n: w
        if w.dim() < 2 or n.startswith("embedding.")
        else w + (w.bfloat16().float() - w).detach()
        for n, w in leaves.items()
    }
    to_f32 = lambda x: x.float() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
    inputs = tuple(map(to_f32, inputs)) if isinstance(inputs, tuple) else to_f32(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, loss = model(weights, inputs, to_f32(labels), spec)
    return logits.float(), loss.float()


def distance(a, b):
    scale = float(b.double().norm())
    return float((a.double() - b.double()).norm()) / scale if scale > 0 else 0.0


def make(name, seed):
    spec, draw, model, dataset = CASES[name]
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    data = dataset(spec, seed)
    data.write(folder)
    init = draw(spec["model"]["config"], seed)
    (folder / "spec.json").write_text(json.dumps(spec, indent=2) + "\n")
    write_safetensors(folder / "init.safetensors", init)

    weights = {n: torch.tensor(v, dtype=torch.float64) for n, v in init.items()}
    trained = trained_names(spec, weights)
    low = {n: torch.tensor(v) for n, v in init.items()}
    low_loss, low_grads, low_logits = gradients(model, spec, low, trained, data, 0, autocast_bf16)
    optimizer, out, losses, norms = Optimizer(spec, weights, trained), {}, [], []
    for step in range(STEPS):
        loss, grads, logits = gradients(model, spec, weights, trained, data, step)
        norms.append(optimizer.step(grads, step))
        losses.append(loss)
        if step > 0:
            continue
        out["logits"] = logits.numpy()
        out.update({f"gradient.{n}": g.numpy() for n, g in grads.items()})
        out["bf16_error.loss"] = numpy.array([abs(low_loss - loss) / abs(loss)])
        out["bf16_error.logits"] = numpy.array([distance(low_logits, logits)])
        out.update(
            {f"bf16_error.{n}": numpy.array([distance(low_grads[n], g)]) for n, g in grads.items()}
        )
    out["losses"], out["grad_norms"] = numpy.array(losses), numpy.array(norms)
    out.update(
        {f"final.{n}": weights[n].numpy() for n in weights if n in trained or "running_" in n}
    )
    write_safetensors(folder / "expect.safetensors", out)
    worst = max(float(v[0]) for n, v in out.items() if n.startswith("bf16_error."))
    print(
        f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, norm {norms[0]:.4f}, "
        f"bf16 loss error {out['bf16_error.loss'][0]:.1e}, worst {worst:.1e}, "
        f"{sum(f.stat().st_size for f in folder.iterdir()) // 1024} KiB"
    )


if __name__ == "__main__":
    for number, case in enumerate(CASES):
        if len(sys.argv) < 2 or case in sys.argv[1:]:
            make(case, 100 + number)
