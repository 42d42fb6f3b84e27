"""Kernels that start before their upstream has ended: what they may touch before they wait, read from their source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import playhead.kernels.triton as kernels
from playhead.kernels.triton import dependent

WEIGHTS = {"weight", "x_weight", "norm", "x_norm", "q_weight", "k_weight", "angles"}
"""Parameters that no kernel of a step writes: what may be loaded before the wait."""

SETTLED = {"page_table", "rows", "seq_lens", "order", "query_starts", "query_lens", "positions", "locs"}
"""Written before the embedding, which all layers follow, and by no kernel of a layer."""

OF_ATTENTION = {"qk_rope_write_kernel", "decode_kernel", "write_and_decode_kernel", "extend_kernel"}
OF_ATTENTION |= {"ordered_decode_kernel", "ordered_tiles_kernel"}

OLD_KEYS = {"k_cache", "v_cache"}
"""What a kernel that brings the newest key itself finds in memory are the keys of earlier steps."""

LOADS = {"tl.load", "gl.load", "async_copy.async_copy_global_to_shared"}
STORES = ("tl.store", "gl.store", "_store")
LANGUAGES = ("tl.", "gl.", "async_copy.", "let_downstream_start")

HELPERS = {"after_upstream", "after_upstream_if", "let_downstream_start"}

NUMBERS = {"N", "K", "k_page", "k_slot", "k_head", "v_page", "v_slot", "v_head", "x_stride", "table_stride"}
NUMBERS |= {"num_requests", "num_splits", "whole_keys", "least_keys", "few_splits", "most_keys"}
NUMBERS |= {"num_rows", "num_outputs", "num_inputs", "num_parts", "steps"}


def dependent_kernels(text):
    """The kernels of a file that wait for their upstream, by name."""
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    launched = [node for node in functions if any(arg.arg == "DEPENDENT" for arg in node.args.args)]
    return {node.name: node for node in launched if node.name not in HELPERS}


def calls_in(node, name):
    called = (call for call in ast.walk(node) if isinstance(call, ast.Call))
    return [call for call in called if ast.unparse(call.func) == name]


def waits_in(line):
    """An unconditional wait, or one for programs that have work, which the next line asks again."""
    return calls_in(line, "after_upstream") + calls_in(line, "after_upstream_if")


def names_in(nodes):
    return {name.id for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)}


def problems(kernel):
    """What a kernel does wrong: no wait that every program reaches, or memory touched before it."""
    waits = [i for i, line in enumerate(kernel.body) if isinstance(line, ast.Expr) and waits_in(line)]
    if len(waits) != 1:
        return [f"{kernel.name} waits {len(waits)} times outside of branches"]
    before, (wait, *behind) = kernel.body[: waits[0]], kernel.body[waits[0] :]
    if calls_in(wait, "after_upstream_if") and [ast.unparse(line).split(":")[0] for line in behind] != ["if has_work"]:
        return [f"{kernel.name} goes on without work, and may not have waited"]
    found = [f"{kernel.name} may end before it waits"] if any(isinstance(n, ast.Return) for n in walk(before)) else []
    if any(calls_in(node, name) for node in before for name in STORES):
        found.append(f"{kernel.name} stores before it waits")
    allowed = WEIGHTS | NUMBERS | (SETTLED if kernel.name in OF_ATTENTION else set())
    if kernel.name == "write_and_decode_kernel":
        allowed |= OLD_KEYS
    return found + [f"{kernel.name} loads {name} before it waits" for name in sorted(touched(kernel, before) - allowed)]


def touched(kernel, lines):
    """Parameters that these lines hand to a function which may load them, by whatever name."""
    sources = {arg.arg: {arg.arg} for arg in kernel.args.args if arg.annotation is None}
    found = set()
    for line in walk(lines):
        if isinstance(line, ast.Assign | ast.AugAssign):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            behind = set().union(*(sources.get(name, set()) for name in names_in([line.value])))
            for name in names_in(targets):
                sources[name] = sources.get(name, set()) | behind
        if isinstance(line, ast.Call) and may_load(ast.unparse(line.func)):
            found |= set().union(*(sources.get(name, set()) for name in names_in([*line.args, *line.keywords])))
    return found


def may_load(function):
    return function in LOADS or not function.startswith(LANGUAGES)


def walk(nodes):
    return (inner for node in nodes for inner in ast.walk(node))


FILES = sorted(Path(kernels.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_kernel_touches_nothing_but_weights_before_it_waits(path):
    assert [problem for kernel in dependent_kernels(path.read_text()).values() for problem in problems(kernel)] == []


OF_A_STEP = {
    *(
        "newest_ids_kernel",
        "translate_kernel",
        "longest_first_kernel",
        "embed_kernel",
        "row_kernel",
        "held_kernel",
        "streamed_kernel",
        "ring_kernel",
    ),
    *("qk_rope_write_kernel", "decode_kernel", "write_and_decode_kernel", "extend_kernel"),
    *("add_norm_kernel", "rms_norm_kernel", "gated_activation_kernel", "choose_kernel", "advance_kernel"),
    *("ordered_matmul_kernel", "sum_chunks_kernel", "ordered_decode_kernel", "ordered_tiles_kernel"),
}
"""Kernels of plain steps, and of steps with `batch_invariant`. One of them launched otherwise costs the whole gap in
front of it and behind it.
"""


def test_the_kernels_of_a_step_start_before_their_upstream_has_ended():
    found = {name for path in FILES for name in dependent_kernels(path.read_text())}
    assert found >= OF_A_STEP


@pytest.mark.parametrize(
    ("file", "name"),
    [("embedding", "embed_kernel"), ("rope", "qk_rope_write_kernel")],
)
def test_kernels_let_others_start_when_everything_before_them_has_ended(file, name):
    """Attention reads lengths, rows, page tables and old keys before it waits: earlier kernels have written them."""
    kernel = dependent_kernels((Path(kernels.__file__).parent / f"{file}.py").read_text())[name]
    lines = [ast.unparse(line) for line in kernel.body]
    assert lines.index("after_upstream(DEPENDENT)") < lines.index("let_downstream_start(DEPENDENT)")


WRONG = """
def kernel(x, weight, k_cache, out, DEPENDENT: tl.constexpr):
    {before}
    after_upstream(DEPENDENT)
    tl.store(out, tl.load(x))
"""


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("row = tl.load(x + 3)", "loads x"),
        ("row = x + 3\n    value = tl.load(row)", "loads x"),
        ("value = load_rows(x + 3)", "loads x"),
        ("value = load_rows(k_cache)", "loads k_cache"),
        ("tl.store(out, tl.load(weight))", "stores"),
        ("gl.store(out, gl.load(weight))", "stores"),
        ("row = gl.load(x + 3)", "loads x"),
        ("async_copy.async_copy_global_to_shared(place, x + 3)", "loads x"),
        ("if tl.program_id(0) > 3:\n        return", "may end"),
        ("pass", None),
        ("row = tl.load(weight + 3)", None),
    ],
)
def test_the_check_sees_what_would_race(before, said):
    (kernel,) = dependent_kernels(WRONG.format(before=before)).values()
    assert [said in problem for problem in problems(kernel)] == ([] if said is None else [True])


def test_the_check_sees_a_kernel_that_never_waits():
    (kernel,) = dependent_kernels(WRONG.format(before="pass").replace("after_upstream(DEPENDENT)", "pass")).values()
    assert problems(kernel) == ["kernel waits 0 times outside of branches"]


@pytest.mark.parametrize(("behind", "is_safe"), [("if has_work:\n        ", True), ("", False)])
def test_the_check_sees_programs_that_go_on_without_a_wait(behind, is_safe):
    text = WRONG.format(before="has_work = tl.program_id(0) < 3").replace("tl.store", f"{behind}tl.store")
    text = text.replace("after_upstream(DEPENDENT)", "after_upstream_if(has_work, DEPENDENT)")
    (kernel,) = dependent_kernels(text).values()
    assert problems(kernel) == ([] if is_safe else ["kernel goes on without work, and may not have waited"])


@pytest.mark.parametrize(
    ("has_work", "ids", "waits"),
    [(False, (0, 0, 0), True), (False, (0, 0, 1), False), (False, (1, 0, 0), False), (True, (2, 3, 4), True)],
)
def test_the_first_program_waits_without_work(monkeypatch, has_work, ids, waits):
    """Else a launch without any work could end before the kernel in front of it."""
    waited = []
    monkeypatch.setattr(dependent.tl, "program_id", lambda axis: ids[axis])
    monkeypatch.setattr(dependent, "after_upstream", waited.append)
    dependent.after_upstream_if.fn(has_work, DEPENDENT=True)
    assert waited == [True] * waits
