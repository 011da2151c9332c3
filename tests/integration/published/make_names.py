#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tensors of published models, as transformers names and shapes them, one a line:
`name [shape]`, sorted. From the classes' structure, not from our plan: test_trainer.py compares.

usage: make_names.py   (writes gpt2-124m.txt, llama-7b.txt, llama-8b.txt, resnet-50.txt here)"""
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


def gpt2(layers, width, positions, vocabulary):
    """GPT2LMHeadModel: Conv1D weights are [in, out]; the head is wte."""
    yield "transformer.wte.weight", [vocabulary, width]
    yield "transformer.wpe.weight", [positions, width]
    for i in range(layers):
        block = f"transformer.h.{i}"
        for norm in "ln_1", "ln_2":
            yield f"{block}.{norm}.weight", [width]
            yield f"{block}.{norm}.bias", [width]
        for module, k, n in (("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width),
                             ("mlp.c_fc", width, 4 * width), ("mlp.c_proj", 4 * width, width)):
            yield f"{block}.{module}.weight", [k, n]
            yield f"{block}.{module}.bias", [n]
    yield "transformer.ln_f.weight", [width]
    yield "transformer.ln_f.bias", [width]


def llama(layers, width, inner, heads, kv_heads, vocabulary):
    """LlamaForCausalLM, not tied: Linear weights are [out, in], without biases."""
    key_width = width // heads * kv_heads
    yield "model.embed_tokens.weight", [vocabulary, width]
    for i in range(layers):
        block = f"model.layers.{i}"
        yield f"{block}.input_layernorm.weight", [width]
        yield f"{block}.post_attention_layernorm.weight", [width]
        for module, n, k in (("self_attn.q_proj", width, width),
                             ("self_attn.k_proj", key_width, width),
                             ("self_attn.v_proj", key_width, width),
                             ("self_attn.o_proj", width, width), ("mlp.gate_proj", inner, width),
                             ("mlp.up_proj", inner, width), ("mlp.down_proj", width, inner)):
            yield f"{block}.{module}.weight", [n, k]
    yield "model.norm.weight", [width]
    yield "lm_head.weight", [vocabulary, width]


def conv(name, out, into, kernel):
    """ResNetConvLayer: a convolution without bias and its batch norm."""
    yield f"{name}.convolution.weight", [out, into, kernel, kernel]
    for part in "weight", "bias", "running_mean", "running_var":
        yield f"{name}.normalization.{part}", [out]


def resnet_bottleneck(depths, widths, classes):
    """ResNetForImageClassification: widths are those inside, a quarter of a stage's output."""
    yield from conv("resnet.embedder.embedder", widths[0], 3, 7)
    into = widths[0]
    for stage, (depth, width) in enumerate(zip(depths, widths)):
        for i in range(depth):
            layer = f"resnet.encoder.stages.{stage}.layers.{i}"
            if i == 0:
                yield from conv(f"{layer}.shortcut", 4 * width, into, 1)
            yield from conv(f"{layer}.layer.0", width, into, 1)
            yield from conv(f"{layer}.layer.1", width, width, 3)
            yield from conv(f"{layer}.layer.2", 4 * width, width, 1)
            into = 4 * width
    yield "classifier.1.weight", [classes, into]
    yield "classifier.1.bias", [classes]


MODELS = {
    "gpt2-124m": gpt2(12, 768, 1024, 50257),
    "llama-7b": llama(32, 4096, 11008, 32, 32, 32000),
    "llama-8b": llama(32, 4096, 14336, 32, 8, 128256),
    "resnet-50": resnet_bottleneck([3, 4, 6, 3], [64, 128, 256, 512], 1000),
}

if __name__ == "__main__":
    for model, tensors in MODELS.items():
        lines = sorted(f"{name} [{','.join(map(str, shape))}]" for name, shape in tensors)
        (HERE / f"{model}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
