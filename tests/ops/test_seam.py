"""The seam between operations and backends: who may name one, what a graph carries, and what is seen of the outside."""

import dataclasses
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lln
from lln.ops.blocks import blocks
from lln.ops.diag import diag
from lln.ops.lln import attention
from tests.ops.cases import build
from tests.ops.subjects import NAMES, OPERATIONS, Subject, compute, every_backend_name, subjects
from tests.ops.test_diag_contract import stress
from tests.ops.test_lln_contract import stress_case
from tests.ops.test_near_far_contract import Reach
from tests.ops.test_near_far_contract import stress as near_far_stress

ROOT = Path(__file__).parents[2]
FUNCTIONS = {
    "lln": lambda q, k, v, **o: lln.lln_attention(q, k, v, 1.2, 0.9, **o),
    "lln causal": lambda q, k, v, **o: lln.lln_attention(q, k, v, 1.2, 0.9, is_causal=True, **o),
    "blocks": lambda q, k, v, **o: lln.block_diagonal_attention(q, k, v, block_size=16, **o),
    "blocks causal": lambda q, k, v, **o: lln.block_diagonal_attention(q, k, v, block_size=16, is_causal=True, **o),
    "diag": lambda q, k, v, **o: lln.lln_diag_attention(q, k, v, 1.2, 0.9, block_size=16, **o),
    "diag causal": lambda q, k, v, **o: lln.lln_diag_attention(q, k, v, 1.2, 0.9, block_size=16, is_causal=True, **o),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def inputs(dtype: torch.dtype = torch.float64, length: int = 50) -> list[Tensor]:
    return [torch.randn(2, heads, length, dim, dtype=dtype) for heads, dim in ((4, 8), (2, 8), (2, 5))]


def test_no_file_outside_of_the_operations_names_a_backend() -> None:
    found = []
    for file in (ROOT / "src").rglob("*.py"):
        if (
            "ops" in file.relative_to(ROOT / "src" / "lln").parts[:1]
            if file.is_relative_to(ROOT / "src" / "lln")
            else False
        ):
            continue
        text = file.read_text()
        found += [f"{file.name}: {m}" for m in re.findall(r"""["'](?:native|chunked|oracle|triton)["']""", text)]
        found += [f"{file.name}: {m}" for m in re.findall(r"import .*\b(?:native|chunked|triton)\b", text)]
    assert not found, found


@every_function
@pytest.mark.parametrize("alike", [False, True], ids=["shared heads", "q, k and v of one shape"])
def test_forward_mode_derivatives_are_those_of_reverse_mode(name: str, alike: bool) -> None:
    function, primals = FUNCTIONS[name], inputs()
    if alike:  # torch has a kernel of its own for these
        primals = [torch.randn(2, 4, 48, 8, dtype=torch.float64) for _ in range(3)]
    tangents = [torch.randn_like(x) for x in primals]
    out, tangent = torch.func.jvp(function, tuple(primals), tuple(tangents))
    leaves = [x.clone().requires_grad_() for x in primals]
    upstream = torch.randn_like(out)
    gradients = torch.autograd.grad(function(*leaves), leaves, upstream)
    expected = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    torch.testing.assert_close((tangent * upstream).sum(), expected)
    assert tangent.abs().max() > 0
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(primals, tangents, strict=True)]
        torch.testing.assert_close(forward_ad.unpack_dual(function(*duals)).tangent, tangent)


@every_function
def test_functional_gradients_are_those_of_autograd(name: str) -> None:
    function, (q, k, v) = FUNCTIONS[name], inputs()
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(leaf, k, v).square().sum(), leaf)
    torch.testing.assert_close(torch.func.grad(lambda x: function(x, k, v).square().sum())(q), expected)
    many = torch.func.vmap(torch.func.grad(lambda x: function(x, k, v).square().sum()))(torch.stack([q, 2 * q]))
    torch.testing.assert_close(many[0], expected)


def test_a_kernel_that_forward_mode_cannot_see_through_says_so() -> None:
    if "native" not in NAMES:
        pytest.skip("the native kernel is not built here")
    q, k, v = inputs(torch.float32)
    with pytest.raises(ValueError, match="torch.func and forward mode cannot see"):
        torch.func.jvp(lambda x: FUNCTIONS["lln"](x, k, v, backend="native"), (q,), (q,))


@pytest.mark.parametrize("what", ["alpha", "beta", "feature_bias", "mix"])
def test_vmap_over_a_single_argument_of_lln_diag(what: str) -> None:
    tensors, many = inputs(torch.float32), torch.tensor([0.3, 0.6])

    def attend(x: Tensor) -> Tensor:
        given: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, what: x.expand(1, 4, 1, 8) if what == "feature_bias" else x}
        return lln.lln_diag_attention(*tensors, block_size=16, **given)

    together = torch.func.vmap(attend)(many)
    for found, x in zip(together, many, strict=True):
        torch.testing.assert_close(found, attend(x))


def test_mixing_overwrites_nothing_that_a_branch_transform_kept() -> None:
    kept: list[Tensor] = []
    tensors = inputs(torch.float32)

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.no_grad():
        lln.lln_diag_attention(*tensors, 1.0, 1.0, block_size=16, branch_transform=keep)
        far = lln.lln_attention(*tensors, 1.0, 1.0)
        near = lln.block_diagonal_attention(*tensors, block_size=16)
    assert torch.equal(kept[0], far) and torch.equal(kept[1], near)


@every_backend_name
@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_any_scale_of_causal_blocks_is_finite_and_right(backend: str, scale: float) -> None:
    tensors = inputs(torch.float32)
    found, true = (
        lln.block_diagonal_attention(*tensors, block_size=16, scale=scale, is_causal=True, backend=name)
        for name in (backend, "oracle")
    )
    torch.testing.assert_close(found, true)


def test_the_mixing_weight_is_never_rounded_to_half_precision() -> None:
    q, k, v = inputs(torch.float16)
    mix = torch.full((4,), 0.3, requires_grad=True)
    (lln.lln_diag_attention(q, k, 1e4 * v, 1.0, 1.0, mix=mix, block_size=16).float() * 10).sum().backward()
    assert mix.grad is not None and torch.isfinite(mix.grad).all()
    leaf = mix.detach().clone().requires_grad_()
    double = lln.lln_diag_attention(*(x.double() for x in (q, k, 1e4 * v)), 1.0, 1.0, mix=leaf, block_size=16)
    (double * 10).sum().backward()
    torch.testing.assert_close(mix.grad, leaf.grad, rtol=2e-2, atol=2e-2 * float(leaf.grad.abs().max()))


@pytest.mark.parametrize(
    "value",
    [complex(1, 1), torch.tensor(1 + 1j), math.nan, torch.tensor(math.nan), math.inf, torch.tensor(-math.inf), "1"],
    ids=str,
)
@pytest.mark.parametrize("name", ["alpha", "beta", "mix"])
def test_scales_that_are_not_numbers_are_refused(name: str, value: Any) -> None:
    given = {"alpha": 1.0, "beta": 1.0, "mix": 0.5, name: value}
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        lln.lln_diag_attention(*inputs(), **given)


def test_a_bias_of_minus_infinity_takes_a_feature_out() -> None:
    q, k, v = inputs()
    without = lln.lln_attention(q[..., 1:], k[..., 1:], v, 1.0, 1.0)
    bias = torch.tensor([-math.inf] + 7 * [0.0])
    torch.testing.assert_close(lln.lln_attention(q, k, v, 1.0, 1.0, feature_bias=bias), without)


class NothingIsReadBack(TorchDispatchMode):
    """Raises where a GPU would wait for the host."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "equal", "masked_select")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"{name} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("operation", ["attention", "blocks", "diag", "near_far"])
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("form", ["plain", "masked", "packed"])
def test_plain_torch_reads_no_value_back(operation: str, causal: bool, form: str) -> None:
    changes = {"mask": "left"} if form == "masked" else {"batch": 1, "packed": True} if form == "packed" else {}
    if operation == "attention":
        x: Any = build(stress_case(causal, **changes)).operands
    elif operation == "near_far":
        x = near_far_stress(causal, Reach(neighbours=1, first_tokens=4), **changes)
    else:
        x = stress(operation, causal, **changes)
    backend = OPERATIONS[operation].backends["chunked"]
    assert backend.backward is not None
    with NothingIsReadBack(), torch.no_grad():
        results = backend.forward(x)
        grads = {name: results.out if name == "out" else None for name in OPERATIONS[operation].flowing}
        wanted = {n for n in OPERATIONS[operation].differentiable if getattr(x, n) is not None}
        backend.backward(grads, results, x, wanted)


def test_a_decoding_step_reads_no_value_back() -> None:
    from lln.ops.blocks.continued import continue_blocks
    from lln.ops.lln import Operands, State, chunked

    token, scale = torch.randn(2, 2, 1, 8), torch.ones(2, 2, 8)
    start = State.without_keys(scale, 8, torch.float64)
    with NothingIsReadBack(), torch.no_grad():
        x = Operands(token, token, token, scale, scale, is_causal=True).starting_from(start)
        chunked.forward(x)
        options: dict[str, Any] = {"block_size": 4, "scale": 0.3, "key_mask": None, "backend": "chunked"}
        _, block = continue_blocks(token, token, token, None, **options)
        continue_blocks(token, token, token, block, **options)


class Attends(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return lln.lln_diag_attention(q, k, v, block_size=16) + lln.lln_attention(q, k, v)


def test_an_exported_graph_runs_where_there_is_no_kernel(tmp_path: Path) -> None:
    q, k, v = (torch.randn(1, 2, 40, 8) for _ in range(3))
    length = torch.export.Dim("length", min=2, max=4096)
    shapes = {name: {2: length} for name in "qkv"}
    program = torch.export.export(Attends(), (q, k, v), dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "attention.pt2")
    torch.save((q, k, v, Attends()(q, k, v)), tmp_path / "expected.pt")
    script = (
        "import sys, torch, lln\n"
        "from lln.ops.native.call import available\n"
        "assert available() is not None, 'the kernel was not hidden'\n"
        "module = torch.export.load(sys.argv[1]).module()\n"
        "q, k, v, expected = torch.load(sys.argv[2])\n"
        "torch.testing.assert_close(module(q, k, v), expected, rtol=1e-3, atol=1e-5)\n"
        "module(*(torch.cat([x, x], dim=2) for x in (q, k, v)))\n"
        "print('ran')\n"
    )
    environment = os.environ | {"LLN_NATIVE_LIBRARY": str(tmp_path / "absent.so")}
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        script,
        str(tmp_path / "attention.pt2"),
        str(tmp_path / "expected.pt"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "ran", done.stderr


def test_the_first_call_imports_no_compiler() -> None:
    script = (
        "import sys, torch, lln; x = torch.randn(1, 2, 8, 4, requires_grad=True)\n"
        "lln.lln_diag_attention(x, x, x, block_size=4).sum().backward()\n"
        "print([name for name in ('torch._dynamo', 'torch._inductor', 'sympy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


TOY = '''
from lln.ops.backends import Backend
from lln.ops.{folder} import {operation}

def forward(x):
    """The oracle in the inputs' own precision, by another name."""
    return {operation}.backends["oracle"].forward(x)

{operation}.backends.register(
    Backend("toy", forward, None, refuses={refuses}, automatic=False, transparent=True, by_autograd=True)
)
'''


@pytest.mark.parametrize(
    "operation, folder, serves",
    [("attention", "lln", True), ("blocks", "blocks", True), ("blocks", "blocks", False)],
    ids=["attention serves", "blocks serve", "blocks never called"],
)
def test_a_backend_is_added_by_registering_it_and_one_that_never_runs_fails(
    tmp_path: Path, operation: str, folder: str, serves: bool
) -> None:
    refuses = "lambda x: None" if serves else "lambda x: 'it takes nothing'"
    (tmp_path / "toy_backend.py").write_text(TOY.format(operation=operation, folder=folder, refuses=refuses))
    contract = "test_lln_contract.py" if operation == "attention" else "test_diag_contract.py"
    command = [
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "toy_backend", "-k",
        f"{operation}-toy and agree_with_the_oracle and not sweep", str(ROOT / "tests" / "ops" / contract),
    ]  # fmt: skip
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "LLN_CONTRACT_EXAMPLES": "20"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
    assert (done.returncode == 0) == serves, done.stdout[-3000:]
    assert " passed" in done.stdout if serves else "it takes nothing" in done.stdout


def test_refusals_are_told() -> None:
    """A skip for a refusal names the backend and the reason."""
    refusing = dataclasses.replace(attention.backends["chunked"], name="refusing", refuses=lambda x: "no reason")
    attention.backends.register(refusing)
    try:
        with pytest.raises(pytest.skip.Exception, match="no reason"):
            pytest.importorskip("torch")
            _outside_of_hypothesis(Subject("attention", "refusing", "cpu"))
    finally:
        attention.backends._known.pop("refusing")
    there = {b.name for b in attention.backends if b.name != "oracle" and b.unavailable() is None}
    assert {s.backend for s in subjects("attention")} == there
    assert {b.name for b in blocks.backends} == {b.name for b in diag.backends}


def _outside_of_hypothesis(subject: Subject) -> None:
    compute(subject, build(stress_case(False)).operands)
