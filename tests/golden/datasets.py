# SPDX-License-Identifier: Apache-2.0
"""Data of the golden cases: written as a customer's file, and read back as tensors; seeded."""

import struct

import numpy
import torch


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
