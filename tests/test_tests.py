"""What the tests promise about themselves."""

import ast
from pathlib import Path

FOLDER = Path(__file__).parent


def test_no_test_module_imports_another_one() -> None:
    """What several of them need is in a module of its own, so that each file of tests can move, and runs alone."""
    imports = {
        (str(path.relative_to(FOLDER)), node.module)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.rpartition(".")[2].startswith("test_")
    }
    assert not imports
