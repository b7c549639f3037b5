"""The documentation names what the code has: flags, metrics, events, causes, and the examples' selectors."""

import argparse
import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import controller.metrics
import controller.settings
import kubeletplugin.metrics
import kubeletplugin.settings
from driver.attributes import ATTRIBUTES, CAPACITIES
from kubeletplugin import failures

ROOT = Path(__file__).parents[3]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
README = (ROOT / "README.md").read_text()
PROGRAMS: dict[str, tuple[Callable[..., None], type[Any]]] = {
    "": (kubeletplugin.settings.add_arguments, kubeletplugin.metrics.Metrics),
    "Controller: ": (controller.settings.add_arguments, controller.metrics.Metrics),
}
"""For each program, by what its headings in docs/operations.md begin with: its flags and metrics."""

METRICS = [
    (program, f"{metric.name}_total" if metric.type == "counter" else metric.name, metric.type)
    for program, (_, metrics) in PROGRAMS.items()
    for metric in metrics().registry.collect()
]


def heading(program: str, about: str) -> str:
    """The heading of a table of a program, such as ``## Flags`` and ``## Controller: flags``."""
    return f"## {program}{about.lower() if program else about}"


def flags(program: str) -> dict[str, str]:
    """Each flag without its dashes, with its default."""
    parser = argparse.ArgumentParser()
    PROGRAMS[program][0](parser, {})
    return {name.replace("_", "-"): value for name, value in vars(parser.parse_args([])).items()}


def rows(heading: str) -> list[list[str]]:
    """The cells of the tables in one section of docs/operations.md."""
    below = OPERATIONS.split(f"\n{heading}\n", 1)[1]
    section = re.split(r"\n#+ ", below, maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(heading: str) -> set[str]:
    """What stands in code type in the first column."""
    return {name for row in rows(heading) for name in re.findall(r"`([^`]+)`", row[0])}


def calls(*functions: str, rooms: tuple[str, ...] = ("driver", "kubeletplugin")) -> Iterator[ast.Call]:
    """Calls of functions or methods by these names, in the product's code."""
    for room in rooms:
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call) and _called(node) in functions:
                    yield node


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def words(call: ast.Call) -> list[str]:
    """The call's arguments that are one CamelCase word."""
    texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and re.fullmatch(r"([A-Z][a-z]+)+", text)]


@pytest.mark.parametrize(
    ("program", "flag", "default"),
    [(program, *each) for program in PROGRAMS for each in flags(program).items()],
)
def test_flag_is_documented(program: str, flag: str, default: str) -> None:
    row = next((row for row in rows(heading(program, "Flags")) if row[0] == f"`--{flag}`"), None)
    assert row is not None
    assert row[1] == f"`{flag.upper().replace('-', '_')}`"
    if default:
        assert row[2] == f"`{default}`"


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_other_flag_is_documented(program: str) -> None:
    assert names(heading(program, "Flags")) == {f"--{flag}" for flag in flags(program)}


@pytest.mark.parametrize(("program", "name", "kind"), METRICS)
def test_metric_is_documented(program: str, name: str, kind: str) -> None:
    row = next((row for row in rows(heading(program, "Metrics")) if row[0] == f"`{name}`"), None)
    assert row is not None
    assert row[1].split(";")[0] == kind


@pytest.mark.parametrize("program", PROGRAMS)
def test_metrics_have_the_labels_that_are_documented(program: str) -> None:
    table = rows(heading(program, "Metrics"))[1:]
    documented = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table}
    every = vars(PROGRAMS[program][1]()).values()
    found = {metric._name: set(metric._labelnames) for metric in every if hasattr(metric, "_labelnames")}
    assert {name.removesuffix("_total"): labels for name, labels in documented.items()} == found


def test_causes_are_documented() -> None:
    raised = {
        word for call in calls("ClaimError", "MigOperationError", "Failure") for word in words(call)[:1]
    }
    assert {"BadConfig", "InUse", "NotFound"} < raised
    assert names("### Causes") == raised | {cause for _, cause in failures._CAUSES} | {"Internal"}


def test_event_reasons_are_documented() -> None:
    found = {word for call in calls("warning", "Condition") for word in words(call)}
    assert {"StoreRebuilt", "NoGpu", "StatusNotWritten"} < found
    assert names("## Events") == found | {"PrepareFailed", "UnprepareFailed"}


REFUSED_REQUESTS = {"Invalid", "NoNode", "NoGpu", "Impossible", "Outranked"}
"""The reasons of a condition, which are those of events too."""


def test_event_reasons_of_the_controller_are_documented() -> None:
    found = {word for call in calls("warning", "Condition", rooms=("controller",)) for word in words(call)}
    assert {"FieldKept", "ExtendedResourcesWithheld"} < found
    # What is only logged is no event.
    assert names(heading("Controller: ", "Events")) == found - {"ClassLeftOut"} | REFUSED_REQUESTS


def test_readme_shows_selectors_of_the_examples() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    shown = [text for block in blocks for text in _expressions(yaml.safe_load(block))]
    examples = [yaml.safe_load_all(file.read_text()) for file in (ROOT / "examples").rglob("*.yaml")]
    copied = {text for documents in examples for document in documents for text in _expressions(document)}
    assert len(blocks) == 5
    assert len(shown) >= 5
    assert set(shown) <= copied


def _expressions(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "expression":
                yield value
            else:
                yield from _expressions(value)
    elif isinstance(node, list):
        for item in node:
            yield from _expressions(item)


def test_readme_lists_all_attributes_and_capacities() -> None:
    section = README.split("## What a device tells about itself", 1)[1].split("\n## ", 1)[0]
    for entry in (*ATTRIBUTES, *CAPACITIES):
        assert f"`{entry.name.rpartition('/')[2]}`" in section


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_to_files(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", (ROOT / page).read_text()):
        assert (folder / target).exists(), target
