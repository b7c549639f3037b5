"""The file of ``--layouts``: MIG layouts that an administrator has named."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError

from controller.partitions.layouts import Layouts
from driver.policydocument import LayoutField
from driver.strictmodel import Strict, problems, shown
from kube.plainyaml import PlainYamlError, load


class LayoutsError(ValueError):
    """The file cannot be used; the text names it, the field, the value and what is allowed."""


class _Document(Strict):
    layouts: dict[str, LayoutField] = Field(default_factory=dict)


def read(path: Path) -> Layouts:
    """Layouts by name: ``layouts: {mine: {1g.10gb: 4, 3g.40gb: 1}}``.

    Raises:
        LayoutsError: the file cannot be read, or says something that is not allowed.
    """
    try:
        document = load(path.read_bytes())
    except OSError as error:
        raise LayoutsError(f"{path} cannot be read: {error.strerror}") from error
    except PlainYamlError as error:
        raise LayoutsError(f"{path} is no YAML document: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise LayoutsError(f"{path}: must be an object with layouts, not {shown(document)}")
    try:
        parsed = _Document.model_validate(document)
    except ValidationError as error:
        raise LayoutsError(f"{path}: {problems(_Document, document, error)}") from None
    return {name: tuple(sorted(layout.items())) for name, layout in parsed.layouts.items()}
