"""Reading a frame's variables must not keep alive what the function deletes later."""

from __future__ import annotations

import sys
import weakref

from deviceguard.naming.frames import locals_of


class Thing:
    pass


def test_deleted_variable_is_freed():
    def program() -> bool:
        thing = Thing()
        seen = weakref.ref(thing)
        assert locals_of(sys._getframe())["thing"] is thing
        del thing
        return seen() is None

    assert program()


def test_snapshot_the_program_holds_is_left_alone():
    def program() -> dict[str, object]:
        thing = 1
        held = locals()
        locals_of(sys._getframe())
        return dict(held) | {"again": thing}

    assert program()["thing"] == 1


def test_namespace_of_a_module_is_given_as_it_is():
    namespace: dict[str, object] = {"locals_of": locals_of}
    exec("import sys\nfound = locals_of(sys._getframe())", namespace)

    assert namespace["found"] is namespace or namespace["found"] == namespace


def test_variables_survive_a_debugger():
    def program() -> int:
        number = 3
        locals_of(sys._getframe())
        return number

    before = sys.gettrace()
    sys.settrace(lambda *event: None)
    try:
        assert program() == 3
    finally:
        sys.settrace(before)
