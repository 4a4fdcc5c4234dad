"""Records as v0 has them: read as `m.role`, `m["role"]` and `m.get("role")`, written in the same ways."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

ModelT = TypeVar("ModelT", bound="Model")


class Model(dict[str, Any]):
    """A dict with declared fields and, like v0's pydantic models, attributes, `model_dump` and their relatives.

    Fields not given have their default, and are there: `"tool_calls" in message` holds for every assistant message.

    Raises:
        ValueError: a required field is missing.
    """

    required: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Default of every other declared field; what is callable is called for a new one."""

    def __init__(self, **values: Any):
        missing = [name for name in self.required if values.get(name) is None]
        if missing:
            raise ValueError(f"{type(self).__name__} needs {', '.join(missing)}; got {sorted(values)}")
        super().__init__()
        for name in self.order():
            if name in values:
                self[name] = values.pop(name)
            else:
                default = self.defaults[name]
                self[name] = default() if isinstance(default, Callable) else default
        for name, value in values.items():
            self[name] = value

    @classmethod
    def order(cls) -> tuple[str, ...]:
        """The declared fields, in the order in which they are shown."""
        return (*cls.required, *cls.defaults)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field '{name}'; it has {sorted(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown(', ')})"

    def __str__(self) -> str:
        return self._shown(" ")

    def _shown(self, between: str) -> str:
        return between.join(f"{name}={value!r}" for name, value in self.items())

    def copy(self: ModelT) -> ModelT:
        """One of the same type with the same fields."""
        return copy.copy(self)

    def model_dump(self, exclude_none: bool = False, **ignored: Any) -> dict[str, Any]:
        """Plain dicts and lists of what it holds."""
        return {
            name: plain(value, exclude_none) for name, value in self.items() if not (exclude_none and value is None)
        }

    def model_dump_json(self, exclude_none: bool = False, **options: Any) -> str:
        """`model_dump` as JSON."""
        return json.dumps(self.model_dump(exclude_none), **options)

    def model_copy(self: ModelT, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> ModelT:
        """A copy with some fields replaced."""
        made = copy.deepcopy(self) if deep else copy.copy(self)
        made.update(update or {})
        return made

    @classmethod
    def model_validate(cls: type[ModelT], value: Any, **ignored: Any) -> ModelT:
        """One of this type from a mapping, or itself.

        Raises:
            ValueError: it is neither, or lacks a field.
        """
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"{cls.__name__} from {value!r}; expected a dict with {', '.join(cls.order())}")
        return cls(**value)

    @property
    def model_extra(self) -> dict[str, Any]:
        """The fields that are not declared."""
        return {name: value for name, value in self.items() if name not in self.order()}


def plain(value: Any, exclude_none: bool = False) -> Any:
    """A value with every `Model` in it as a plain dict."""
    if isinstance(value, Model):
        return value.model_dump(exclude_none)
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item, exclude_none) for item in value)
    if isinstance(value, dict):
        return {name: plain(item, exclude_none) for name, item in value.items()}
    return value
