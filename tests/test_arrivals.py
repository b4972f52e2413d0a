import sys

from deviceguard.backends import arrivals
from deviceguard.backends.tracing import Tracing

PACKAGE = "a_backend_that_comes_late"


class Late(Tracing):
    package = PACKAGE

    def is_loaded(self):
        return PACKAGE in sys.modules


def test_tells_once_when_the_package_is_imported(monkeypatch, tmp_path):
    (tmp_path / f"{PACKAGE}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(arrivals, "tracings", lambda: (Late(),))
    monkeypatch.setattr(arrivals, "_WAITING_FOR", {})
    told = []

    def adapt():
        told.append(PACKAGE in sys.modules)

    arrivals.after_import(adapt)
    arrivals.after_import(adapt)
    try:
        __import__(PACKAGE)
        assert told == [True]
        arrivals.after_import(adapt)
        assert told == [True]
    finally:
        sys.modules.pop(PACKAGE, None)
