"""Strict models: documents that people write, checked field by field, with errors that say what is allowed.

Its users are imported only when there is a document: pydantic takes 8 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

_KEY = "[key]"
"""The end of pydantic's location where the key of a mapping is wrong, and not its value."""


class Strict(BaseModel):
    """A document in which an unknown field or a value of another type is an error."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, alias_generator=to_camel, hide_input_in_errors=True
    )


def problems(
    model: type[BaseModel], document: Mapping[str, Any], error: ValidationError, place: str = ""
) -> str:
    """What is wrong with a document: each field by its path, with its value and what is allowed.

    ``place`` is the path of the document in a larger one, to be put before each field's.
    """
    return "; ".join(_problem(model, document, item, place) for item in error.errors())


def _problem(model: type[BaseModel], parameters: Mapping[str, Any], error: Any, place: str) -> str:
    location = [str(part) for part in error["loc"] if part != _KEY]
    path = ".".join([place, *location] if place else location) or "parameters"
    if error["type"] == "invalid_key" or error["loc"][-1:] == (_KEY,):
        return f"field {path}: the name of a field must be text"
    if error["type"] == "extra_forbidden":
        return f"field {path} is unknown; allowed here: {', '.join(_fields_at(model, location[:-1]))}"
    if error["type"] == "missing":
        return f"field {path} is required"
    reason = "it must be an object" if error["type"] == "model_type" else error["msg"]
    return f"field {path}: {shown(_value_at(parameters, error['loc']))} is wrong: {reason}"


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """Field names, as users write them, of the model that lies at ``path`` below ``model``."""
    for part in path:
        for field in model.model_fields.values():
            if field.alias == part:
                nested = [kind for kind in _members(field.annotation) if issubclass(kind, BaseModel)]
                if nested:
                    model = nested[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _members(annotation: Any) -> list[type]:
    parts = getattr(annotation, "__args__", (annotation,))
    return [part for part in parts if isinstance(part, type)]


def _value_at(value: Any, path: tuple[int | str, ...]) -> object:
    for part in path:
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if not isinstance(inner, Mapping) or part not in inner:
            break
        value = inner[part]
    return value


def shown(value: object) -> str:
    """A value for a message, cut where it is long."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."
