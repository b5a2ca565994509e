"""The worked solutions of the chapters: code in folded answers, and the exercises they answer."""

import ast
import json
import re
from typing import NamedTuple

from derived import exercises
from tests.support.pages import text


class Exercise(NamedTuple):
    """A check in a code cell of a chapter, and the solution that a folded answer gives for it, if any."""

    chapter: str
    function: str
    cell: str
    imports: str
    solution: str | None


def folded_code(markdown):
    """The Python blocks inside `<details>`."""
    folded = re.findall(r"<details>.*?</details>", markdown, re.S)
    return [block for part in folded for block in re.findall(r"```python\n(.*?)```", part, re.S)]


def checks(source):
    """The calls of `check` in a cell, as syntax."""
    called = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return [node for node in called if ast.unparse(node.func).split(".")[-1] == "check"]


def exercises_of(path):
    """Every exercise of a chapter."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [
        text(c["source"]) for c in cells if c["cell_type"] == "code" and "setup" not in c["metadata"].get("tags", [])
    ]
    solutions = {}
    for block in (b for c in cells if c["cell_type"] == "markdown" for b in folded_code(text(c["source"]))):
        for node in ast.parse(block).body:
            if isinstance(node, ast.FunctionDef):
                solutions[node.name] = block
    imports = [ast.unparse(n) for c in code for n in ast.parse(c).body if isinstance(n, ast.Import | ast.ImportFrom)]
    found = []
    for cell in code:
        for call in checks(cell):
            name = ast.unparse(call.args[0])
            found.append(Exercise(path.stem, name, cell, "\n".join(imports), solutions.get(name)))
    return found


def verdicts(exercise, solution):
    """What the exercise says of a solution (source that defines its function); None runs the cell as it stands.

    The cell runs on the chapter's imports alone: an exercise that leans on variables of earlier cells fails here.
    """
    said = []

    def listening(mine, *rest):
        said.append((getattr(mine, "__name__", None), exercises.verdict(mine, *rest)))

    space = {"__name__": "exercise"}
    exec(exercise.imports, space)
    space["check"] = listening
    if "exercises" in space:
        space["exercises"] = type("exercises", (), {"check": staticmethod(listening)})
    tree = ast.parse(exercise.cell)
    definitions = [n for n in tree.body if not any(c in ast.walk(n) for c in checks(exercise.cell))]
    calls = [
        n for n in tree.body if any(ast.dump(c) in {ast.dump(x) for x in ast.walk(n)} for c in checks(exercise.cell))
    ]
    exec(ast.unparse(ast.Module([n for n in definitions if n not in calls], [])), space)
    if solution is not None:
        exec(solution, space)
        said.clear()  # a solution may call the check itself
    exec(ast.unparse(ast.Module(calls, [])), space)
    return [verdict for name, verdict in said if name in (exercise.function, None)]
