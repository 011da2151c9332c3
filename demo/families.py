#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A job of each family on a yard of our own, over HTTP only. Called by ./run demo families.

A residual network on MNIST in bf16; a GPT-2 on the King James Bible, byte by byte; a Llama on the
same text with a tokenizer trained here; then LoRA on the GPT-2 just trained, with prompts and
completions; and click-through rates on a generated table whose best possible AUC is known. Exits
non-zero when a figure is not as it should be, and always lowers its yard."""
import json
import sys
import time

import data
import demo
import tables
from screen import duration

CPU = {"instance_type": "cpu-dev", "count": 1}
RESNET = {
    "name": "mnist-resnet",
    "task": "image_classification",
    "model": {
        "config": {
            "family": "cnn",
            "block": "basic",
            "stem": "3x3",
            "channels": [16, 32, 64],
            "blocks": [1, 1, 1],
            "in_channels": 1,
            "in_height": 28,
            "in_width": 28,
            "n_classes": 10,
        }
    },
    "data": {"format": "idx", "crop_padding": 2},
    "hyperparameters": {
        "max_steps": 700,
        "batch_size": 64,
        "optimizer": "sgd",
        "learning_rate": 0.05,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "warmup_steps": 20,
    },
    "precision": "bf16",
    "resources": CPU,
    "seed": 1,
}
GPT2 = {
    "name": "kjv-gpt2",
    "task": "language_model",
    "model": {
        "config": {
            "family": "gpt2",
            "n_layer": 4,
            "n_head": 4,
            "n_embd": 128,
            "n_positions": 128,
            "vocab_size": 257,
        }
    },
    "data": {"format": "text", "tokenizer": "bytes", "sequence_length": 128},
    "hyperparameters": {
        "max_steps": 500,
        "batch_size": 16,
        "learning_rate": 2e-3,
        "warmup_steps": 30,
    },
    "precision": "fp32",
    "resources": CPU,
    "seed": 1,
}
LLAMA = {
    "name": "kjv-llama",
    "task": "language_model",
    "model": {
        "config": {
            "family": "llama",
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128,
            "vocab_size": tables.VOCABULARY,
            "tie_word_embeddings": True,
        }
    },
    "hyperparameters": {
        "max_steps": 400,
        "batch_size": 16,
        "learning_rate": 2e-3,
        "warmup_steps": 30,
    },
    "precision": "bf16",
    "resources": CPU,
    "seed": 1,
}
LORA = {
    "name": "kjv-lora",
    "task": "fine_tune",
    "data": {"format": "jsonl", "sequence_length": 128, "packing": True},
    "hyperparameters": {
        "max_steps": 200,
        "batch_size": 16,
        "learning_rate": 5e-3,
        "warmup_steps": 10,
    },
    "lora": {"rank": 8, "alpha": 16, "target_modules": ["c_attn", "c_proj", "c_fc"]},
    "precision": "fp32",
    "resources": CPU,
    "seed": 1,
}
DLRM = {
    "name": "clicks",
    "task": "click_through",
    "model": {
        "config": {
            "family": "dlrm",
            "dense_features": tables.DENSE,
            "embedding_dim": 8,
            "lookups": 1,
            "table_rows": tables.ROWS,
            "bottom": [32, 8],
            "top": [32],
        }
    },
    "data": {"format": "csv", "label_column": "label", "categorical": tables.COLUMNS},
    "hyperparameters": {
        "epochs": 4,
        "batch_size": 64,
        "optimizer": "adamw",
        "learning_rate": 2e-3,
        "weight_decay": 0.0,
    },
    "precision": "fp32",
    "resources": CPU,
    "seed": 1,
}


def upload_json(client, folder, name, document):
    path = folder / name
    path.write_text(json.dumps(document), encoding="utf-8")
    return demo.upload(client, path)


def figures(job):
    told = ("loss", "validation_loss", "accuracy", "bits_per_byte", "auc")
    found = [
        f"{key} {job['progress'][key]:.4f}" for key in told if job["progress"].get(key) is not None
    ]
    print(f"  {job['name']}: {', '.join(found)}")
    return job["progress"]


def first_loss(client, job):
    for event in client.pages(f"/v1/jobs/{job['id']}/events"):
        body = event.get("data", event)
        if event.get("type") == "step" and body.get("step") == 1:
            return body["loss"]
    return None


def model_hashes(client, job):
    """SHA-256 of each of the model's files, as they are downloaded now."""
    at = f"/v1/models/{job['result']['model']}/files"
    names = [file["name"] for file in job["result"]["files"]]
    return {name: client.download(f"{at}/{name}")[1] for name in names}


def train_all(client, folder, cache):
    mnist, (train_text, valid_text) = data.mnist(cache), data.bible(cache)
    images = {name: demo.upload(client, path) for name, path in mnist.items()}
    texts = [demo.upload(client, path) for path in (train_text, valid_text)]
    tokenizer = upload_json(client, folder, "tokenizer.json", tables.tokenizer(train_text))
    clicks = [demo.upload(client, path) for path in tables.clicks(folder)]
    demo.title("four jobs, two at a time")
    posted = [
        {
            **RESNET,
            "training_file": [images["train-images-idx3-ubyte"], images["train-labels-idx1-ubyte"]],
            "validation_file": [images["t10k-images-idx3-ubyte"], images["t10k-labels-idx1-ubyte"]],
        },
        {**GPT2, "training_file": texts[0], "validation_file": texts[1]},
        {
            **LLAMA,
            "training_file": texts[0],
            "validation_file": texts[1],
            "data": {"format": "text", "tokenizer": tokenizer, "sequence_length": 128},
        },
        {**DLRM, "training_file": clicks[0], "validation_file": clicks[1]},
    ]
    return demo.train(client, [client.post("/v1/jobs", job) for job in posted]), train_text


def judge(resnet, gpt2, llama, clicks, order0):
    best = tables.best_auc()
    demo.require(figures(resnet)["accuracy"] >= 0.98, "the residual network's accuracy is too low")
    demo.require(figures(gpt2)["bits_per_byte"] <= 2.8, "the GPT-2's bits per byte are too many")
    demo.require(figures(llama)["bits_per_byte"] <= 2.8, "the Llama's bits per byte are too many")
    auc = figures(clicks)["auc"]
    print(
        f"  an order-0 model of the text: {order0:.3f} bits per byte; "
        f"the table's best AUC: {best:.4f}"
    )
    demo.require(best - 0.02 <= auc <= best + 0.01, "the AUC is not near what the table allows")


def fine_tune(client, folder, gpt2, train_text):
    before = model_hashes(client, gpt2)
    pairs = folder / "pairs.jsonl"
    tables.pairs(train_text, pairs)
    posted = client.post(
        "/v1/jobs",
        {**LORA, "model": {"base": gpt2["id"]}, "training_file": demo.upload(client, pairs)},
    )
    (lora,) = demo.train(client, [posted])
    first, last = first_loss(client, lora), lora["progress"]["loss"]
    files = [file["name"] for file in lora["result"]["files"]]
    print(
        f"  {lora['name']}: loss {first:.4f} at step 1, {last:.4f} at the end; "
        f"files: {', '.join(files)}"
    )
    demo.require(last < 0.8 * first, "the adapter learned nothing")
    demo.require("adapter_model.safetensors" in files, "there is no adapter among the files")
    demo.require("model.safetensors" not in files, "the base's weights are among the files")
    demo.require(model_hashes(client, gpt2) == before, "the base's weights have changed")
    print("  the base's files have the hashes they had")


def play(folder, began):
    cache = demo.cache_folder()
    env = demo.raise_yard(folder)
    demo.title("a customer, and its files")
    _, client, _ = demo.customer(env)
    (resnet, gpt2, llama, clicks), train_text = train_all(client, folder, cache)
    demo.title("results")
    judge(resnet, gpt2, llama, clicks, data.order0_bits_per_byte(*data.bible(cache)))
    demo.title("LoRA on the GPT-2 just trained")
    fine_tune(client, folder, gpt2, train_text)
    print(f"\nAll of it in {duration(time.monotonic() - began)} min.")


if __name__ == "__main__":
    sys.exit(demo.stage(play, "families"))
