# SPDX-License-Identifier: Apache-2.0
"""The engine's model families in plain PyTorch, by the tensors' Hugging Face names: a function from
(weights, inputs, spec) to (logits, loss) each. make_golden.py differentiates them in float64;
nothing here is tuned for speed."""

import math

import torch
import torch.nn.functional as F


def heads_of(x, count):
    batch, length, width = x.shape
    return x.view(batch, length, count, width // count).transpose(1, 2)


def attention(q, k, v):
    """Causal; q [B, H, T, D], k and v [B, KV, T, D]: each group of H / KV queries shares one."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    length = q.shape[2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    out = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v
    return out.transpose(1, 2).flatten(2)


def lora(w, module, x, y, spec):
    name = f"base_model.model.{module}.lora_A.weight"
    if name not in w:
        return y
    scale = spec["lora"]["alpha"] / spec["lora"]["rank"]
    return y + (x @ w[name].t()) @ w[name.replace("lora_A", "lora_B")].t() * scale


def token_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


def gpt2(w, tokens, labels, spec):
    c = spec["model"]["config"]
    eps = c.get("norm_eps", 1e-5)

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def conv1d(x, name):
        return lora(w, name, x, x @ w[f"{name}.weight"] + w[f"{name}.bias"], spec)

    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][: tokens.shape[1]]
    for i in range(c["n_layer"]):
        h = f"transformer.h.{i}"
        q, k, v = conv1d(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").split(c["n_embd"], -1)
        n = c["n_head"]
        x = x + conv1d(
            attention(heads_of(q, n), heads_of(k, n), heads_of(v, n)), f"{h}.attn.c_proj"
        )
        inner = F.gelu(conv1d(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"), approximate="tanh")
        x = x + conv1d(inner, f"{h}.mlp.c_proj")
    logits = norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].t()
    return logits, token_loss(logits, labels)


def rotate(x, theta):
    """Half-split pairs: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)."""
    length, size = x.shape[2], x.shape[3]
    rate = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., : size // 2], x[..., size // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def llama(w, tokens, labels, spec):
    c = spec["model"]["config"]
    eps = c.get("rms_norm_eps", 1e-5)
    theta = c.get("rope_theta", 10000.0)
    n, kv = c["num_attention_heads"], c["num_key_value_heads"]

    def norm(x, name):
        wide = x.to(torch.float32) if x.dtype == torch.bfloat16 else x
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return (scaled * w[f"{name}.weight"]).to(x.dtype)

    def dense(x, name):
        return lora(w, name, x, x @ w[f"{name}.weight"].t(), spec)

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}"
        a = norm(x, f"{h}.input_layernorm")
        q = rotate(heads_of(dense(a, f"{h}.self_attn.q_proj"), n), theta)
        k = rotate(heads_of(dense(a, f"{h}.self_attn.k_proj"), kv), theta)
        v = heads_of(dense(a, f"{h}.self_attn.v_proj"), kv)
        x = x + dense(attention(q, k, v), f"{h}.self_attn.o_proj")
        a = norm(x, f"{h}.post_attention_layernorm")
        inner = F.silu(dense(a, f"{h}.mlp.gate_proj")) * dense(a, f"{h}.mlp.up_proj")
        x = x + dense(inner, f"{h}.mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    logits = norm(x, "model.norm") @ head.t()
    return logits, token_loss(logits, labels)


def head_loss(y, labels, spec):
    if spec["task"] == "regression":
        return F.mse_loss(y, labels)
    return F.cross_entropy(
        y, labels, label_smoothing=spec["hyperparameters"].get("label_smoothing", 0.0)
    )


def dense_layers(w, prefix, x):
    count = sum(1 for name in w if name.startswith(prefix + ".") and name.endswith(".weight"))
    for i in range(count):
        x = F.linear(x, w[f"{prefix}.{i}.weight"], w[f"{prefix}.{i}.bias"])
        if i + 1 < count:
            x = F.relu(x)
    return x


def mlp(w, x, labels, spec):
    y = dense_layers(w, "layers", x.flatten(1))
    return y, head_loss(y, labels, spec)


def cnn(w, x, labels, spec):
    """x [N, H, W, C]; the classifier reads (height, width, channel)."""
    c = spec["model"]["config"]
    x = x.permute(0, 3, 1, 2)
    for s in range(len(c["channels"])):
        for b in range(c.get("blocks_per_stage", 2)):
            x = F.relu(
                F.conv2d(x, w[f"features.{s}.{b}.weight"], w[f"features.{s}.{b}.bias"], padding=1)
            )
        x = F.max_pool2d(x, 2)
    y = dense_layers(w, "classifier", x.permute(0, 2, 3, 1).flatten(1))
    return y, head_loss(y, labels, spec)


def batch_norm(w, x, name):
    """Training: statistics of the batch; the running ones in w are moved."""
    return F.batch_norm(
        x,
        w[f"{name}.running_mean"],
        w[f"{name}.running_var"],
        w[f"{name}.weight"],
        w[f"{name}.bias"],
        True,
        0.1,
        1e-5,
    )


def resnet(w, x, labels, spec):
    c = spec["model"]["config"]
    bottleneck = c["block"] == "bottleneck"
    stem = "resnet.embedder.embedder"
    wide = c.get("stem", "3x3") == "7x7"
    x = x.permute(0, 3, 1, 2)
    x = F.conv2d(
        x, w[f"{stem}.convolution.weight"], stride=2 if wide else 1, padding=3 if wide else 1
    )
    x = F.relu(batch_norm(w, x, f"{stem}.normalization"))
    if wide:
        x = F.max_pool2d(x, 3, 2, 1)
    for s, count in enumerate(c["blocks"]):
        for b in range(count):
            at = f"resnet.encoder.stages.{s}.layers.{b}"
            stride = 2 if s > 0 and b == 0 else 1
            kernels = [1, 3, 1] if bottleneck else [3, 3]
            strides = [1, stride, 1] if bottleneck else [stride, 1]
            y = x
            for j, (kernel, step) in enumerate(zip(kernels, strides)):
                y = F.conv2d(
                    y, w[f"{at}.layer.{j}.convolution.weight"], stride=step, padding=kernel // 2
                )
                y = batch_norm(w, y, f"{at}.layer.{j}.normalization")
                if j + 1 < len(kernels):
                    y = F.relu(y)
            if f"{at}.shortcut.convolution.weight" in w:
                x = F.conv2d(x, w[f"{at}.shortcut.convolution.weight"], stride=stride)
                x = batch_norm(w, x, f"{at}.shortcut.normalization")
            x = F.relu(x + y)
    y = F.linear(x.mean((2, 3)), w["classifier.1.weight"], w["classifier.1.bias"])
    return y, head_loss(y, labels, spec)


def dlrm(w, inputs, labels, spec):
    dense, bags = inputs
    parts = [F.relu(dense_layers(w, "bottom", dense))]
    for t in range(bags.shape[0]):
        table = w[f"embedding.{t}.weight"]
        known = (bags[t] >= 0).to(table.dtype)[..., None]
        parts.append((table[bags[t].clamp(min=0)] * known).sum(1))
    z = torch.stack(parts, 1)
    row, column = torch.tril_indices(z.shape[1], z.shape[1], -1)
    pairs = (z @ z.transpose(1, 2))[:, row, column]
    y = dense_layers(w, "top", torch.cat([parts[0], pairs], 1)).squeeze(1)
    return y, F.binary_cross_entropy_with_logits(y, labels)
