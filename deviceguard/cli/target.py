"""What is to be run, and the ``__main__`` module that Python would make for it."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.util
import io
import os
import sys
from types import CodeType, ModuleType
from typing import Any

import click


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A program, ready to run.

    Attributes:
        code: its compiled code.
        argument: what it finds in ``sys.argv[0]``.
        folder: what it finds in ``sys.path[0]``; None where the path is to stay as it is.
        names: the attributes of its ``__main__`` module.
    """

    code: CodeType
    argument: str
    folder: str | None
    names: dict[str, Any]

    def module(self) -> ModuleType:
        """A fresh ``__main__`` with what Python puts into it."""
        main = ModuleType("__main__")
        main.__dict__.update({"__builtins__": __builtins__, "__annotations__": {}, **self.names})
        return main


def find_script(path: str) -> Target:
    """The program ``python path`` runs: a source file, a compiled one, or a folder or zip file with ``__main__.py``.

    Raises:
        ClickException: there is no such file.
        SyntaxError: the source does not compile.
    """
    if os.path.isdir(path) or (os.path.isfile(path) and _is_archive(path)):
        return _find_container(path)
    full = os.path.abspath(path)
    loader = (
        importlib.machinery.SourcelessFileLoader("__main__", full)
        if path.endswith(".pyc")
        else importlib.machinery.SourceFileLoader("__main__", full)
    )
    names = {"__file__": full, "__cached__": None, "__loader__": loader, "__package__": None, "__spec__": None}
    return Target(_compiled(path, full), path, os.path.dirname(os.path.realpath(path)), names)


def _is_archive(path: str) -> bool:
    import zipfile

    return not path.endswith((".py", ".pyc")) and zipfile.is_zipfile(path)


def _compiled(path: str, full: str) -> CodeType:
    try:
        if path.endswith(".pyc"):
            code = importlib.machinery.SourcelessFileLoader("__main__", full).get_code("__main__")
            if code is None:
                raise ImportError("no code in it")
            return code
        with io.open_code(full) as file:
            source = file.read()
    except (OSError, ImportError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise _cannot_run(f"can't open file {full!r}: {reason}") from None
    return compile(source, full, "exec", dont_inherit=True)


def _find_container(path: str) -> Target:
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    if spec is None:
        raise _cannot_run(f"can't find '__main__' module in {path!r}")
    return _from_spec(spec, path, path, "")


def find_module(name: str) -> Target:
    """The program ``python -m name`` runs: a module, or the ``__main__`` of a package.

    Raises:
        ClickException: there is no such module.
    """
    sys.path[0:0] = [os.getcwd()]
    try:
        spec = _module_spec(name)
    finally:
        del sys.path[0]
    return _from_spec(spec, str(spec.origin), os.getcwd(), name)


def _module_spec(name: str) -> importlib.machinery.ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError, AttributeError) as problem:
        raise _cannot_run(f"Error while finding module specification for {name!r} ({problem})") from None
    if spec is None:
        raise _cannot_run(f"No module named {name}")
    return spec


def _from_spec(spec: importlib.machinery.ModuleSpec, argument: str, folder: str, name: str) -> Target:
    loader: Any = spec.loader
    code = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        raise _cannot_run(f"No code object available for {name or spec.name}")
    names = {
        "__file__": spec.origin if spec.has_location else None,
        "__cached__": spec.cached,
        "__loader__": loader,
        "__package__": spec.parent,
        "__spec__": spec,
    }
    return Target(code, argument, folder, names)


def _cannot_run(text: str) -> click.ClickException:
    problem = click.ClickException(text)
    problem.exit_code = 2
    return problem
