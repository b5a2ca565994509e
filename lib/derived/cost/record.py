"""A tuple with named fields, as typing.NamedTuple, at a tenth of its cost to define.

The command line answers in a few bare starts of Python; importing typing and generating two dozen NamedTuples would
be a sixth of that time.
"""

from operator import itemgetter


class Record(tuple):
    """Immutable values under the names that a subclass annotates, in that order; a value in the class is a default."""

    __slots__ = ()
    _fields: tuple = ()
    _defaults: dict = {}  # noqa: RUF012  (replaced whole in every subclass, never written to)

    def __init_subclass__(cls):
        cls._fields = tuple(cls.__annotations__)
        cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
        for place, name in enumerate(cls._fields):
            setattr(cls, name, property(itemgetter(place)))

    def __new__(cls, *values, **named):
        """Fields by position, then by name, then by default. Raises TypeError as any call with wrong arguments."""
        if named or len(values) != len(cls._fields):
            values += tuple(cls._filled(cls._fields[len(values) :], named))
            if named or len(values) > len(cls._fields):
                raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}; got {list(named) or values}")
        return tuple.__new__(cls, values)

    @classmethod
    def _filled(cls, missing: tuple, named: dict):
        for name in missing:
            if name in named:
                yield named.pop(name)
            elif name in cls._defaults:
                yield cls._defaults[name]
            else:
                raise TypeError(f"{cls.__name__} needs a value for {name}")

    def _replace(self, **changes):
        """A copy with other values in some fields."""
        return type(self)(**(self._asdict() | changes))

    def _asdict(self) -> dict:
        """The fields by name."""
        return dict(zip(self._fields, self, strict=True))

    def __getnewargs__(self):
        """What a copy or a pickle is made of."""
        return tuple(self)

    def __repr__(self) -> str:
        """Class and fields, as they would be typed."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"
