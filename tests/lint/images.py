# SPDX-License-Identifier: Apache-2.0
"""The Dockerfiles agree with the tree: nothing else here builds them. What they copy, run and build
is there, what they take from another stage was made there, and each says how it is built."""
import pathlib
import re

from checks import files, text

MADE = re.compile(r"(?:^|[\s>])(/(?!dev/|usr/|var/)[\w./-]+)")


def instructions(source):
    """(line number, word, rest) of each instruction, its lines joined; comments left out."""
    number, joined, found = 0, "", []
    for at, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        number = number if joined else at
        joined += line.rstrip("\\") + " "
        if line.endswith("\\"):
            continue
        if joined.strip():
            word, _, rest = joined.strip().partition(" ")
            found.append((number, word, rest))
        joined = ""
    return found


def targets_missing(root, rest):
    """Of `ninja -C FOLDER TARGET...`: programs that no meson.build of their folder makes."""
    for command in re.split(r"&&|;", rest):
        words = command.split()
        for target in words[3:] if words[:2] == ["ninja", "-C"] else []:
            folder, _, name = target.rpartition("/")
            build = pathlib.Path(root, folder, "meson.build")
            if not build.exists() or f"executable('{name}'" not in build.read_text():
                yield target


def one(root, path):
    source, stages, wrong = text(root, path), {}, []
    stage = None
    if f"docker build -f {path} " not in source:
        wrong.append(f"{path}: does not say how it is built")
    for number, word, rest in instructions(source):
        where = f"{path}:{number}"
        if word == "FROM":
            stage = rest.split(" AS ")[-1].strip() if " AS " in rest else path
            stages[stage] = set()
        elif word == "RUN":
            stages[stage] |= set(MADE.findall(rest))
            wrong += [f"{where}: no folder builds {target}"
                      for target in targets_missing(root, rest)]
            wrong += [f"{where}: there is no {script}"
                      for script in re.findall(r"(?<![\w/])docker/[\w.-]+", rest)
                      if not pathlib.Path(root, script).exists()]
        elif word == "COPY" and rest.startswith("--from="):
            origin, *words = rest[len("--from="):].split()
            if origin not in stages:
                wrong.append(f"{where}: there is no stage {origin}")
            wrong += [f"{where}: stage {origin} makes no {made}" for made in words[:-1]
                      if origin in stages and made not in stages[origin]]
        elif word == "COPY":
            wrong += [f"{where}: there is no {name}" for name in rest.split()[:-1]
                      if not pathlib.Path(root, name).exists()]
    return wrong


def dockerfiles(root):
    return [line for path in files(root, ".Dockerfile") for line in one(root, path)]
