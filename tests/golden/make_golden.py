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

import datasets
import draws
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
        draws.draw_gpt2,
        models.gpt2,
        datasets.Text,
    ),
    "gpt2-lora": (
        spec_of("language_model", GPT2, TEXT, {}, lora=GPT2_LORA),
        lambda c, s: draws.draw_gpt2(c, s, GPT2_LORA),
        models.gpt2,
        datasets.Text,
    ),
    "llama": (
        spec_of("language_model", LLAMA, TEXT, {"schedule": "linear"}),
        draws.draw_llama,
        models.llama,
        datasets.Text,
    ),
    "llama-lora": (
        spec_of("language_model", dict(LLAMA, tie_word_embeddings=True), TEXT, {}, lora=LLAMA_LORA),
        lambda c, s: draws.draw_llama(c, s, LLAMA_LORA),
        models.llama,
        datasets.Text,
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
        draws.draw_mlp,
        models.mlp,
        datasets.Targets,
    ),
    "cnn": (
        spec_of(
            "image_classification",
            dict(IMAGE, family="cnn", channels=[8, 12], blocks_per_stage=2, hidden=[20]),
            IDX,
            {"label_smoothing": 0.1},
            files=TWO,
        ),
        draws.draw_cnn,
        models.cnn,
        datasets.Images,
    ),
    "resnet-basic": (
        spec_of(
            "image_classification",
            dict(RESNET, block="basic"),
            IDX,
            dict(SGD, batch_size=8, micro_batch_size=8),
            files=TWO,
        ),
        draws.draw_resnet,
        models.resnet,
        datasets.Images,
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
        draws.draw_resnet,
        models.resnet,
        datasets.Images,
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
        draws.draw_dlrm,
        models.dlrm,
        datasets.Clicks,
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
