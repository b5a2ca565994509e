"""Planted errors: one exact piece of source text exchanged for a wrong one, for as long as a test needs it."""

import contextlib
import importlib
import inspect
import types
from pathlib import Path


def exchanged(source: str, right: str, wrong: str) -> str:
    """source with `right` exchanged for `wrong`; the text must stand there exactly once, or it names no place."""
    found = source.count(right)
    assert found == 1, f"the text to exchange must occur once, it occurs {found} times: {right!r}"
    assert right != wrong, f"nothing is exchanged: {right!r}"
    return source.replace(right, wrong)


@contextlib.contextmanager
def planted(module_name: str, right: str, wrong: str):
    """Run with the functions of a module compiled from exchanged text, then give them their own code back.

    The code objects are exchanged inside the functions, so whoever has imported one by name is served the
    wrong one too. What stands outside the module's top-level functions cannot be exchanged in this way.
    """
    module = importlib.import_module(module_name)
    source = exchanged(Path(module.__file__).read_text(encoding="utf-8"), right, wrong)
    double = types.ModuleType(module_name)
    double.__file__ = module.__file__
    exec(compile(source, module.__file__, "exec"), double.__dict__)
    kept = {}
    for name, function in _functions(module).items():
        mutant = _functions(double)[name]
        if function.__code__ != mutant.__code__:
            kept[function] = function.__code__
            function.__code__ = mutant.__code__
    assert kept, f"no function of {module_name} has changed: {right!r}"
    try:
        yield
    finally:
        for function, code in kept.items():
            function.__code__ = code


def _functions(module) -> dict:
    """The functions a module defines at its top level, freed from the wrapper that checks shapes."""
    named = {name: inspect.unwrap(x) for name, x in vars(module).items() if inspect.isroutine(x)}
    return {name: f for name, f in named.items() if getattr(f, "__module__", None) == module.__name__}
