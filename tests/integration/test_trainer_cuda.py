# SPDX-License-Identifier: Apache-2.0
"""The trainer on the CUDA backend: the whole program over emulated devices (tests/cuda/emulation),
beside itself on the processor; and the real one where there is no device."""
import os
import pathlib
import subprocess

import numpy
import pytest

from test_trainer import BUILD, lines, prepare, tensors, trainer

EMULATED = BUILD / "tests/cuda/trainer-emulated"
NCCL = BUILD / "tests/cuda/libnccl_emulation.so"
SMALL = {"family": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16,
         "vocab_size": 256}

needs_emulation = pytest.mark.skipif(not EMULATED.exists(), reason="built without CUDA")


def emulated(*arguments, check=True):
    done = subprocess.run(
        [EMULATED, *map(str, arguments)], text=True, capture_output=True, timeout=300, check=False,
        env={**os.environ, "TRAINYARD_NCCL_LIBRARY": str(NCCL),
             "TRAINYARD_EMULATION_NCCL": "machine"})
    if check:
        assert done.returncode == 0, done.stderr + done.stdout[-500:]
    return done


def job(place: pathlib.Path, steps, ranks=1, **more):
    return prepare(place, "gpt2", steps, model={"config": SMALL},
                   data={"sequence_length": 8, "tokenizer": "bytes"},
                   resources={"instance_type": "here", "count": ranks}, **more)


def losses(done):
    return [m["loss"] for m in lines(done.stdout) if m["t"] == "step"]


@needs_emulation
def test_a_device_trains_what_the_processor_trains(tmp_path):
    given = job(tmp_path, 4, checkpoint={"every_steps": 2})
    host = trainer("run", *given, "--device", "cpu", "--out", tmp_path / "host")
    device = emulated("run", *given, "--device", "cuda", "--out", tmp_path / "device")
    assert losses(device) == pytest.approx(losses(host), rel=1e-5) and len(losses(host)) == 4
    want, got = (tensors(tmp_path / who / "final/model.safetensors") for who in ("host", "device"))
    assert want.keys() == got.keys()
    # The gradient of a key's bias is zero but for rounding, and AdamW makes a step of its sign.
    apart = sum(numpy.square(got[name] - values).sum() for name, values in want.items())
    assert apart < 1e-6 * sum(numpy.square(values).sum() for values in want.values())
    # A checkpoint of the one is the other's.
    resumed = emulated("run", *given, "--device", "cuda", "--out", tmp_path / "resumed",
                       "--resume", tmp_path / "host/checkpoints/step-2")
    assert losses(resumed) == pytest.approx(losses(host)[2:], rel=1e-5)
    measured = lines(emulated("bench", given[0], "--device", "cuda", "--steps", 1,
                              "--warm", 1).stdout)[0]
    assert measured["backend"] == "cuda" and measured["plan_bytes"] == measured["memory_bytes"]
    assert measured["operations"]["linear"]["ms_per_step"] > 0


@needs_emulation
def test_ranks_take_a_device_each(tmp_path):
    given = job(tmp_path, 3, ranks=2, parallelism={"data": 2, "zero_stage": 1})
    host = trainer("run", *given, "--device", "cpu", "--ranks", 2, "--out", tmp_path / "host")
    device = emulated("run", *given, "--device", "cuda", "--ranks", 2, "--out", tmp_path / "device")
    assert losses(device) == pytest.approx(losses(host), rel=1e-5) and len(losses(host)) == 3


def test_without_a_device_it_says_so(tmp_path):
    """In every command; and what is asked for by nobody is not missed."""
    given = job(tmp_path, 3)
    for command in ["run", *given, "--out", tmp_path / "out"], ["bench", given[0]]:
        refused = trainer(*command, "--device", "cuda", check=False)
        if refused.returncode == 0:
            pytest.skip("there is a device")
        assert refused.returncode == 1 and "--device: " in refused.stderr, refused.stderr
        assert "or train on the processor: cpu" in refused.stderr
        wrong = trainer(*command, "--device", "gpu", check=False)
        assert '--device: "gpu" is not auto, cpu or cuda' in wrong.stderr, wrong.stderr
    assert losses(trainer("run", *given, "--out", tmp_path / "out"))
