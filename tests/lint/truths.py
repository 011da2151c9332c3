# SPDX-License-Identifier: Apache-2.0
"""Two places that say the same thing must agree: routes and OpenAPI, errors and errors.yaml,
settings and their page. Each check takes a root and returns its differences, one text each."""
import os
import pathlib
import re
import subprocess

import yaml

from checks import code_only, text

METHODS = ("get", "put", "post", "delete", "patch", "head")
PROGRAMS = {
    "trainyard-server": "server/trainyard-server",
    "trainyard-agent": "workers/agent/trainyard-agent",
    "trainyard-trainer": "workers/trainer/trainyard-trainer",
    "trainyard-billing": "billing/trainyard-billing",
}


def differences(left_name, left, right_name, right):
    return [f"only in {left_name}: {item}" for item in sorted(left - right)] + [
        f"only in {right_name}: {item}" for item in sorted(right - left)]


def routes(root):
    source = text(root, "server/routes.c")
    customers = re.search(r"routes_api\[\]\s*=\s*\{(.*?)\n\};", source, re.S)
    if not customers:
        return ["server/routes.c: no table routes_api"]
    rows = set(re.findall(r'"([A-Z]+)",\s*"(/[^"]*)",\s*"(\w+)"', customers[1]))
    if not rows:
        return ["server/routes.c: routes_api has no rows"]
    document = yaml.safe_load(text(root, "api-spec/openapi.yaml"))
    described = {(method.upper(), path, operation.get("operationId", "?"))
                 for path, item in document["paths"].items()
                 for method, operation in item.items() if method in METHODS}
    return differences("routes.c", rows, "openapi.yaml", described)


def errors(root):
    source = text(root, "core/base/err.h")
    body = re.search(r"#define ERR_LIST\(X\)(.*?)\n\nenum", source, re.S)[1].replace("\\\n", " ")
    row = re.compile(r'X\(\s*(\w+),\s*(\d+),\s*(\d+),\s*"([^"]*)",\s*"([^"]*)",\s*"([^"]*)"\s*\)')
    listed = {(name, int(number), int(status), slug, kind, title)
              for name, number, status, slug, kind, title in row.findall(body)}
    if len(listed) != len(re.findall(r"\bX\(", body)):
        return ["core/base/err.h: a row of ERR_LIST cannot be read"]
    document = yaml.safe_load(text(root, "api-spec/errors.yaml"))
    told = {tuple(entry[key] for key in ("name", "number", "status", "slug", "type", "title"))
            for entry in document["errors"]}
    return differences("err.h", listed, "errors.yaml", told)


def build_folder(root):
    return pathlib.Path(os.environ.get("TRAINYARD_BUILD") or os.path.join(root, "build"))


def printed_settings(build):
    """What each program that exists says of its settings."""
    said = {}
    for name, path in PROGRAMS.items():
        program = build / path
        if program.exists():
            done = subprocess.run([program, "--print-settings"], text=True, capture_output=True,
                                  check=False, timeout=20)
            said[name] = done.stdout.strip() if done.returncode == 0 else None
    return said


def section(name, page):
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", page, re.S)
    return found[1].strip() if found else None


def settings(root, said=None):
    """Compares docs/settings.md with what the programs print (or with `said`)."""
    if said is None:
        said = printed_settings(build_folder(root))
    page = text(root, "docs/settings.md")
    wrong = []
    for name, printed in said.items():
        if printed is None:
            wrong.append(f"{name}: --print-settings fails")
        elif section(name, page) != printed:
            wrong.append(f"docs/settings.md: the table of {name} is not what it prints; "
                         "tests/lint/settings_write.py renews it")
    return wrong


def settings_write(root, said):
    page = pathlib.Path(root, "docs/settings.md")
    content = page.read_text(encoding="utf-8")
    for name, printed in said.items():
        content = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end -->)",
                         lambda m, new=printed: f"{m[1]}{new}\n{m[2]}", content, flags=re.S)
    page.write_text(content, encoding="utf-8")


def handlers(root):
    """One file per operation: each prototype of handlers.h has the file of its name, and back."""
    header = code_only(text(root, "server/handlers/handlers.h"))
    told = set(re.findall(r"^int (\w+)\(struct request", header, re.M))
    if not told:
        return ["server/handlers/handlers.h: no prototypes"]
    found = {path.stem for path in pathlib.Path(root, "server/handlers").glob("*.c")
             if re.search(rf"^int {path.stem}\(struct request", path.read_text(), re.M)}
    return differences("handlers.h", told, "server/handlers", found)


def ranges(root):
    """The bounds of each number among the hyperparameters: what is read, what OpenAPI says."""
    source = text(root, "core/spec/spec_json_hyper.c")
    rows = re.findall(r"^\tNUMBER\((\w+), ([^,]+), ([^,]+), ", source, re.M)
    if not rows:
        return ["core/spec/spec_json_hyper.c: no table of numbers"]
    taken = {(name, float(low), float(high)) for name, low, high in rows}
    document = yaml.safe_load(text(root, "api-spec/openapi.yaml"))
    fields = document["components"]["schemas"]["JobSpec"]["properties"]["hyperparameters"]
    numbers = {(name, one["minimum"], one["maximum"])
               for name, field in fields["properties"].items() for one in field.get("anyOf", [])
               if one.get("type") == "number"}
    return differences("spec_json_hyper.c", taken, "openapi.yaml",
                       {(name, low + 0.0, high + 0.0) for name, low, high in numbers})
