"""What is to be run, and the ``__main__`` module that Python would make for it."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
from types import CodeType, ModuleType
from typing import Any


class CannotRun(Exception):
    """There is no such program.

    Args:
        text: why, in Python's words.
        status: the exit status Python has for it.
    """

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A program, ready to run.

    Attributes:
        code: its compiled code.
        argument: what it finds in ``sys.argv[0]``.
        names: the attributes of its ``__main__`` module.
    """

    code: CodeType
    argument: str
    names: dict[str, Any]

    def module(self) -> ModuleType:
        """A fresh ``__main__`` with what Python puts into it."""
        main = ModuleType("__main__")
        main.__dict__.update({"__builtins__": sys.modules["builtins"], "__annotations__": {}, **self.names})
        return main


def find_script(path: str) -> Target:
    """The program ``python path`` runs: a source file, a compiled one, or a folder or zip file with ``__main__.py``.

    Puts what Python puts there into ``sys.path[0]``.

    Raises:
        CannotRun: there is no such file.
        SyntaxError: the source does not compile.
    """
    full = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - pathlib would drop the dots that Python keeps
    if _is_container(pathlib.Path(full)):
        return _find_container(path, full)
    kind = importlib.machinery.SourcelessFileLoader if _is_compiled(path) else importlib.machinery.SourceFileLoader
    loader = kind("__main__", full)
    code = _code_of(loader, full)
    _lead_path(str(pathlib.Path(path).resolve().parent))
    names = {"__file__": full, "__cached__": None, "__loader__": loader, "__package__": None, "__spec__": None}
    return Target(code, path, names)


def _is_compiled(path: str) -> bool:
    return path.endswith(".pyc")


def _is_container(path: pathlib.Path) -> bool:
    import zipfile

    return path.is_dir() or (path.suffix not in (".py", ".pyc") and path.is_file() and zipfile.is_zipfile(path))


def _code_of(loader: Any, full: str) -> CodeType:
    try:
        if _is_compiled(full):
            return loader.get_code("__main__")
        with io.open_code(full) as file:
            source = file.read()
    except OSError as problem:
        raise CannotRun(f"can't open file {full!r}: [Errno {problem.errno}] {problem.strerror}", 2) from None
    return compile(source, full, "exec", dont_inherit=True)


def _find_container(path: str, full: str) -> Target:
    _lead_path(full)
    spec = importlib.machinery.PathFinder.find_spec("__main__", [full])
    if spec is None:
        raise CannotRun(f"can't find '__main__' module in {path!r}", 1)
    return _from_spec(spec, path)


def find_module(name: str) -> Target:
    """The program ``python -m name`` runs: a module, or the ``__main__`` of a package.

    Puts the current folder into ``sys.path[0]``. The packages above the module are imported on the way.

    Raises:
        CannotRun: there is no such module.
    """
    _lead_path(str(pathlib.Path.cwd()))
    spec = _module_spec(name)
    return _from_spec(spec, str(spec.origin))


def _lead_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


def _module_spec(name: str) -> importlib.machinery.ModuleSpec:
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        package, spec = spec, _spec(f"{name}.__main__")
        if spec is None:
            raise CannotRun(
                f"No module named {name}.__main__; {package.name!r} is a package and cannot be directly executed", 1
            )
    if spec is None:
        raise CannotRun(f"No module named {name}", 1)
    return spec


def _spec(name: str) -> importlib.machinery.ModuleSpec | None:
    parent = name.rpartition(".")[0]
    try:
        if parent:
            importlib.import_module(parent)
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not (parent == problem.name or parent.startswith(problem.name + ".")):
            raise  # a package above the module imports something that is missing
        text = f"Error while finding module specification for {name!r} (ModuleNotFoundError: {problem})"
        raise CannotRun(text, 1) from None


def _from_spec(spec: importlib.machinery.ModuleSpec, argument: str) -> Target:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise CannotRun(f"No code object available for {spec.name}", 1)
    names = {
        "__file__": spec.origin if spec.has_location else None,
        "__cached__": spec.cached,
        "__loader__": loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Target(code, argument, names)
