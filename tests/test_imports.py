"""The rooms keep to themselves: who may import whom, and who may import MindSpore."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "mindspeed_ms"

# Everybody may import these; they import nothing of ours but one another.
BASE = {"errors", "log", "paths"}

# Room: the rooms it may import beside itself and BASE. The longest matching name counts.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "log": set(),
    "paths": set(),
    "config": set(),
    "text": set(),
    "ops.native": set(),
    "ops": {"ops.native"},
    "models": {"ops", "ops.native", "config"},
    "weights": {"models", "config", "ops.native"},
    "data": {"config", "text", "weights"},
    "checkpoint": {"config", "ops.native"},
    "parallel": set(),
    "parallel.topology": {"config"},
    "parallel.plan": {"config", "parallel.topology"},
    "parallel.run": {"ops", "ops.native", "models", "parallel.topology", "parallel.plan", "checkpoint"},
    "train": {"config", "models", "weights", "data", "text", "checkpoint", "parallel.run", "ops", "ops.native"},
    "report": {"config", "data"},
    "compress": {"models", "weights", "ops", "ops.native", "config"},
    "export": {"models", "weights", "compress", "ops", "ops.native", "config"},
    "serving": set(),
    "serving.engine": {"ops.native", "config", "text"},
    # The runner executes a bundle; the front doors of the engine find or make one.
    "serving.engine.runner": {"ops", "ops.native", "export"},
    "serving.engine.llm": {"ops.native", "config", "export", "text"},
    "serving.api": {"serving.engine", "config"},
    "serving.client": set(),
    "diagnose": {"config", "parallel.topology"},
}

MAY_IMPORT_MINDSPORE = {
    "ops": True,
    "weights.load": True,
    "ops.native": False,
    "models": True,
    "parallel.run": True,
    "train": True,
    "compress": True,
    "export": True,
    "data.mindrecord": True,
    "data.loader": True,
    "report": False,
    "serving.engine.runner": True,
}


def modules() -> Iterator[tuple[str, Path]]:
    """Each module's name below mindspeed_ms ('' is the package itself) and its file, symlinked rooms included."""
    for folder, folders, files in os.walk(PACKAGE, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith(("__pycache__", ".")))
        for file in sorted(files):
            if file.endswith(".py"):
                parts = list((Path(folder) / file).relative_to(PACKAGE).with_suffix("").parts)
                if parts[-1] == "__init__":
                    parts.pop()
                yield ".".join(parts), Path(folder) / file


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything a file imports, at any depth of it."""
    package = ["mindspeed_ms", *name.split(".")] if name else ["mindspeed_ms"]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{target}.{alias.name}"


def longest(name: str, table: dict) -> str | None:
    """The entry of a table whose name is the longest prefix of a module's name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in table:
            return ".".join(parts[:length])
    return None


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


ALL = dict(modules())


def test_every_module_belongs_to_a_room():
    strays = [name for name in ALL if name and not within(name, "cli") and longest(name, MAY_IMPORT) is None]
    assert not strays, f"no row of the import table covers {strays}"


def unit(room: str) -> str:
    """Rows for single files of serving.engine extend its row; its files may import one another."""
    return "serving.engine" if within(room, "serving.engine") else room


def may_import_mindspore(name: str) -> bool:
    return MAY_IMPORT_MINDSPORE.get(longest(name, MAY_IMPORT_MINDSPORE) or "", False)


def place(name: str, line: int) -> str:
    return f"{ALL[name].relative_to(ROOT)}:{line}"


def in_a_room(name: str) -> bool:
    """Neither the command line, which may import everything, nor the package itself, which only names it."""
    return bool(name) and not within(name, "cli")


def test_a_room_imports_only_the_rooms_it_may():
    wrong = []
    for name in filter(in_a_room, ALL):
        room = longest(name, MAY_IMPORT) or ""
        allowed = MAY_IMPORT[room] | BASE | {unit(room)}
        for line, imported in imports(name, ALL[name]):
            if within(imported, "mindspeed_ms") and imported != "mindspeed_ms.__version__":
                target = longest(imported.removeprefix("mindspeed_ms."), MAY_IMPORT)
                if target is None or unit(target) not in allowed:
                    wrong.append(f"{place(name, line)}: {room} may not import {imported}")
    assert not wrong, "\n".join(wrong)


def test_only_some_rooms_import_mindspore():
    wrong = [
        f"{place(name, line)}: no MindSpore in here"
        for name in ALL
        if not may_import_mindspore(name)
        for line, imported in imports(name, ALL[name])
        if within(imported, "mindspore")
    ]
    assert not wrong, "\n".join(wrong)


def test_the_symlinked_rooms_are_imported_by_their_full_names():
    wrong = [
        f"{place(name, line)}: write mindspeed_ms.{imported}"
        for name in ALL
        for line, imported in imports(name, ALL[name])
        if imported.partition(".")[0] in ("ops", "parallel", "serving")
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("room", ["ops", "parallel", "serving"])
def test_a_symlinked_room_refuses_its_bare_name(room):
    done = run(f"import {room}", cwd=ROOT)
    assert done.returncode != 0
    assert f"import mindspeed_ms.{room}, not {room}" in done.stderr


def test_the_rooms_without_mindspore_load_without_it(tmp_path):
    """The import table looks at one file at a time; this looks at what those files bring along."""
    names = [f"mindspeed_ms.{name}" for name in ALL if in_a_room(name) and not may_import_mindspore(name)]
    # A script that does something when imported as a module has to be started by `python -m`.
    names = [name for name in names if not name.endswith("__main__")]
    done = run(
        "import sys, importlib, json\n"
        "sys.modules['mindspore'] = None\n"
        f"for name in json.loads({json.dumps(json.dumps(names))}):\n"
        "    importlib.import_module(name)\n",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def run(code: str, cwd: Path, *options: str, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


STARTS = {
    "import": "import mindspeed_ms",
    "help": "import sys; sys.argv[1:] = ['--help']; from mindspeed_ms.cli.main import main; main()",
}


@pytest.mark.parametrize("start", STARTS)
def test_starting_up_loads_no_heavy_module_and_writes_nothing(start, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    cache = str(home / "cache")
    done = run(STARTS[start], home, "-X", "importtime", HOME=str(home), MINDSPEED_MS_CACHE=cache)
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "mindspeed_ms" in loaded
    heavy = {"mindspore", "numpy", "torch", "pydantic", "yaml", "grpc", "tokenizers", "safetensors", "gguf", "jinja2"}
    assert not loaded & heavy
    assert not list(home.iterdir())


@pytest.mark.parametrize("start", STARTS)
def test_starting_up_takes_less_than_a_third_of_a_second(start, tmp_path):
    # Processor time, which other work on the machine does not stretch much; the least of a few starts.
    wrapped = (
        "import atexit, resource, sys\n"
        "atexit.register(lambda: print(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), file=sys.stderr))\n"
    )
    seconds = [float(run(wrapped + STARTS[start], tmp_path).stderr.split()[-1]) for _ in range(5)]
    assert min(seconds) < 0.3, seconds


def test_names_are_offered_before_they_are_loaded():
    done = run("import mindspeed_ms as m, mindspeed_ms.ops as o, sys; print(m.__all__, o.__all__, dir(m))", ROOT)
    assert done.returncode == 0, done.stderr
    assert "LLM" in done.stdout and "RMSNorm" in done.stdout


def test_an_unknown_name_is_an_attribute_error():
    import mindspeed_ms

    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = mindspeed_ms.Nothing
