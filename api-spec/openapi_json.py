#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""openapi_json.py IN.yaml OUT.h: the API's description as a C string, OPENAPI_JSON, of its JSON.

Called by meson. Refuses a description that could not be served: a reference that leads nowhere, an
operation without id."""
import json
import sys

import yaml

METHODS = ("get", "put", "post", "delete", "patch", "head")
CHUNK = 80


def references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def check(document):
    for reference in references(document):
        target = document
        for part in reference.removeprefix("#/").split("/"):
            if not isinstance(target, dict) or part not in target:
                sys.exit(f"openapi.yaml: {reference} leads nowhere")
            target = target[part]
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item and not item[method].get("operationId"):
                sys.exit(f"openapi.yaml: {method} {path} has no operationId")


def main(source, target):
    with open(source, encoding="utf-8") as file:
        document = yaml.safe_load(file)
    check(document)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True)
    with open(target, "w", encoding="ascii") as file:
        file.write("/* Made from api-spec/openapi.yaml. */\n#pragma once\n\n"
                   "static const char OPENAPI_JSON[] =")
        for at in range(0, len(text), CHUNK):
            piece = text[at:at + CHUNK].replace("\\", "\\\\").replace('"', '\\"')
            file.write(f'\n\t"{piece}"')
        file.write(";\n")


main(*sys.argv[1:])
