"""Immutable records with named fields: `NamedTuple` without the cost of its classes at a cold start.

`typing.NamedTuple` writes and compiles code for each class: 2 to 3 ms each in Pyodide, and 20 ms more for the first. A
`Record` is used in the same way (fields with types and defaults, `_replace`, equality, unpacking), and to type checkers it
is the very same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Record"]

if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    from operator import itemgetter

    class Record(tuple):  # noqa: SLOT001 - each kind of record has its fields by index
        """A tuple whose items have the names that the class annotates, in their order."""

        _fields = ()
        _defaults = {}  # noqa: RUF012 - each class has its own

        def __init_subclass__(cls) -> None:
            """Give each annotated name its place. A name with a value has that for its default."""
            cls._fields = tuple(cls.__annotations__)
            cls._defaults = {name: cls.__dict__[name] for name in cls._fields if name in cls.__dict__}
            for index, name in enumerate(cls._fields):
                setattr(cls, name, property(itemgetter(index)))

        def __new__(cls, *values, **named):
            """Values by position, then by name, then defaults. TypeError for one too many, one missing, or one unknown."""
            fields, defaults = cls._fields, cls._defaults
            if named or len(values) != len(fields):
                left = fields[len(values) :]
                if len(values) > len(fields) or not named.keys() <= set(left):
                    raise TypeError(f"{cls.__name__} has the fields {', '.join(fields)}, each once")
                missing = [name for name in left if name not in named and name not in defaults]
                if missing:
                    raise TypeError(f"{cls.__name__} needs {', '.join(missing)}")
                values = (*values, *[named[name] if name in named else defaults[name] for name in left])
            return tuple.__new__(cls, values)

        def _asdict(self):
            """Values by name."""
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            """A copy with some fields changed."""
            return type(self)(**{**self._asdict(), **changes})

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self) -> str:
            told = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({told})"
