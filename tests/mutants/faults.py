"""The faults: one small change of a formula each."""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NO_FORMULAS = ("__init__.py", "listing.py", "options.py", "presets.py", "registry.py")
ONLY = {"algos/batch.py": ("only", "keep", "with_advantages", "part")}

# Faults

ARITHMETIC: dict[type, type] = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
OPERATORS = ARITHMETIC | {ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And}
COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
EXTREMES = {"min": "max", "minimum": "maximum", "amin": "amax", "max": "min", "maximum": "minimum", "amax": "amin"}


def changed(node: ast.AST, **fields: object) -> ast.AST:
    found = copy.copy(node)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def faults(node: ast.AST, parent: ast.AST) -> Iterator[ast.AST]:
    """What to put in the place of a node."""
    match node:
        case ast.UnaryOp(op=ast.USub() | ast.Invert() | ast.Not()):
            yield node.operand
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in OPERATORS and not joins_dicts(node):
            yield changed(node, op=OPERATORS[type(op)]())
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield changed(node, op=ARITHMETIC[type(op)]())
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                for other in COMPARISONS.get(type(op), ()):
                    yield changed(node, ops=[*ops[:i], other(), *ops[i + 1 :]])
        case ast.Constant(value=int() | float() as number) if is_quantity(node, parent):
            yield from (ast.Constant(value) for value in (number + 1, type(number)(0)) if value != number)
        case ast.Call(func=ast.Attribute(value=of, attr=name), args=args):
            yield from method_faults(node, of, name)
            yield from (changed(node, args=swapped) for swapped in swapped_bounds(args))
        case ast.Call(args=args):
            yield from (changed(node, args=swapped) for swapped in swapped_bounds(args))
        case ast.Tuple(elts=elements):
            yield from (changed(node, elts=swapped) for swapped in swapped_bounds(elements))


def method_faults(node: ast.Call, of: ast.expr, name: str) -> Iterator[ast.AST]:
    args = node.args
    if name == "detach":
        yield of
    elif name == "no_grad":  # a decorator
        yield ast.parse("lambda function: function", mode="eval").body
    elif name in EXTREMES:
        yield changed(node, func=changed(node.func, attr=EXTREMES[name]))
    elif name == "where":  # torch.where(mask, a, b) or a.where(mask, b)
        yield args[1] if len(args) == 3 else of
        if not isinstance(args[0], ast.UnaryOp):  # ~ is dropped elsewhere
            yield changed(node, args=[ast.UnaryOp(ast.Invert(), args[0]), *args[1:]])
    elif name == "clamp" and len(args) == 2:
        yield changed(node, args=args[::-1])
        yield changed(node, args=[], keywords=[ast.keyword("min", args[0])])
        yield changed(node, args=[], keywords=[ast.keyword("max", args[1])])
    elif name == "clamp":
        yield changed(node, keywords=[ast.keyword(EXTREMES[str(each.arg)], each.value) for each in node.keywords])


def swapped_bounds(elements: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """A lower bound and the upper one after it, each in the other's place."""
    names = [ast.unparse(element) for element in elements]
    for i, name in enumerate(names[:-1]):
        if name.endswith("low") and names[i + 1].endswith("high"):
            yield [*elements[:i], elements[i + 1], elements[i], *elements[i + 2 :]]


def is_quantity(node: ast.Constant, parent: ast.AST) -> bool:
    """Not a flag, nor a dimension or index: whole numbers in subscripts and most calls."""
    if isinstance(node.value, bool):
        return False
    match parent:
        case ast.Call(func=ast.Attribute(attr="where" | "clamp" | "nan_to_num")):
            return True
        case ast.BinOp() | ast.AugAssign() | ast.Compare() | ast.IfExp() | ast.Return():
            return True
    return isinstance(node.value, float)


def joins_dicts(node: ast.AST) -> bool:
    """Whether it is the | of dicts, of which & is an error wherever it is: that would prove nothing."""
    if not isinstance(node, ast.BinOp):
        return False
    return any(isinstance(side, ast.Dict) or "metrics" in ast.unparse(side) for side in (node.left, node.right))


# Mutants


class Mutant(NamedTuple):
    file: str
    line: int
    function: str
    change: str
    source: str

    @property
    def key(self) -> str:
        """Its name in the list of those that are known: line numbers move."""
        return f"{self.file} {self.function}: {self.change}"

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}"


def formulas(tree: ast.AST, only: Collection[str], function: str = "") -> Iterator[tuple[ast.AST, ast.AST, str]]:
    """The nodes in functions, each with its parent and function; without annotations, defaults and messages."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.keyword):
            child = child.value
        if isinstance(child, ast.arguments | ast.Raise | ast.JoinedStr):
            continue
        if child in (getattr(tree, "returns", None), getattr(tree, "annotation", None)):
            continue
        if isinstance(child, ast.FunctionDef):
            if not only or child.name in only:
                yield from formulas(child, (), child.name)
            continue
        if function:
            yield child, tree, function
        yield from formulas(child, only, function)


def described(node: ast.AST, parent: ast.AST, fault: ast.AST) -> str:
    """The change, of the whole expression where a number changes: `0 -> 1` says nothing."""
    if not (isinstance(node, ast.Constant) and isinstance(fault, ast.Constant)):
        return f"{ast.unparse(node)} -> {ast.unparse(fault)}"
    before, value = ast.unparse(parent), node.value
    node.value = fault.value
    after = ast.unparse(parent)
    node.value = value
    return f"{before} -> {after}"


def mutants(file: str) -> Iterator[Mutant]:
    """All that a file of the project can get."""
    source = (ROOT / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: set[str] = set()
    times: Counter[str] = Counter()
    for node, parent, function in formulas(ast.parse(source), ONLY.get(file, ())):
        for fault in faults(node, parent):
            assert isinstance(node, ast.expr | ast.stmt)
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            text = ast.unparse(ast.fix_missing_locations(fault))
            new = text if isinstance(fault, ast.stmt) else f"({text})"
            wrong = (source[:start] + new.encode() + source[end:]).decode()
            if wrong in seen:
                continue
            seen.add(wrong)
            change = described(node, parent, fault)
            times[f"{function} {change}"] += 1
            nth = times[f"{function} {change}"]
            yield Mutant(file, node.lineno, function, f"{change} ({nth})" if nth > 1 else change, wrong)
