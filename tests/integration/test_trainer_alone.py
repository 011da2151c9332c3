# SPDX-License-Identifier: Apache-2.0
"""The trainer that is built alone: what it needs, what it says of what it lacks; and the script
that measures a GPU with it, rehearsed on the processor."""
import hashlib
import json
import os
import pathlib
import re
import subprocess

import pytest

from test_trainer import lines, prepare, trainer
from yards import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[2]
BARE = BUILD / "tests/bare/trainer-bare"
MEASURE = ROOT / "bench/gpu/run.sh"
GPT2 = {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16,
        "vocab_size": 300}


def bare(*arguments, check=True):
    done = subprocess.run([BARE, *map(str, arguments)], text=True, capture_output=True,
                          timeout=120, check=False)
    if check:
        assert done.returncode == 0, done.stderr + done.stdout[-500:]
    return done


def test_it_is_configured_with_jansson_alone(tmp_path):
    """No other package can be found, and nothing of a yard is among what is built."""
    only = tmp_path / "pkgconfig"
    only.mkdir()
    found = subprocess.run(["pkg-config", "--variable=pcfiledir", "jansson"], text=True,
                           capture_output=True, check=True).stdout.strip()
    (only / "jansson.pc").symlink_to(pathlib.Path(found) / "jansson.pc")
    options = ["-Dtrainer_only=true", "-Dextras=disabled", "-Dgloo=disabled", "-Dcuda=disabled"]
    subprocess.run(["meson", "setup", tmp_path / "build", ROOT, *options], check=True,
                   capture_output=True, env={**os.environ, "PKG_CONFIG_LIBDIR": str(only)})
    told = subprocess.run(["meson", "introspect", "--targets", "--dependencies", "--force-object",
                           tmp_path / "build"], text=True, capture_output=True, check=True)
    told = json.loads(told.stdout)
    programs = {t["name"] for t in told["targets"] if t["type"] == "executable"}
    assert programs == {"trainyard-trainer", "bench-ceilings", "plain_test"}
    assert {d["name"] for d in told["dependencies"]} == {"jansson", "threads", "openmp"}


def test_it_is_linked_with_little():
    told = subprocess.run(["readelf", "-d", BARE], text=True, capture_output=True, check=True)
    needed = set(re.findall(r"NEEDED.*\[lib(\w+)", told.stdout))
    assert "c" in needed and not needed & {"archive", "crypto", "jpeg", "png16", "pcre2"}, needed


def test_it_trains_to_the_same_bytes(tmp_path):
    given = prepare(tmp_path, "gpt2", 3)
    bare("run", *given, "--out", tmp_path / "bare")
    trainer("run", *given, "--device", "cpu", "--out", tmp_path / "whole")
    ours, theirs = (tmp_path / who / "final/model.safetensors" for who in ("bare", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()
    manifest = (tmp_path / "bare/final/manifest.json").read_text(encoding="utf-8")
    assert hashlib.sha256(ours.read_bytes()).hexdigest() in manifest


@pytest.mark.parametrize("what, says", [
    ("tokenizer", "PCRE2, which this build is without (libpcre2-dev)"),
    ("tar", "libarchive, which this build is without (libarchive-dev)")])
def test_what_it_lacks_is_said_by_field(tmp_path, what, says):
    spec = {"task": "language_model", "model": {"config": GPT2}, "training_file": "file_a",
            "data": {"format": "text", "tokenizer": "file_t", "sequence_length": 16},
            "hyperparameters": {"max_steps": 1},
            "resources": {"instance_type": "here", "count": 1}}
    more, field = ["--tokenizer", ROOT / "tests/golden/tokenizer/digits.json"], "data.tokenizer"
    if what == "tar":
        spec.update(task="image_classification", data={"format": "image_tar"},
                    model={"config": {"family": "cnn", "channels": [4]}})
        more, field = [], "training_file"
    (tmp_path / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    (tmp_path / "data").write_bytes(b"words of some text " * 400)
    done = bare("validate", tmp_path / "spec.json", "--data", f"training_file={tmp_path / 'data'}",
                *more, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in done.stderr and field in done.stderr, done.stderr


def measure(*arguments):
    return subprocess.run([MEASURE, *map(str, arguments)], text=True, capture_output=True,
                          timeout=600, check=False,
                          env={**os.environ, "TRAINYARD_BUILD": str(BUILD),
                               "PYTHON": "/usr/bin/python3"})


def test_measuring_is_rehearsed(tmp_path):
    done = measure("--device", "cpu", "--quick", "--no-peer", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr + done.stdout
    measured = lines((tmp_path / "out/measured.jsonl").read_text(encoding="utf-8"))
    cases = {row["case"]: row for row in measured}
    assert {"gpt2-tiny", "llama-tiny", "resnet-tiny", "dlrm-tiny"} <= set(cases)
    for row in measured:
        assert (row["value"] or 0) > 0 or row["note"] == "not built yet", row
        assert row["peer_value"] is None and (row["case"] == "fp8" or "--no-peer" in
                                              row["peer_note"])
    assert cases["gpt2-tiny"]["memory_over_plan"] == 1
    assert cases["gpt2-tiny"]["operations"]["linear"]["ms_per_step"] > 0
    # No test of the device ran, and none is said to have passed.
    checks = lines((tmp_path / "out/checks.jsonl").read_text(encoding="utf-8"))
    assert {row["outcome"] for row in checks} <= {"not built", "skipped"} and len(checks) > 10
    assert "memory, copied" in (tmp_path / "out/table.txt").read_text(encoding="utf-8")


def test_measuring_needs_a_gpu(tmp_path):
    done = measure("--out", tmp_path / "out")
    if done.returncode == 0 or "GPU 0" in done.stderr:
        pytest.skip("there is one")
    assert done.returncode == 3 and "no GPU" in done.stderr, done.stderr
    assert "--device cpu --quick" in done.stderr and not (tmp_path / "out").exists()
