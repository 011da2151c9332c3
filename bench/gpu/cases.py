# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/gpu: a job spec each, how many steps are timed, and how much of the time its
two sides may take. Read by bench.py; the tiny ones are for a rehearsal."""

TABLES = 26


class Case:
    def __init__(self, name, title, unit, spec, steps, seconds, peer_seconds):
        self.name, self.title, self.unit, self.spec = name, title, unit, spec
        self.steps, self.seconds, self.peer_seconds = steps, seconds, peer_seconds


def spec_of(task, config, batch, data, **hyper):
    files = ["file_a", "file_b"] if data.get("format") == "idx" else "file_a"
    return {
        "task": task, "model": {"config": config}, "training_file": files, "data": data,
        "hyperparameters": {"max_steps": 1000, "batch_size": batch, "micro_batch_size": batch,
                            "grad_clip": 1, **hyper},
        "precision": "bf16", "resources": {"instance_type": "here", "count": 1}, "seed": 42,
    }


def language(config, batch, length):
    # Made-up text is bytes; the vocabulary, and so the head's work, is the model's own.
    return spec_of("language_model", config, batch,
                   {"format": "text", "tokenizer": "bytes", "sequence_length": length},
                   optimizer="adamw", learning_rate=3e-4, weight_decay=0.1)


def gpt2(layers, heads, width, length, vocabulary=50257):
    return {"family": "gpt2", "n_layer": layers, "n_head": heads, "n_embd": width,
            "n_positions": length, "vocab_size": vocabulary}


def llama(layers, heads, kv_heads, width, inner, length, vocabulary, tied):
    return {"family": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "hidden_size": width, "intermediate_size": inner,
            "max_position_embeddings": length, "vocab_size": vocabulary, "rope_theta": 500000,
            "tie_word_embeddings": tied}


def resnet(channels, blocks, side, classes, stem, batch):
    config = {"family": "cnn", "block": "bottleneck", "stem": stem, "channels": channels,
              "blocks": blocks, "in_channels": 3, "in_height": side, "in_width": side,
              "n_classes": classes}
    return spec_of("image_classification", config, batch, {"format": "idx"}, optimizer="sgd",
                   learning_rate=0.1, momentum=0.9, weight_decay=1e-4, grad_clip=0)


def dlrm(rows, width, batch, bottom, top):
    config = {"family": "dlrm", "dense_features": 13, "embedding_dim": width, "lookups": 4,
              "table_rows": [rows] * TABLES, "bottom": bottom, "top": top}
    data = {"format": "csv", "label_column": "label",
            "categorical": [f"c{i}" for i in range(TABLES)]}
    return spec_of("click_through", config, batch, data, optimizer="sgd", learning_rate=0.01,
                   momentum=0.0, weight_decay=0.0, grad_clip=0)


# The sum of all shares, with those of bench.py, is within its budget.
CASES = [
    Case("gpt2-124m", "GPT-2 124M, B32 T1024", "tokens",
         language(gpt2(12, 12, 768, 1024), 32, 1024), 30, 25, 45),
    Case("gpt2-1.5b", "GPT-2 1.5B, B16 T1024", "tokens",
         language(gpt2(48, 25, 1600, 1024), 16, 1024), 8, 40, 60),
    Case("llama-1b", "Llama 1B, B4 T4096", "tokens",
         language(llama(16, 32, 8, 2048, 8192, 4096, 128256, True), 4, 4096), 8, 35, 40),
    Case("llama-8b-layers", "4 layers of Llama 8B, B4 T4096", "tokens",
         language(llama(4, 32, 8, 4096, 14336, 4096, 32000, False), 4, 4096), 8, 30, 35),
    Case("resnet-50", "ResNet-50, 224x224, B256", "images",
         resnet([64, 128, 256, 512], [3, 4, 6, 3], 224, 1000, "7x7", 256), 15, 25, 40),
    Case("dlrm", "DLRM, 26 tables of 500,000 x 128, B8192", "samples",
         dlrm(500000, 128, 8192, [512, 256, 128], [1024, 1024, 512, 256]), 30, 15, 20),
]

QUICK = [
    Case("gpt2-tiny", "GPT-2 tiny, B2 T64", "tokens",
         language(gpt2(2, 2, 32, 64, 257), 2, 64), 2, 20, 20),
    Case("llama-tiny", "Llama tiny, B2 T64", "tokens",
         language(llama(2, 4, 2, 32, 88, 64, 257, True), 2, 64), 2, 20, 20),
    Case("resnet-tiny", "bottleneck blocks, 32x32, B2", "images",
         resnet([8, 8, 16, 16], [1, 1, 1, 1], 32, 10, "3x3", 2), 2, 30, 20),
    Case("dlrm-tiny", "DLRM, 26 tables of 50 x 8, B16", "samples",
         dlrm(50, 8, 16, [16, 8], [16, 8]), 2, 20, 20),
]

# Shapes of products, M x N x K: large squares, and a layer's of GPT-2 1.5B and of Llama 8B.
SHAPES = ["4096x4096x4096", "8192x8192x8192", "16384x8192x4096", "16384x6400x1600",
          "16384x14336x4096", "16384x4096x14336"]
QUICK_SHAPES = ["128x128x128", "256x128x64"]
