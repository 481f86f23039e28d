"""Registry of tasks, plug-ins and readers by name, of this package and of others."""

import inspect
import pkgutil
import threading
import typing
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from .changes import nearest
from .kinds import fit_value
from .named import split_options
from .text import read_value
from .values import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Names to what was registered under them; all are found when a name is first asked for.

    Args:
        noun: what an error calls one of them.
        group: of entry points by which other packages add theirs.
        home: the package here whose files, or folders, register theirs, or several; being there is enough.
    """

    def __init__(self, noun: str, *, group: str, home: str | tuple[str, ...]) -> None:
        self.noun, self.group, self.homes = noun, group, (home,) if isinstance(home, str) else home
        self._found: dict[str, T] = {}
        self._complete = self._looking = False
        self._lock = threading.RLock()  # a server's threads may ask at once, and what registers may ask itself

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that puts a class or a function under a name."""

        def put(entry: T) -> T:
            known = self._found.setdefault(name, entry)
            if known is not entry:
                raise ValueError(f"two {self.noun}s are called {name!r}: {_where(known)} and {_where(entry)}")
            return entry

        return put

    def find(self, name: str) -> T:
        """Return what is registered under a name, or say which names there are."""
        self._complete_once()
        if name not in self._found:
            known = sorted(self._found)
            raise ConfigError(
                f"unknown {self.noun} {name[:200]!r}; choose from {', '.join(known)}{nearest(name, known)}"
            )
        return self._found[name]

    def _complete_once(self) -> None:
        if self._complete:
            return
        with self._lock:
            if self._complete or self._looking:
                return
            self._looking = True
            try:
                for home in self.homes:
                    for file in pkgutil.iter_modules(import_module(home).__path__):
                        import_module(f"{home}.{file.name}")
                for point in entry_points(group=self.group):
                    entry = point.load()
                    if point.name not in self._found:
                        self.register(point.name)(entry)
                self._complete = True
            finally:
                self._looking = False

    def __getitem__(self, name: str) -> T:
        self._complete_once()
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        self._complete_once()
        return iter(dict(self._found))

    def __len__(self) -> int:
        self._complete_once()
        return len(self._found)


def parse_options(
    text: str,
    registry: Registry[Any],
    *,
    given_here: tuple[str, ...] = (),
    typed: Mapping[str, Any] | None = None,
    of: Callable[[Any], Any] = lambda entry: entry,
) -> tuple[str, dict[str, Any]]:
    """Read "name" or "name:option=value,option=value"; options are those of the registered one's signature.

    Args:
        given_here: arguments that are not the user's to give, such as the model.
        typed: what is typed for arguments that are otherwise given as objects: a teacher is named by its path.
        of: returns what of the registered one has the signature.
    """
    name, _, rest = text.partition(":")
    name = name.strip()
    made = of(registry.find(name))
    options: dict[str, Any] = {}
    for item in split_options(rest):
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(
                f"the {registry.noun} {text!r} was given; options are written name:option=value,option=value"
            )
        if key.strip() in options:
            raise ConfigError(
                f"the {registry.noun} {name} was given the option {key.strip()} twice, in {text!r}; give it once"
            )
        options[key.strip()] = read_value(value)
    hints = option_hints(made)
    hints |= {key: hint for key, hint in (typed or {}).items() if key in hints}
    for key in options:
        if key not in hints or key in given_here:
            names = [known for known in hints if known not in given_here]
            takes = f"its options are {', '.join(names)}" if names else "it has no options"
            raise ConfigError(f"the {registry.noun} {name} has no option {key!r}; {takes}{nearest(key, names)}")
    source = f"the {registry.noun} {name}"
    fitted = {key: fit_value(value, hints[key], key, source=source) for key, value in options.items()}
    for key, value in fitted.items():
        if isinstance(value, int | float) and not abs(value) < 2**31:  # not true of nan either
            raise ConfigError(f"{source}: {key} = {value} was given; give a finite number between -2^31 and 2^31")
    return name, fitted


def option_hints(made: Any) -> dict[str, Any]:
    """Return the options of a registered one by name, with what each takes.

    They are the arguments of its constructor. Where that hands `**options` on, those of the classes it names as
    `option_sources`, or else of the class it extends, belong to them too, but for what it names as `option_hidden`.
    """
    lineage = [one for one in made.__mro__ if "__init__" in vars(one)] if inspect.isclass(made) else [made]
    init: Any = vars(lineage[0])["__init__"] if inspect.isclass(made) else made
    parameters = inspect.signature(init).parameters.values()
    try:
        found = typing.get_type_hints(init)
    except NameError:  # a hint for checkers alone
        found = {}
    hints = {
        one.name: found.get(one.name, Any)
        for one in parameters
        if one.name != "self" and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        sources = getattr(made, "option_sources", lineage[1:2])
        more = join_hints(*(option_hints(source) for source in sources if source is not object))
        hidden = (*hints, *getattr(made, "option_hidden", ()))
        hints |= {name: hint for name, hint in more.items() if name not in hidden}
    return hints


def option_defaults(made: Any) -> dict[str, Any]:
    """Return the options of a registered one by name, with what each is if it is not given."""
    found: dict[str, Any] = {}
    for source in (*reversed(getattr(made, "option_sources", ())), made):
        found |= {one.name: one.default for one in inspect.signature(source).parameters.values()}
    return {name: found[name] for name in option_hints(made) if name in found}


def join_hints(*several: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of several makers by name; one that they share takes what any of them takes."""
    joined: dict[str, Any] = {}
    for hints in several:
        for name, hint in hints.items():
            joined[name] = hint if joined.get(name, hint) == hint else joined[name] | hint
    return joined


def _where(entry: Any) -> str:
    return f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', entry)}"
