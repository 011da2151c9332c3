# SPDX-License-Identifier: Apache-2.0
"""The house rules. Each check takes the root of a tree and returns its violations, one text each.

test_rules.py runs them on the house and test_selftest.py on trees with planted violations."""
import ast
import os
import pathlib
import re
import subprocess

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
TAB = 4
COMMENT_LINES_MAX = 6  # the SPDX line and five more
C = (".c", ".cc", ".cu", ".h")

SKIPPED = re.compile(r"^(build[^/]*|var|\.git|\.cache|node_modules|tests/lint/selftest)$")
BANNED = re.compile(r"\b(strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok)\s*\(")
EXIT = re.compile(r"(?<![\w.>])exit\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.M)


def files(root, *suffixes):
    """Paths relative to root, sorted, that end in one of suffixes."""
    found = []
    for folder, names, leaves in os.walk(root):
        base = os.path.relpath(folder, root)
        base = "" if base == "." else base + "/"
        names[:] = [name for name in names if not SKIPPED.match(base + name)
                    and name != "__pycache__"]
        found += [base + leaf for leaf in leaves if leaf.endswith(suffixes)]
    return sorted(found)


def text(root, path):
    return pathlib.Path(root, path).read_text(encoding="utf-8", errors="replace")


def code_only(source):
    """The same lines with comments and the content of literals blanked."""
    pattern = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
    return pattern.sub(lambda m: '""' if m[0][0] in "\"'" else "\n" * m[0].count("\n"), source)


def table(path):
    """Rows `key: words` of a rules file."""
    rows = {}
    for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            key, _, words = line.rpartition(":") if line.endswith(":") else line.partition(": ")
            rows[key] = words.split()
    return rows


def inside(path, places):
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def room_of(path, rooms):
    fitting = [room for room in rooms if inside(path, [room])]
    return max(fitting, key=len) if fitting else None


HERE = pathlib.Path(__file__).resolve().parent


def allowed_of(path, rooms):
    """The places that path may include; None when no row covers it."""
    room = room_of(path, rooms)
    if room is None:
        return None
    allowed = rooms[room] + [os.path.splitext(path)[0] + ".h"]
    if room == "tests/unit":
        twin = room_of(path[len("tests/unit/"):], rooms)
        allowed += rooms[twin] + [twin] if twin else []
    return allowed


def arrows(root):
    rooms = table(HERE / "arrows.txt")
    wrong = []
    for path in files(root, *C):
        allowed = allowed_of(path, rooms)
        if allowed is None:
            wrong.append(f"{path}: no row of arrows.txt covers this file")
            continue
        for quoted, _ in INCLUDE.findall(text(root, path)):
            if quoted and "/" not in quoted:
                wrong.append(f"{path}: \"{quoted}\" is not written from the root")
            elif quoted and not inside(quoted, allowed):
                wrong.append(f"{path}: may not include {quoted}")
    return wrong


def library_users(root):
    users = table(HERE / "library_users.txt")
    wrong = []
    for path in files(root, *C):
        for _, system in INCLUDE.findall(text(root, path)):
            for prefix, places in users.items():
                if system.startswith(prefix) and not inside(path, places):
                    wrong.append(f"{path}: <{system}> belongs to {' '.join(places)}")
    return wrong


def c_functions(lines):
    """(name line, length) of every function body: its brace stands alone in column 0."""
    start = None
    for number, line in enumerate(lines):
        if line.startswith("{") and not lines[number - 1].startswith("namespace"):
            start = number
            while start > 0 and re.match(r"[A-Za-z_\t]", lines[start - 1]):
                start -= 1
        elif line.startswith("}") and start is not None:
            yield start + 1, number - start + 1
            start = None


def shell_functions(lines):
    start = None
    for number, line in enumerate(lines):
        if re.match(r"^\w+\(\) \{", line):
            start = number
        elif line == "}" and start is not None:
            yield start + 1, number - start + 1
            start = None


def python_functions(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def sizes(root):
    wrong = []
    for path in files(root, *C, ".py", ".sh", ".sql", "run"):
        source = text(root, path)
        lines = source.splitlines()
        if len(lines) > FILE_LINES_MAX:
            wrong.append(f"{path}: {len(lines)} lines, at most {FILE_LINES_MAX}")
        if path.endswith(C):
            functions = c_functions(lines)
        elif path.endswith(".py"):
            functions = python_functions(source)
        else:
            functions = shell_functions(lines)
        wrong += [f"{path}:{line}: a function of {length} lines, at most {FUNCTION_LINES_MAX}"
                  for line, length in functions if length > FUNCTION_LINES_MAX]
        if path.endswith((*C, ".py")):
            wrong += [f"{path}:{number}: {len(line.expandtabs(TAB))} columns"
                      for number, line in enumerate(lines, 1)
                      if len(line.expandtabs(TAB)) > COLUMNS_MAX]
    return wrong


def banned(root):
    wrong = []
    for path in files(root, *C):
        may_exit = os.path.basename(path) == "main.c" or path.startswith(("tests/", "bench/"))
        for number, line in enumerate(code_only(text(root, path)).splitlines(), 1):
            for match in BANNED.findall(line):
                wrong.append(f"{path}:{number}: {match} is banned")
            if EXIT.search(line) and not may_exit:
                wrong.append(f"{path}:{number}: only main exits")
    return wrong


def typedefs(root):
    pattern = re.compile(r"\btypedef\s+(struct|union|enum)\b")
    return [f"{path}: typedef {word}: say `{word} name` instead"
            for path in files(root, *C)
            for word in pattern.findall(code_only(text(root, path)))]


def spdx(root):
    wrong = []
    for path in files(root, *C, ".py", ".sh", ".sql", ".yaml", "run"):
        lines = text(root, path).splitlines()
        if lines and lines[0].startswith(("#!", "# shellcheck ")):
            lines = lines[1:]
        if "SPDX-License-Identifier: Apache-2.0" not in (lines or [""])[0]:
            wrong.append(f"{path}: does not open with its SPDX line")
        elif path.endswith(C):
            end = next((n for n, line in enumerate(lines, 1) if "*/" in line), len(lines))
            if end > COMMENT_LINES_MAX:
                wrong.append(f"{path}: its opening comment has {end} lines, at most "
                             f"{COMMENT_LINES_MAX}")
    return wrong


def package_list(root):
    lines = text(root, "docker/apt-packages.txt").splitlines()
    return [] if lines == sorted(set(lines)) else ["docker/apt-packages.txt: not sorted, or twice"]


def formatted(root):
    paths = files(root, *C)
    if not paths:
        return []
    done = subprocess.run(["clang-format", "--dry-run", *paths], cwd=root, text=True,
                          capture_output=True, check=False)
    return sorted({f"{line.split(':')[0]}: not formatted; ./run fmt does it"
                   for line in done.stderr.splitlines() if "clang-format-violations" in line})
