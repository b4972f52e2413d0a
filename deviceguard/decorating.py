"""Puts a context around a function of any kind: plain, generator, coroutine, asynchronous generator."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])
Enter = Callable[[], AbstractContextManager[Any]]


def around(function: _F, whole: Enter = nullcontext, each: Enter = nullcontext) -> _F:
    """The function with a context around each call; it remains the kind of function it was.

    Args:
        function: what to wrap.
        whole: makes the context that is entered once a call, and for a generator stays open while it is suspended.
        each: makes the context that a generator leaves at each ``yield``, so that its consumer is not inside.

    Raises:
        TypeError: this is no function.
    """
    if isinstance(function, type) or not callable(function):
        what = "a class; decorate its methods instead" if isinstance(function, type) else f"{function!r}, no function"
        raise TypeError(f"deviceguard cannot decorate {what}")
    if inspect.isasyncgenfunction(function):
        kind = _around_async_generator
    elif inspect.isgeneratorfunction(function):
        kind = _around_generator
    elif inspect.iscoroutinefunction(function):
        kind = _around_coroutine
    else:
        kind = _around_call
    wrapper = kind(function, whole, each)
    return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def _around_call(function: Callable[..., Any], whole: Enter, each: Enter) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with whole(), each():
            return function(*args, **kwargs)

    return call


def _around_coroutine(function: Callable[..., Any], whole: Enter, each: Enter) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with whole(), each():
            return await function(*args, **kwargs)

    return call


def _around_generator(function: Callable[..., Any], whole: Enter, each: Enter) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with whole():
            return (yield from _driven(function(*args, **kwargs), each))

    return call


def _driven(generator: Generator[Any, Any, Any], each: Enter) -> Generator[Any, Any, Any]:
    resume: Callable[[], Any] = functools.partial(next, generator)
    while True:
        try:
            with each():
                value = resume()
        except StopIteration as end:
            return end.value
        try:
            resume = functools.partial(generator.send, (yield value))
        except GeneratorExit:
            with each():
                generator.close()
            raise
        except BaseException as error:
            resume = functools.partial(generator.throw, error)


def _around_async_generator(function: Callable[..., Any], whole: Enter, each: Enter) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        generator = function(*args, **kwargs)
        resume: Callable[[], Any] = generator.__anext__
        with whole():
            while True:
                try:
                    with each():
                        value = await resume()
                except StopAsyncIteration:
                    return
                try:
                    resume = functools.partial(generator.asend, (yield value))
                except GeneratorExit:
                    with each():
                        await generator.aclose()
                    raise
                except BaseException as error:
                    resume = functools.partial(generator.athrow, error)

    return call
