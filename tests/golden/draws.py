# SPDX-License-Identifier: Apache-2.0
"""Initial weights of the golden cases, by the tensors' names; seeded."""

import math

import numpy


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
