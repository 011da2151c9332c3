# SPDX-License-Identifier: Apache-2.0
"""The trainer alone, without a yard: every family from its files to its files, as numpy reads them.
Names and shapes are compared with those of published models (published/make_names.py)."""
import json
import math
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import time

import numpy
import pytest

from yards import BUILD, idx_images, idx_labels, words

TRAINER = BUILD / "workers/trainer/trainyard-trainer"
PUBLISHED = pathlib.Path(__file__).resolve().parent / "published"
TYPES = {"F32": "<f4", "I64": "<i8"}


def trainer(*arguments, check=True, timeout=120):
    done = subprocess.run([TRAINER, *map(str, arguments)], text=True, capture_output=True,
                          errors="backslashreplace",
                          timeout=timeout, check=False)
    if check:
        assert done.returncode == 0, done.stderr + done.stdout[-500:]
    return done


def tensors(path):
    """A safetensors file: name -> array, each byte of the data in one tensor."""
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    assert size % 8 == 0 and raw[8:9] == b"{"
    header = json.loads(raw[8:8 + size])
    assert header.pop("__metadata__") == {"format": "pt"}
    found, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        assert begin == end
        end = stop
        data = numpy.frombuffer(raw, TYPES[entry["dtype"]], offset=8 + size + begin,
                                count=math.prod(entry["shape"]))
        assert data.nbytes == stop - begin
        found[name] = data.reshape(entry["shape"])
    assert end == len(raw) - 8 - size
    return found


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def steps(text):
    """What is the same on every machine and in every run."""
    return [(m["step"], m["loss"], m["grad_norm"], m["learning_rate"], m["sample_ids"])
            for m in lines(text) if m["t"] == "step"]


def clicks(count):
    """Clicks that follow from one dense feature and one table."""
    draw = random.Random(3)
    rows = ["label,d0,d1,d2,c0,c1"]
    for _ in range(count):
        dense = [draw.random() for _ in range(3)]
        first, bag = draw.randrange(20), [draw.randrange(30) for _ in range(draw.randint(1, 2))]
        label = int(dense[0] + (first % 2) > 1)
        rows.append(",".join([str(label), *(f"{x:.4f}" for x in dense), str(first),
                              "|".join(map(str, bag))]))
    return ("\n".join(rows) + "\n").encode()


def pairs(count):
    return "".join(json.dumps({"prompt": f"yard {i % 7}: ", "completion": "the train goes north"})
                   + "\n" for i in range(count)).encode()


GPT2 = {"family": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32,
        "vocab_size": 256}
LLAMA = {"family": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48,
         "max_position_embeddings": 32, "vocab_size": 256}
TEXT = {"data": {"sequence_length": 32, "tokenizer": "bytes"}}
IMAGES = [("images", idx_images(256)), ("labels", idx_labels(256))]
CASES = {
    "gpt2": ("language_model", GPT2, TEXT, [("text", words(20000))]),
    "llama": ("language_model", LLAMA, TEXT, [("text", words(20000))]),
    "sft": ("fine_tune", LLAMA, {"data": {"sequence_length": 32, "tokenizer": "bytes",
                                          "format": "jsonl"}}, [("pairs.jsonl", pairs(300))]),
    "cnn": ("image_classification", {"family": "cnn", "channels": [8, 8], "blocks_per_stage": 1,
                                     "hidden": [16]}, {}, IMAGES),
    "resnet": ("image_classification", {"family": "cnn", "block": "basic", "stem": "7x7",
                                        "channels": [8, 8], "blocks": [1, 1]}, {}, IMAGES),
    "mlp": ("classification", {"family": "mlp", "hidden": [16]}, {}, IMAGES),
    "dlrm": ("click_through", {"family": "dlrm", "dense_features": 3, "embedding_dim": 8,
                               "lookups": 2, "table_rows": [20, 30], "bottom": [16, 8],
                               "top": [16]},
             {"data": {"categorical": ["c0", "c1"]},
              "hyperparameters": {"optimizer": "adamw", "learning_rate": 0.02}},
             [("clicks.csv", clicks(2000))]),
}
MODEL_TYPES = {"gpt2": "gpt2", "llama": "llama", "sft": "llama", "cnn": "trainyard-cnn",
               "resnet": "resnet", "mlp": "trainyard-mlp", "dlrm": "trainyard-dlrm"}


def prepare(place, case, steps_wanted=30, **more):
    """Writes spec and files; returns the arguments that name them."""
    task, config, extra, files = CASES[case]
    place.mkdir(exist_ok=True)
    arguments = []
    for name, content in files:
        (place / name).write_bytes(content)
        arguments += ["--data", f"training_file={place / name}"]
    hyper = {"batch_size": 8, "max_steps": steps_wanted, "learning_rate": 0.003,
             "warmup_steps": 3, **extra.get("hyperparameters", {})}
    spec = {"task": task, "model": {"config": config},
            "training_file": [f"file_{i}" for i in range(len(files))],
            "resources": {"instance_type": "here", "count": 1}, "seed": 5, **extra, **more,
            "hyperparameters": hyper}
    (place / "spec.json").write_text(json.dumps(spec))
    return [place / "spec.json", *arguments]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_a_family_from_its_files_to_its_files(tmp_path, case, precision):
    given = prepare(tmp_path, case, precision=precision)
    checked = json.loads(trainer("validate", *given).stdout)
    assert checked["valid"] and checked["training_samples"] > 0 and checked["steps"] == 30
    first = trainer("run", *given, "--out", tmp_path / "a")
    told = lines(first.stdout)
    assert [m["step"] for m in told if m["t"] == "step"] == list(range(1, 31))
    assert told[-1]["t"] == "end" and told[-1]["outcome"] == "succeeded", told[-1]
    losses = [m["loss"] for m in told if m["t"] == "step"]
    assert sum(losses[-5:]) < sum(losses[:5]), losses
    start, end = (tensors(tmp_path / "a" / name / "model.safetensors")
                  for name in ("init", "final"))
    assert {n: t.shape for n, t in start.items()} == {n: t.shape for n, t in end.items()}
    assert all(numpy.isfinite(t).all() for t in end.values())
    # A parameter that nothing came to, such as a table's row, may stay; a tensor may not.
    still = [n for n in end if numpy.array_equal(start[n], end[n])]
    assert not still, still
    config = json.loads((tmp_path / "a/final/config.json").read_text())
    assert config["model_type"] == MODEL_TYPES[case] and config["torch_dtype"] == "float32"
    # From the first run's files the same steps follow, to the last bit.
    again = trainer("run", *given, "--init", tmp_path / "a/init", "--out", tmp_path / "b",
                    "--threads", 2)
    assert steps(first.stdout) == steps(again.stdout)
    assert ((tmp_path / "a/final/model.safetensors").read_bytes() ==
            (tmp_path / "b/final/model.safetensors").read_bytes())


@pytest.mark.parametrize("preset", ["gpt2-124m", "llama-7b", "llama-8b", "resnet-50"])
def test_published_names_and_shapes(tmp_path, preset):
    image = preset.startswith("resnet")
    spec = {"task": "image_classification" if image else "language_model",
            "model": {"preset": preset}, "training_file": ["file_0", "file_1"][:1 + image],
            "resources": {"instance_type": "here", "count": 1},
            "hyperparameters": {"max_steps": 1}}
    if not image:
        spec["data"] = {"tokenizer": "file_t" if "llama" in preset else "gpt2"}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    printed = trainer("plan", tmp_path / "spec.json", "--parameters").stdout.splitlines()
    ours = sorted(f"{line.split()[0]} {line.split()[-1]}" for line in printed)
    assert ours == (PUBLISHED / f"{preset}.txt").read_text().splitlines()


def test_gpt2_s_matrices_are_in_by_out(tmp_path):
    """Conv1D's orientation, in the files themselves."""
    given = prepare(tmp_path, "gpt2", 4)
    trainer("run", *given, "--out", tmp_path / "a")
    shapes = {n: t.shape for n, t in tensors(tmp_path / "a/final/model.safetensors").items()}
    assert shapes["transformer.h.1.attn.c_attn.weight"] == (32, 96)
    assert shapes["transformer.h.1.mlp.c_proj.weight"] == (128, 32)
    assert "lm_head.weight" not in shapes  # stored once


def test_what_a_run_would_replace_is_a_run_s(tmp_path):
    given = prepare(tmp_path, "gpt2", 4)
    trainer("run", *given, "--out", tmp_path / "out")
    trainer("run", *given, "--out", tmp_path / "out")  # its own, again
    for name in "init", "final", "checkpoints/step-2", "checkpoints/step-9":
        (tmp_path / name / "mine").mkdir(parents=True)
        (tmp_path / name / "mine" / name).mkdir(parents=True)
        refused = trainer("run", *given, "--out", tmp_path / name / "mine", check=False)
        assert refused.returncode == 1 and f"{name} is no " in refused.stderr, refused.stderr
        assert (tmp_path / name / "mine" / name).exists()


@pytest.mark.parametrize("change", [{"num_hidden_layers": 3}, {"tie_word_embeddings": True}])
def test_a_run_goes_on_as_the_model_it_was(tmp_path, change):
    """Another model is refused by the field that makes it another."""
    given = prepare(tmp_path, "llama", 4)
    trainer("run", *given, "--out", tmp_path / "a")
    other = prepare(tmp_path, "llama", 8, model={"config": {**LLAMA, **change}})
    refused = trainer("run", *other, "--out", tmp_path / "b",
                      "--resume", tmp_path / "a/checkpoints/step-4", check=False)
    assert refused.returncode == 1 and f"$.model.config.{next(iter(change))} " in refused.stderr


def test_what_is_wrong_with_a_spec_is_said_once(tmp_path):
    """However many ranks would have read it; and by what was given, not by what was left open."""
    seven = {"instance_type": "here", "count": 7}
    for more in {"parallelism": {"data": 7}}, {"parallelism": "auto"}:
        given = prepare(tmp_path, "gpt2", 4, resources=seven, **more)
        refused = trainer("run", *given, "--out", tmp_path / "a", "--ranks", 7, check=False)
        assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1, refused.stderr
        assert ("left open" in refused.stderr) == (more["parallelism"] == "auto"), refused.stderr
        assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_folder_is_one_run_s(tmp_path, ranks):
    given = prepare(tmp_path, "gpt2", 5000, resources={"instance_type": "cpu-dev", "count": ranks})
    command = [TRAINER, "run", *given, "--out", tmp_path / "out", "--ranks", ranks]
    with subprocess.Popen([str(x) for x in command], stdout=subprocess.PIPE) as first:
        assert json.loads(first.stdout.readline())["t"] == "training"
        second = subprocess.run([str(x) for x in command], capture_output=True, text=True,
                                timeout=60)
        assert second.returncode == 1
        assert "--out: another run writes into" in second.stderr, second.stderr
        first.terminate()
        first.stdout.read()
    assert first.returncode == 1  # cancelled


def test_killed_at_any_moment_it_goes_on_to_the_same_end(tmp_path):
    given = prepare(tmp_path, "gpt2", 200, checkpoint={"every_steps": 3, "keep": 2})
    whole = trainer("run", *given, "--out", tmp_path / "whole")
    draw, resume, last, rounds = random.Random(11), [], 0, 0
    while True:
        rounds += 1
        out = tmp_path / "torn"
        # A short pipe read byte by byte: the child is never far ahead of what is read.
        with subprocess.Popen([str(x) for x in [TRAINER, "run", *given, "--out", out, *resume]],
                              stdout=subprocess.PIPE, bufsize=0, pipesize=4096) as child:
            assert json.loads(child.stdout.readline())["t"] == "training"
            if resume:
                log = json.loads(child.stdout.readline())
                assert log["lines"] == [f"resumed from the checkpoint of step {last}"]
            if rounds <= 6:
                while json.loads(child.stdout.readline())["t"] != "checkpoint":
                    pass
                for _ in range(draw.randrange(5)):
                    child.stdout.readline()
                time.sleep(draw.uniform(0, 0.01))
                child.send_signal(signal.SIGKILL)
            child.stdout.read()
        if rounds > 6:
            assert child.returncode == 0
            break
        assert child.returncode == -signal.SIGKILL
        kept = sorted((out / "checkpoints").glob("step-*"), key=lambda p: int(p.name[5:]))
        assert int(kept[-1].name[5:]) > last
        last, resume = int(kept[-1].name[5:]), ["--resume", kept[-1]]
    assert ((tmp_path / "whole/final/model.safetensors").read_bytes() ==
            (tmp_path / "torn/final/model.safetensors").read_bytes())
    assert len(steps(whole.stdout)) == 200


def test_adapters_are_peft_s(tmp_path):
    base = prepare(tmp_path, "sft", 10)
    trainer("run", *base, "--out", tmp_path / "base")
    lora = {"rank": 2, "alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    before = (tmp_path / "base/final/model.safetensors").read_bytes()
    given = prepare(tmp_path, "sft", 20, lora=lora, model={"base": "job_0"})
    spec = json.loads(given[0].read_text())
    spec["hyperparameters"]["ema_decay"] = 0.5
    given[0].write_text(json.dumps(spec))
    trainer("run", *given, "--init", tmp_path / "base/final", "--out", tmp_path / "tuned")
    final = tmp_path / "tuned/final"
    assert before == (tmp_path / "base/final/model.safetensors").read_bytes()
    assert not (final / "model.safetensors").exists()
    found = tensors(final / "adapter_model.safetensors")
    shapes = {"self_attn.q_proj": ((2, 32), (32, 2)), "mlp.down_proj": ((2, 48), (32, 2))}
    assert {n: t.shape for n, t in found.items()} == {
        f"base_model.model.model.layers.{i}.{module}.lora_{ab}.weight": shape
        for i in range(2) for module, both in shapes.items() for ab, shape in zip("AB", both)}
    assert all(t.any() for t in found.values())
    config = json.loads((final / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 2 and config["lora_alpha"] == 8
    assert config["base_model_name_or_path"] == "job_0" and not config["fan_in_fan_out"]
    assert sorted(config["target_modules"]) == ["down_proj", "q_proj"]
    text = trainer("generate", final, "--base", tmp_path / "base/final", "--prompt", "yard 1: ",
                   "--max-tokens", 20, "--seed", 4).stdout
    assert text.strip()
    # --average takes the averages' file, and is refused where there is none.
    ask = ["--base", tmp_path / "base/final", "--prompt", "yard 1: ", "--max-tokens", 20]
    averaged = trainer("generate", final, *ask, "--average").stdout
    shutil.copytree(final, tmp_path / "only")
    (tmp_path / "only/ema_adapter_model.safetensors").rename(
        tmp_path / "only/adapter_model.safetensors")
    assert trainer("generate", tmp_path / "only", *ask).stdout == averaged
    refused = trainer("generate", tmp_path / "only", *ask, "--average", check=False)
    assert refused.returncode == 1 and "--average" in refused.stderr
    refused = trainer("generate", final, "--prompt", "x", check=False)
    assert refused.returncode == 1 and "adapters" in refused.stderr


def test_a_trained_tokenizer_goes_along(tmp_path):
    """tokenizer.json of one merge more than bytes: ids, the end of a text, and the files."""
    alphabet = [chr(b) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174 else None
                for b in range(256)]
    extra = iter(range(256, 512))
    alphabet = [c or chr(next(extra)) for c in alphabet]
    vocabulary = {c: i for i, c in enumerate(alphabet)} | {"th": 256}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None,
                 "added_tokens": [{"id": 257, "content": "<|endoftext|>", "single_word": False,
                                   "lstrip": False, "rstrip": False, "normalized": False,
                                   "special": True}],
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None,
                           "continuing_subword_prefix": None, "end_of_word_suffix": None,
                           "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary,
                           "merges": ["t h"]}}
    (tmp_path / "t.json").write_text(json.dumps(tokenizer))
    given = prepare(tmp_path, "gpt2", 60, data={"sequence_length": 32, "tokenizer": "file_t"},
                    model={"config": {**GPT2, "vocab_size": 258}})
    missing = trainer("run", *given, "--out", tmp_path / "a", check=False)
    assert missing.returncode == 2 and "--tokenizer" in missing.stderr
    trainer("run", *given, "--tokenizer", tmp_path / "t.json", "--out", tmp_path / "a")
    final = tmp_path / "a/final"
    assert (final / "tokenizer.json").read_bytes() == (tmp_path / "t.json").read_bytes()
    assert json.loads((final / "config.json").read_text())["eos_token_id"] == 257
    assert json.loads((final / "special_tokens_map.json").read_text())["eos_token"] == (
        "<|endoftext|>")
    ask = ["generate", final, "--prompt", "the ", "--max-tokens", 30, "--seed", 1]
    text = trainer(*ask).stdout
    assert text == trainer(*ask, "--threads", 2).stdout
    assert text != trainer(*ask[:-1], 2).stdout


def test_traces_and_rates(tmp_path):
    given = prepare(tmp_path, "llama", 4)
    told = lines(trainer("run", *given, "--out", tmp_path / "a", "--profile", "--profile-steps", 2,
                         "--peak-flops", "1e11").stdout)
    last = [m for m in told if m["t"] == "step"][-1]
    assert 0 < last["mfu"] < 1 and 0 <= last["data_wait_share"] <= 1
    assert last["memory_bytes"] == told[0]["memory_bytes"] == told[0]["plan"]["total_bytes"]
    assert sorted(p.name for p in (tmp_path / "a/profile").iterdir()) == [
        "step-1.json", "step-2.json", "summary.json"]
    trace = json.loads((tmp_path / "a/profile/step-2.json").read_text())
    names = {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"}
    assert {"step 2", "forward", "backward", "model.layers.1.self_attn.q_proj"} <= names, names
    measured = json.loads(trainer("bench", given[0], "--steps", 2, "--warm", 1).stdout)
    assert measured["step_ms"] > 0 and measured["mfu"] is None
    assert measured["memory_bytes"] == measured["plan_bytes"]


BAD = {
    "text": ("gpt2", "text", b"some text \xff\xfe and more" * 100, r"offset 10"),
    "pairs": ("sft", "pairs.jsonl", pairs(3) + b'{"prompt": "x"}\n', r"line 4"),
    "labels": ("cnn", "labels", idx_labels(256)[:-1], r"truncated"),
    "clicks": ("dlrm", "clicks.csv", clicks(5) + b"2,0,0,0,1,1\n", r"line 7"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_data_are_named_with_file_and_place(tmp_path, name):
    case, file, content, place = BAD[name]
    given = prepare(tmp_path, case)
    (tmp_path / file).write_bytes(content)
    refused = trainer("validate", *given, check=False)
    assert refused.returncode == 1 and refused.stdout == ""
    assert file in refused.stderr and place in refused.stderr, refused.stderr


def test_a_base_is_never_made_up(tmp_path):
    given = prepare(tmp_path, "gpt2")
    spec = json.loads(given[0].read_text())
    spec["model"]["base"] = "job_0"
    given[0].write_text(json.dumps(spec))
    refused = trainer("run", *given, "--out", tmp_path / "out", check=False)
    assert refused.returncode == 2 and "--init" in refused.stderr and "job_0" in refused.stderr
    assert not (tmp_path / "out/init").exists()
    del spec["model"]["config"]
    given[0].write_text(json.dumps(spec))
    refused = trainer("plan", given[0], check=False)
    assert refused.returncode == 1 and "--init" in refused.stderr and "job_0" in refused.stderr


@pytest.mark.parametrize("name", ["init", "final"])
def test_a_folder_that_is_no_model_is_never_replaced(tmp_path, name):
    given = prepare(tmp_path, "gpt2", 4)
    mine = tmp_path / "out" / name / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("kept")
    refused = trainer("run", *given, "--out", tmp_path / "out", check=False)
    assert refused.returncode == 1 and f"out/{name}" in refused.stderr, refused.stderr
    assert mine.read_text() == "kept"
    shutil.rmtree(mine.parent)
    trainer("run", *given, "--out", tmp_path / "out")
    trainer("run", *given, "--out", tmp_path / "out")


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_fifo_is_refused_at_once(tmp_path, command):
    given = prepare(tmp_path, "gpt2")
    file = tmp_path / str(given[2]).rpartition("/")[2]
    file.unlink()
    os.mkfifo(file)
    more = ["--out", tmp_path / "out"] if command == "run" else []
    refused = trainer(command, *given, *more, check=False, timeout=20)
    assert refused.returncode == 1 and "regular file" in refused.stderr, refused.stderr


def test_a_reader_that_leaves_is_an_error_with_a_message(tmp_path):
    given = prepare(tmp_path, "gpt2", 2000)
    with subprocess.Popen([TRAINER, "run", *map(str, given), "--out", tmp_path / "out"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        running.stdout.readline()
        running.stdout.close()
        told = running.stderr.read()
        assert running.wait(60) == 1 and "standard output" in told, told


@pytest.mark.parametrize("command", ["plan", "validate", "bench"])
def test_an_answer_that_cannot_be_written_is_an_error(tmp_path, command):
    given = prepare(tmp_path, "gpt2", 4)
    more = {"plan": given[:1], "validate": given, "bench": [given[0], "--steps", 1, "--warm", 0]}
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([TRAINER, command, *map(str, more[command])], stdout=full, text=True,
                              stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 1 and "standard output" in done.stderr, done.stderr


@pytest.mark.parametrize("words_", ["", "fp32,", "fp32,fp32", "fp31"])
def test_calibrate_refuses_a_wrong_list(words_):
    refused = trainer("calibrate", "--precision", words_, check=False)
    assert refused.returncode == 1 and "--precision" in refused.stderr


def test_every_command_tells_its_arguments():
    for command in "bench", "calibrate", "generate", "plan", "run", "validate":
        told = trainer(command, "--help")
        assert told.stdout.startswith(f"usage: trainyard-trainer {command}"), command
        wrong = trainer(command, "--wrong", check=False)
        assert wrong.returncode == 2 and "--wrong" in wrong.stderr, command


def ranks_of(parent):
    """Pids of the processes that a trainer has started, in the order of ranks."""
    path = pathlib.Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in path.read_text(encoding="ascii").split()]


def test_the_mesh_that_auto_becomes_is_printed(tmp_path):
    """Of several devices; what was given is not explained."""
    two = {"resources": {"instance_type": "cpu-dev", "count": 2}}
    spec = prepare(tmp_path, "gpt2", 10, **two)[0]
    first = trainer("plan", spec).stdout.splitlines()[0]
    assert first.startswith("Parallelism auto: data "), first
    assert "fastest that fits" in first
    for more in {**two, "parallelism": {"data": 2}}, {}:
        spec = prepare(tmp_path, "gpt2", 10, **more)[0]
        assert "Parallelism auto" not in trainer("plan", spec).stdout


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_as_one(tmp_path, ranks):
    """The same samples, losses and norms to what a sum in another order leaves."""
    given = prepare(tmp_path, "gpt2", 10)
    one = lines(trainer("run", *given, "--out", tmp_path / "one").stdout)
    given = prepare(tmp_path, "gpt2", 10, resources={"instance_type": "here", "count": ranks})
    refused = trainer("run", *given, "--out", tmp_path / "many", check=False)
    assert refused.returncode == 1 and f"--ranks {ranks}" in refused.stderr
    many = lines(trainer("run", *given, "--out", tmp_path / "many", "--ranks", ranks,
                         "--peak-flops", 1e12).stdout)
    both = list(zip(*([m for m in told if m["t"] == "step"] for told in (one, many))))
    assert len(both) == 10 and many[-1]["outcome"] == "succeeded"
    flops = one[0]["plan"]["flops_per_step"]
    assert many[0]["plan"]["flops_per_step"] == flops  # the job's, as MFU is of all its devices
    for alone, shared in both:
        assert shared["sample_ids"] == alone["sample_ids"]
        assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-6)
        assert shared["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
        seconds = len(shared["sample_ids"]) / shared["samples_per_second"]
        assert shared["mfu"] * seconds * ranks * 1e12 == pytest.approx(flops, rel=1e-6)
    assert not (tmp_path / "many/rendezvous").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_others(tmp_path, rank):
    given = prepare(tmp_path, "gpt2", 1000000, resources={"instance_type": "here", "count": 2})
    run = subprocess.Popen([TRAINER, "run", *given, "--out", tmp_path / "a", "--ranks", "2"],
                           text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while json.loads(run.stdout.readline()).get("step", 0) < 3:
        pass
    pids = ranks_of(run.pid)
    os.kill(pids[rank], signal.SIGKILL)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGKILL, err
    assert f"rank {rank} was ended by signal 9" in err
    if rank == 1:
        end = lines(out)[-1]
        assert end["reason"] == "platform_error" and "rank 1" in end["message"], end
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_signal_to_one_rank_stops_all(tmp_path):
    given = prepare(tmp_path, "gpt2", 1000000, resources={"instance_type": "here", "count": 2})
    run = subprocess.Popen([TRAINER, "run", *given, "--out", tmp_path / "a", "--ranks", "2"],
                           text=True, stdout=subprocess.PIPE)
    while json.loads(run.stdout.readline()).get("step", 0) < 3:
        pass
    os.kill(ranks_of(run.pid)[1], signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    end = lines(out)[-1]
    assert (run.returncode, end["outcome"]) == (1, "cancelled")
    assert (tmp_path / f"a/checkpoints/step-{end['step']}/manifest.json").exists()
