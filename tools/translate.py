"""Translate the functions of ``powerspherical.formulas`` into C and Triton.

    python tools/translate.py          writes the translations
    python tools/translate.py --check  exits with 1 if they are not current

A formula may assign, loop over a constant, return one value or a pair, and call formulas and the operations in ``ops``.
Constants of the module become numbers, and loops are unrolled. The rest is Triton's syntax, and nearly that of C.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from powerspherical.formulas import densities, maps, ops, slopes

MODULES = (maps, slopes, densities)
PACKAGE = Path(__file__).parents[1] / "src" / "powerspherical"
C, TRITON = PACKAGE / "kernels" / "c" / "formulas.h", PACKAGE / "kernels" / "triton" / "formulas.py"
NOTE = "Written by tools/translate.py from the package's formulas: change those instead."
INTRODUCTION = f"/* {NOTE} */\n"
MODULE = f'''"""{NOTE} They have the documentation."""

# fmt: off
# ruff: noqa
# mypy: ignore-errors
import triton
import triton.language as tl

from powerspherical.kernels.triton.elementary import at_least, at_most, exp, expm1, hypot, log1p

'''


class _Evaluated(ast.NodeTransformer):
    """Replaces expressions of constants by their values, polynomials by Horner's scheme, and removes annotations."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self.constants = constants

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.Starred):
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            if names <= self.constants.keys() and not isinstance(node, ast.Tuple):
                return ast.Constant(eval(ast.unparse(node), {"__builtins__": {}}, self.constants))
        self.generic_visit(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "horner":
            x, *coefficients, value = node.args
            for each in reversed(coefficients):
                value = ast.BinOp(ast.BinOp(value, ast.Mult(), x), ast.Add(), each)
            return value
        return node


def statements(body: list[ast.stmt], constants: dict[str, Any]) -> Iterator[ast.stmt]:
    """Yield assignments and the return of a function, with loops over constants unrolled."""
    for statement in body:
        if isinstance(statement, ast.For):
            names = [node.id for node in ast.walk(statement.target) if isinstance(node, ast.Name)]
            for values in constants[ast.unparse(statement.iter)]:
                turn = dict(zip(names, values, strict=True))
                yield from statements(statement.body, constants | turn)
        else:
            yield _Evaluated(constants).visit(copy.deepcopy(statement))


def functions(module: ModuleType) -> Iterator[tuple[ast.FunctionDef, list[ast.stmt]]]:
    """Yield the functions of a module: the definition, and its statements."""
    constants = {k: v for k, v in vars(module).items() if k.isupper()}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef):
            yield node, list(statements(node.body[1:], constants))


class _CExpression(ast.NodeTransformer):
    """Writes numbers and calls as C has them."""

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if node.value in (float("inf"), float("-inf")):
            return ast.Name("INFINITY" if node.value > 0 else "-INFINITY")
        return ast.Name(f"(real){float(node.value)!r}")

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if hasattr(ops, node.func.id) or node.func.id == "abs":
            node.func = ast.Name(f"{node.func.id}_of")
        return node


def as_c(module: ModuleType) -> Iterator[str]:
    """Yield the functions of a module in C, and the numbers that only kernels use."""
    text = "".join(ast.unparse(node) for node, _ in functions(module))
    numbers = {k: v for k, v in vars(module).items() if k.isupper() and isinstance(v, int | float)}
    yield from (f"#define {name} (real){value}\n" for name, value in numbers.items() if name not in text)
    for node, body in functions(module):
        kinds = {a.arg: "real" if ast.unparse(a.annotation) == "Number" else "reals" for a in node.args.args}
        result = "pair" if isinstance(node.returns, ast.Subscript) else "reals"
        lines, known = [], set(kinds)
        for statement in body:
            value = _CExpression().visit(statement.value)
            if isinstance(statement, ast.Return):
                text = ast.unparse(value)
                lines.append(f"return (pair){{{text[1:-1]}}};" if result == "pair" else f"return {text};")
            else:
                [target] = statement.targets
                lines.append(f"{'' if target.id in known else 'reals '}{target.id} = {ast.unparse(value)};")
                known.add(target.id)
        arguments = ", ".join(f"{kind} {name}" for name, kind in kinds.items())
        comment = "\n * ".join(line.rstrip() for line in (ast.get_docstring(node) or "").splitlines())
        yield f"/* {comment} */\nINLINE {result} {node.name}({arguments}) {{"
        yield "\n".join([*(f"    {line}" for line in lines), "}\n"])


def as_triton(module: ModuleType) -> Iterator[str]:
    """Yield the functions of a module in Triton."""
    for node, body in functions(module):
        text = "\n".join(map(ast.unparse, body)).replace("1e309", 'float("inf")')
        text = re.sub(r"\b(abs|log|where)\(", r"tl.\1(", text)  # other functions are in ``elementary``
        arguments = ", ".join(argument.arg for argument in node.args.args)
        yield f"@triton.jit\ndef {node.name}({arguments}):\n{textwrap.indent(text, '    ')}\n"


def translations() -> dict[Path, str]:
    """Return the texts of the generated files."""
    c, triton = ([x for module in MODULES for x in translate(module)] for translate in (as_c, as_triton))
    return {C: "\n".join([INTRODUCTION, *c]), TRITON: "\n".join([MODULE, *triton]).rstrip() + "\n"}


def main() -> int:
    """Write the generated files. With --check, return 1 if they are not current."""
    stale = {path: text for path, text in translations().items() if path.read_text("utf-8") != text}
    for path, text in stale.items() if "--check" not in sys.argv else ():
        path.write_text(text, "utf-8")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
