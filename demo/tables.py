# SPDX-License-Identifier: Apache-2.0
"""What families.py makes for itself: a byte-level BPE tokenizer trained on the text, pairs of
prompts and completions, and a table of clicks whose law is known. Seeded: the same each time."""
import collections
import json
import math
import random
import re

VOCABULARY = 768
DENSE = 4
ROWS = [50, 200, 20]
COLUMNS = ["site", "product", "hour"]
CLICKS, CLICKS_VALIDATION = 40000, 10000
PAIRS = 2000
# GPT-2's pattern, for the ASCII text at hand.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_letters():
    """The printable character that stands for each byte in byte-level tokenizers."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = {byte: chr(byte) for byte in plain}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters


def tokenizer(text):
    """tokenizer.json of a byte-pair encoding: the most frequent pair of the words is merged, again
    and again."""
    letters = byte_letters()
    counts = collections.Counter(WORDS.findall(text.read_text(encoding="ascii")))
    words = [([letters[byte] for byte in word.encode()], count) for word, count in counts.items()]
    vocabulary = [letters[byte] for byte in range(256)]
    merges = []
    while len(vocabulary) < VOCABULARY:
        pairs = collections.Counter()
        for parts, count in words:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merged = "".join(best)
        for parts, _ in words:
            at = 0
            while at + 1 < len(parts):
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = [merged]
                at += 1
        vocabulary.append(merged)
        merges.append(" ".join(best))
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "vocab": {word: i for i, word in enumerate(vocabulary)},
            "merges": merges,
        },
    }


def pairs(text, path):
    """A few words, and the same in capitals."""
    drawn = random.Random(3)
    words = text.read_text(encoding="ascii").split()
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(PAIRS):
            at = drawn.randrange(len(words) - 3)
            some = " ".join(words[at : at + 3])
            out.write(json.dumps({"prompt": f"{some} => ", "completion": some.upper()}) + "\n")


def _law():
    """Weights of a logistic model over dense features and categories."""
    drawn = random.Random(5)
    dense = [drawn.gauss(0, 0.7) for _ in range(DENSE)]
    return dense, [[drawn.gauss(0, 1.0) for _ in range(rows)] for rows in ROWS]


def _rows(count, seed):
    """(probability, label, dense, categories) of each click."""
    drawn = random.Random(seed)
    dense_weights, category_weights = _law()
    for _ in range(count):
        dense = [drawn.gauss(0, 1) for _ in range(DENSE)]
        categories = [min(int(drawn.expovariate(6 / rows)), rows - 1) for rows in ROWS]
        score = sum(a * b for a, b in zip(dense, dense_weights)) - 1.0
        score += sum(weights[c] for weights, c in zip(category_weights, categories))
        probability = 1 / (1 + math.exp(-score))
        yield probability, int(drawn.random() < probability), dense, categories


def clicks(folder):
    """Paths of (training, validation) tables."""
    paths = folder / "clicks-train.csv", folder / "clicks-valid.csv"
    for path, count, seed in zip(paths, (CLICKS, CLICKS_VALIDATION), (7, 8)):
        with open(path, "w", encoding="ascii") as out:
            out.write(",".join(["label", *(f"d{i}" for i in range(DENSE)), *COLUMNS]) + "\n")
            for _, label, dense, categories in _rows(count, seed):
                out.write(
                    ",".join([str(label), *(f"{x:.4f}" for x in dense), *map(str, categories)])
                    + "\n"
                )
    return paths


def best_auc():
    """AUC of the law itself on the validation table: no model can be expected to do better."""
    ranked = sorted(
        (probability, label) for probability, label, _, _ in _rows(CLICKS_VALIDATION, 8)
    )
    positives = sum(label for _, label in ranked)
    below = rank_sum = 0
    for _, label in ranked:
        if label:
            rank_sum += below
        else:
            below += 1
    return rank_sum / (positives * (len(ranked) - positives))
